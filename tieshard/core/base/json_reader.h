// tieshard/core/base/json_reader.h
//
// Strict JSON, value by value, without a document in memory: a text of any size costs its keys at most.
//
// Flow:   json.h, checkpoint (headers, index) -> [this]
// Source: RFC 8259; safetensors forbids duplicate keys.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tieshard {

/// Walks over one document. The caller asks for the kind of the value that comes next and takes or skips it:
///
///   reader.enter_object();
///   while (const auto key = reader.next_key()) { ... exactly one value is taken, entered to its end, or skipped ... }
///   reader.finish();
///
/// What it accepts: UTF-8, no byte order mark, no comments, no NaN, no number beyond a double, nesting of at most 128
/// levels, each key once per object. Every call may throw InputError json-malformed (with line and column),
/// json-duplicate-key (with the key) and json-too-deep. Not to be used on after that.
class JsonReader {
 public:
  enum class Kind { kNull, kBoolean, kNumber, kString, kArray, kObject };

  /// @param text   the document; has to live as long
  /// @param where  what to name in an error, usually the file
  /// @throws InputError json-not-utf8; json-malformed for a byte order mark or a NUL
  JsonReader(std::string_view text, std::string where);

  /// Of the value that comes next, told by its first character.
  Kind kind();

  /// Steps into the object or the array that comes next. Pre: kind() is that.
  void enter_object();
  void enter_array();

  /// The next key of the object entered last, its value being next; nothing at its end, which leaves the object. The
  /// view lives until then.
  std::optional<std::string_view> next_key();

  /// Whether an element of the array entered last comes next; false at its end, which leaves the array.
  bool next_element();

  /// The string that comes next, decoded. The view lives until the next call. Pre: kind() is kString.
  std::string_view string();

  /// The value that comes next, with all that is in it, as it is written; checked as if it had been taken.
  std::string_view skip();

  /// Nothing but white space may follow.
  void finish();

 private:
  /// The keys of an open object. Few are compared in turn; many are kept sorted, which no choice of keys slows down.
  class Keys {
   public:
    bool insert(std::string_view key);
    std::string_view keep(std::string decoded);
    void clear();

   private:
    std::vector<std::string_view> few_;
    std::set<std::string_view> many_;
    std::deque<std::string> decoded_; ///< keys with escapes, whose text is not in the document
  };

  /// An open object or array.
  struct Level {
    bool at_start = true;
    Keys keys{};
  };

  void skip_space();
  void enter();
  bool next_member(char close, const char* expected);
  void expect(std::string_view word);
  void skip_number();
  void skip_digits();
  /// Steps over a string; gives its text between the quotes, and whether it has escapes.
  std::pair<std::string_view, bool> raw_string();
  std::string decode(std::string_view raw) const;
  char peek() const;
  [[noreturn]] void fail(std::size_t at, const char* expected) const;

  std::string_view text_;
  std::string where_;
  std::size_t at_ = 0;
  std::deque<Level> levels_; ///< the first depth_ are open; the others wait to be used again
  std::size_t depth_ = 0;
  std::string decoded_;
};

/// A JSON number that is a plain integer from 0 to 2^64 - 1; nothing for any other value, -0 included.
std::optional<std::uint64_t> json_unsigned(std::string_view value);

/// "line 2, column 6" of a byte, both counted from 1; columns in bytes.
std::string json_place(std::string_view text, std::size_t byte);

} // namespace tieshard
