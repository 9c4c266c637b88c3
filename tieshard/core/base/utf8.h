// tieshard/core/base/utf8.h
//
// UTF-8, byte by byte: checked as strictly as the standard says.
//
// Flow:   json_reader -> [this]
// Source: the Unicode standard, table 3-7 (well-formed byte sequences).

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tieshard {

/// Length in bytes of the sequence that `rest` begins with; 0 when it begins with none. Overlong forms, surrogates and
/// code points above U+10FFFF are none. Pre: `rest` is not empty.
std::size_t utf8_sequence(std::string_view rest);

/// Position of the first byte that begins no sequence; nothing when all of `text` is UTF-8.
std::optional<std::size_t> first_byte_that_is_not_utf8(std::string_view text);

/// Appends the sequence of a code point. Pre: point <= 0x10FFFF and no surrogate.
void append_utf8(std::string& text, std::uint32_t point);

} // namespace tieshard
