#include "tieshard/core/base/json.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

constexpr std::size_t kMaxDepth = 128;

/// Line and column of a byte, both counted from 1; columns in bytes.
std::string place(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = 1 + std::ranges::count(before, '\n');
  const std::size_t line_start = before.rfind('\n') + 1; // npos + 1 is 0
  return concat("line ", line, ", column ", before.size() - line_start + 1);
}

/// Length of the UTF-8 sequence that `rest` begins with; 0 when it begins with none. Refuses overlong forms,
/// surrogates and code points above U+10FFFF (Unicode, table 3-7).
std::size_t utf8_sequence(std::string_view rest) {
  const auto byte = [&rest](std::size_t i) { return static_cast<unsigned char>(rest[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || rest.size() < length) {
    return 0;
  }
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) {
    return 0;
  }
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return 0;
    }
  }
  return length;
}

std::optional<std::size_t> first_byte_that_is_not_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_sequence(text.substr(at));
    if (length == 0) {
      return at;
    }
    at += length;
  }
  return std::nullopt;
}

/// Walks over the text and tells outside how far the parser has read.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, std::size_t* bytes_read) : at_(at), bytes_read_(bytes_read) {}
  reference operator*() const {
    return *at_;
  }
  Cursor& operator++() {
    ++at_;
    ++*bytes_read_;
    return *this;
  }
  bool operator==(const Cursor& other) const {
    return at_ == other.at_;
  }
  bool operator!=(const Cursor& other) const {
    return at_ != other.at_;
  }

 private:
  const char* at_;
  std::size_t* bytes_read_;
};

/// Builds the document from the parser's events, and refuses what the parser lets pass.
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  StrictBuilder(std::string_view text, const std::string& where, const std::size_t& bytes_read)
      : text_(text), where_(where), bytes_read_(bytes_read) {}

  Json take() {
    return std::move(root_);
  }

  bool null() override {
    return add(nullptr);
  }
  bool boolean(bool value) override {
    return add(value);
  }
  bool number_integer(number_integer_t value) override {
    return add(value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    return add(value);
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return add(value);
  }
  bool string(string_t& value) override {
    return add(std::move(value));
  }
  bool binary(binary_t& value) override {
    return add(std::move(value));
  }
  bool start_object(std::size_t /*size*/) override {
    return open(Json::object());
  }
  bool start_array(std::size_t /*size*/) override {
    return open(Json::array());
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }

  bool key(string_t& name) override {
    const auto [member, inserted] = open_.back()->emplace(name, nullptr);
    if (!inserted) {
      throw InputError(
          {.code = Code::kJsonDuplicateKey,
           .what = "a key stands twice in one JSON object",
           .where = concat(where_, ", key ", format_name(name)),
           .why = concat("expected each key once, got it again at ", place(text_, bytes_read_ - 1)),
           .fix = "write the file again without the duplicate; readers disagree about which value counts"});
    }
    member_ = &*member;
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    // The library's text is "[id] parse error at line 1, column 2: syntax error while parsing ...".
    std::string_view reason = error.what();
    for (const std::string_view skipped : {"] ", "parse error at ", ": ", "syntax error "}) {
      const std::size_t at = reason.find(skipped);
      reason.remove_prefix(at == std::string_view::npos ? 0 : at + skipped.size());
    }
    throw InputError({.code = Code::kJsonMalformed,
                      .what = "text is not JSON",
                      .where = concat(where_, ", ", place(text_, position == 0 ? 0 : position - 1)),
                      .why = concat("expected valid JSON, got an error ", format_name(reason)),
                      .fix = "check that the file is complete; download or write it again"});
  }

 private:
  Json* put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      return &open_.back()->emplace_back(std::move(value));
    }
    *member_ = std::move(value);
    return member_;
  }

  bool add(Json value) {
    put(std::move(value));
    return true;
  }

  bool open(Json container) {
    if (open_.size() == kMaxDepth) {
      throw InputError({.code = Code::kJsonTooDeep,
                        .what = "JSON is nested too deeply",
                        .where = concat(where_, ", ", place(text_, bytes_read_ - 1)),
                        .why = concat("expected at most ", kMaxDepth, " levels, got more"),
                        .fix = "check where the file comes from; no checkpoint needs such nesting"});
    }
    open_.push_back(put(std::move(container)));
    return true;
  }

  std::string_view text_;
  const std::string& where_;
  const std::size_t& bytes_read_;
  Json root_;
  std::vector<Json*> open_; ///< the containers that are not closed yet, outermost first
  Json* member_ = nullptr;  ///< where the value of the last key belongs
};

[[noreturn]] void throw_malformed(const std::string& where, std::string why) {
  throw InputError({.code = Code::kJsonMalformed,
                    .what = "text is not JSON",
                    .where = where,
                    .why = std::move(why),
                    .fix = "write the file again as plain UTF-8 JSON"});
}

} // namespace

Json parse_json(std::string_view text, const std::string& where) {
  if (const auto bad = first_byte_that_is_not_utf8(text)) {
    throw InputError({.code = Code::kJsonNotUtf8,
                      .what = "JSON text is not UTF-8",
                      .where = concat(where, ", ", place(text, *bad)),
                      .why = concat("expected UTF-8, got byte ",
                                    static_cast<unsigned>(static_cast<unsigned char>(text[*bad])),
                                    " at byte ",
                                    *bad,
                                    " of the text"),
                      .fix = "download the file again, or save it as UTF-8"});
  }
  if (text.starts_with("\xEF\xBB\xBF")) { // the library would skip it
    throw_malformed(where, "expected JSON from the first byte on, got a byte order mark");
  }
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) { // the library would end there
    throw_malformed(concat(where, ", ", place(text, nul)), concat("expected text, got a NUL at byte ", nul));
  }
  std::size_t bytes_read = 0;
  StrictBuilder builder(text, where, bytes_read);
  Json::sax_parse(Cursor(text.data(), &bytes_read), Cursor(text.data() + text.size(), &bytes_read), &builder);
  return builder.take();
}

} // namespace tieshard
