// tieshard/core/base/units.h
//
// Numbers as people read them. Everything that is shown to a person goes through here.
//
// Flow: cli, reports, Diagnostics -> [this]

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

/// "0 B", "576 B", "54.0 KiB", "54.0 MiB", "1.2 GiB": binary units, one decimal from KiB on.
std::string format_bytes(std::uint64_t bytes);

/// Bytes from "4096", "16MiB", "1.5 GiB" (binary: KiB, MiB, GiB, TiB) or "2GB" (decimal: kB, MB, GB, TB); letter case
/// is free. Nothing for another form, and where the number does not fit in 63 bits.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

/// "49,152": thousands separated by commas.
std::string format_count(std::int64_t count);

/// "134.5 M", "1.2 B", "49.2 K", "576": parameter counts in decimal units, one decimal.
std::string format_parameters(std::int64_t count);

/// "12 ms", "1.25 s", "2:41 min", "1:02:03 h".
std::string format_seconds(double seconds);

/// A name that came out of a file, safe to print: control characters as "\\u001b", and of more than 256 bytes only the
/// beginning, followed by "... (4,005 bytes)".
std::string format_name(std::string_view name);

/// Names for a message: "a, b, c"; of more than eight only the first: "a, ..., h and 12 more".
std::string format_names(const std::vector<std::string>& names);

} // namespace tieshard
