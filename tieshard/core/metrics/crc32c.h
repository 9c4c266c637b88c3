// tieshard/core/metrics/crc32c.h
//
// The checksum that TFRecord frames carry.
//
// Flow:   event_file -> [this]
// Source: RFC 3720, appendix B.4 (CRC-32C, polynomial 0x1EDC6F41); TensorFlow's TFRecord text for the mask.

#pragma once

#include <cstdint>
#include <string_view>

namespace tieshard {

std::uint32_t crc32c(std::string_view bytes);

/// The checksum as a TFRecord stores it: rotated by 15 bits, and a constant added.
std::uint32_t masked_crc32c(std::string_view bytes);

} // namespace tieshard
