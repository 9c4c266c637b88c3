#include "tieshard/core/base/json_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <locale>
#include <sstream>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/base/utf8.h"

namespace tieshard {
namespace {

constexpr std::size_t kMaxDepth = 128;
constexpr std::size_t kFewKeys = 8;
constexpr std::size_t kSurelyFinite = 300; ///< digits; a double goes to 308

[[noreturn]] void throw_malformed(const std::string& where, std::string why) {
  throw InputError({.code = Code::kJsonMalformed,
                    .what = "text is not JSON",
                    .where = where,
                    .why = std::move(why),
                    .fix = "check that the file is complete and plain UTF-8 JSON; download or write it again"});
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Whether a JSON number is within the range of a double. Too small ones are: they round to zero.
bool is_finite(std::string_view number) {
  double value = 0.0;
  if (std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc()) {
    return std::isfinite(value);
  }
  std::istringstream stream{std::string(number)}; // tells too large from too small, which from_chars does not
  stream.imbue(std::locale::classic());
  return static_cast<bool>(stream >> value);
}

/// The value of the four hexadecimal digits that `text` begins with.
std::optional<std::uint32_t> four_hex_digits(std::string_view text) {
  std::uint32_t value = 0;
  if (text.size() < 4 || std::from_chars(text.data(), text.data() + 4, value, 16).ptr != text.data() + 4) {
    return std::nullopt;
  }
  return value;
}

bool is_high_surrogate(std::uint32_t unit) {
  return unit >= 0xD800 && unit <= 0xDBFF;
}

bool is_low_surrogate(std::uint32_t unit) {
  return unit >= 0xDC00 && unit <= 0xDFFF;
}

} // namespace

bool JsonReader::Keys::insert(std::string_view key) {
  if (few_.size() < kFewKeys) {
    if (std::ranges::find(few_, key) != few_.end()) {
      return false;
    }
    few_.push_back(key);
    return true;
  }
  if (many_.empty()) {
    many_.insert(few_.begin(), few_.end());
  }
  const std::size_t before = many_.size();
  many_.insert(many_.end(), key); // writers sort their keys, so most belong at the end
  return many_.size() > before;
}

std::string_view JsonReader::Keys::keep(std::string decoded) {
  return decoded_.emplace_back(std::move(decoded));
}

void JsonReader::Keys::clear() {
  few_.clear();
  many_.clear();
  decoded_.clear();
}

JsonReader::JsonReader(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {
  if (const auto bad = first_byte_that_is_not_utf8(text)) {
    throw InputError({.code = Code::kJsonNotUtf8,
                      .what = "JSON text is not UTF-8",
                      .where = concat(where_, ", ", json_place(text, *bad)),
                      .why = concat("expected UTF-8, got byte ",
                                    static_cast<unsigned>(static_cast<unsigned char>(text[*bad])),
                                    " at byte ",
                                    *bad,
                                    " of the text"),
                      .fix = "download the file again, or save it as UTF-8"});
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    throw_malformed(where_, "expected JSON from the first byte on, got a byte order mark");
  }
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw_malformed(concat(where_, ", ", json_place(text, nul)), concat("expected text, got a NUL at byte ", nul));
  }
}

void JsonReader::fail(std::size_t at, const char* expected) const {
  std::string got = "the end of the text";
  if (at < text_.size()) {
    got = concat("\"", format_name(text_.substr(at, utf8_sequence(text_.substr(at)))), "\"");
  }
  throw_malformed(concat(where_, ", ", json_place(text_, at)), concat("expected ", expected, ", got ", got));
}

char JsonReader::peek() const {
  return at_ < text_.size() ? text_[at_] : '\0'; // a text holds no NUL
}

void JsonReader::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
    ++at_;
  }
}

JsonReader::Kind JsonReader::kind() {
  skip_space();
  switch (peek()) {
    case '{':
      return Kind::kObject;
    case '[':
      return Kind::kArray;
    case '"':
      return Kind::kString;
    case 't':
    case 'f':
      return Kind::kBoolean;
    case 'n':
      return Kind::kNull;
    default:
      if (peek() != '-' && !is_digit(peek())) {
        fail(at_, "a value");
      }
      return Kind::kNumber;
  }
}

void JsonReader::enter() {
  skip_space();
  if (depth_ == kMaxDepth) {
    throw InputError({.code = Code::kJsonTooDeep,
                      .what = "JSON is nested too deeply",
                      .where = concat(where_, ", ", json_place(text_, at_)),
                      .why = concat("expected at most ", kMaxDepth, " levels, got more"),
                      .fix = "check where the file comes from; no checkpoint needs such nesting"});
  }
  ++at_;
  if (depth_ == levels_.size()) {
    levels_.emplace_back();
  }
  levels_[depth_++].at_start = true;
}

void JsonReader::enter_object() {
  enter();
}

void JsonReader::enter_array() {
  enter();
}

bool JsonReader::next_member(char close, const char* expected) {
  skip_space();
  Level& level = levels_[depth_ - 1];
  if (peek() == close) {
    ++at_;
    --depth_;
    level.keys.clear();
    return false;
  }
  if (!level.at_start) {
    if (peek() != ',') {
      fail(at_, expected);
    }
    ++at_;
    skip_space();
  }
  level.at_start = false;
  return true;
}

std::optional<std::string_view> JsonReader::next_key() {
  if (!next_member('}', "\",\" or \"}\"")) {
    return std::nullopt;
  }
  if (peek() != '"') {
    fail(at_, "a key");
  }
  const std::size_t start = at_;
  Keys& keys = levels_[depth_ - 1].keys;
  const auto [raw, has_escapes] = raw_string();
  const std::string_view key = has_escapes ? keys.keep(decode(raw)) : raw;
  if (!keys.insert(key)) {
    throw InputError({.code = Code::kJsonDuplicateKey,
                      .what = "a key stands twice in one JSON object",
                      .where = concat(where_, ", key ", format_name(key)),
                      .why = concat("expected each key once, got it again at ", json_place(text_, start)),
                      .fix = "write the file again without the duplicate; readers disagree about which value counts"});
  }
  skip_space();
  expect(":");
  return key;
}

bool JsonReader::next_element() {
  return next_member(']', "\",\" or \"]\"");
}

std::pair<std::string_view, bool> JsonReader::raw_string() {
  const std::size_t start = ++at_; // after the quote
  bool has_escapes = false;
  for (; peek() != '"'; ++at_) {
    if (static_cast<unsigned char>(peek()) < 0x20) { // also at the end of the text
      fail(at_, "a string without control characters, closed by a quote");
    }
    if (peek() == '\\') {
      has_escapes = true;
      ++at_;
      if (std::string_view("\"\\/bfnrtu").find(peek()) == std::string_view::npos || at_ >= text_.size()) {
        fail(at_, "an escape sequence of JSON");
      }
    }
  }
  return {text_.substr(start, at_++ - start), has_escapes};
}

std::string JsonReader::decode(std::string_view raw) const {
  constexpr std::string_view kEscapes = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const auto place = [this, raw](std::size_t i) { return static_cast<std::size_t>(raw.data() - text_.data()) + i; };
  std::string text;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\') {
      text += raw[i];
      continue;
    }
    ++i;
    if (raw[i] != 'u') {
      text += kMeanings[kEscapes.find(raw[i])];
      continue;
    }
    std::optional<std::uint32_t> point = four_hex_digits(raw.substr(i + 1));
    if (!point) {
      fail(place(i), "four hexadecimal digits after \\u");
    }
    i += 4;
    if (is_high_surrogate(*point) && raw.substr(i + 1).starts_with("\\u")) {
      const std::optional<std::uint32_t> low = four_hex_digits(raw.substr(i + 3));
      if (low && is_low_surrogate(*low)) {
        point = 0x10000 + ((*point - 0xD800) << 10) + (*low - 0xDC00);
        i += 6;
      }
    }
    if (is_high_surrogate(*point) || is_low_surrogate(*point)) {
      fail(place(i), "surrogates in pairs");
    }
    append_utf8(text, *point);
  }
  return text;
}

std::string_view JsonReader::string() {
  skip_space();
  const auto [raw, has_escapes] = raw_string();
  if (!has_escapes) {
    return raw;
  }
  decoded_ = decode(raw);
  return decoded_;
}

void JsonReader::expect(std::string_view word) {
  if (!text_.substr(at_).starts_with(word)) {
    fail(at_, word == ":" ? "\":\" after a key" : "a value");
  }
  at_ += word.size();
}

void JsonReader::skip_digits() {
  if (!is_digit(peek())) {
    fail(at_, "a digit");
  }
  while (is_digit(peek())) {
    ++at_;
  }
}

void JsonReader::skip_number() {
  const std::size_t start = at_;
  at_ += peek() == '-' ? 1 : 0;
  if (peek() == '0') {
    ++at_;
  } else {
    skip_digits();
  }
  bool plain = true;
  if (peek() == '.') {
    ++at_;
    skip_digits();
    plain = false;
  }
  if (peek() == 'e' || peek() == 'E') {
    ++at_;
    at_ += peek() == '+' || peek() == '-' ? 1 : 0;
    skip_digits();
    plain = false;
  }
  const std::string_view number = text_.substr(start, at_ - start);
  if ((!plain || number.size() > kSurelyFinite) && !is_finite(number)) {
    fail(start, "a number that fits in a double");
  }
}

std::string_view JsonReader::skip() {
  const Kind what = kind();
  const std::size_t start = at_;
  switch (what) {
    case Kind::kNull:
      expect("null");
      break;
    case Kind::kBoolean:
      expect(peek() == 't' ? "true" : "false");
      break;
    case Kind::kNumber:
      skip_number();
      break;
    case Kind::kString:
      string();
      break;
    case Kind::kArray:
      enter_array();
      while (next_element()) {
        skip();
      }
      break;
    case Kind::kObject:
      enter_object();
      while (next_key()) {
        skip();
      }
      break;
  }
  return text_.substr(start, at_ - start);
}

void JsonReader::finish() {
  skip_space();
  if (at_ < text_.size()) {
    fail(at_, "the end of the text");
  }
}

std::optional<std::uint64_t> json_unsigned(std::string_view value) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  return error == std::errc() && end == value.data() + value.size() ? std::optional(number) : std::nullopt;
}

std::string json_place(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = 1 + std::ranges::count(before, '\n');
  const std::size_t line_start = before.rfind('\n') + 1; // npos + 1 is 0
  return concat("line ", line, ", column ", before.size() - line_start + 1);
}

} // namespace tieshard
