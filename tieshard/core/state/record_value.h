// tieshard/core/state/record_value.h
//
// A value of manifest.json or trainer.json, taken as what it has to be or refused with its path.
//
// Flow: manifest, trainer_state -> [this] -> base/json.h

#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tieshard/core/base/json.h"

namespace tieshard {

/// Looks into a document, which has to outlive it. Whatever is not as asked is refused: InputError manifest-malformed,
/// with the path of the value ("parameters[3].shape[0]"), what was expected and what is there.
class RecordValue {
 public:
  /// @param where  the file, for messages
  RecordValue(const Json& value, const std::string& where, std::string path = "")
      : value_(&value), where_(&where), path_(std::move(path)) {}

  /// The member of this name, which an object has to have.
  RecordValue member(const char* name) const;

  /// Refuses an object with other members, which would be lost by whoever writes it again.
  void require_only(std::initializer_list<std::string_view> names) const;

  /// Of an array.
  std::vector<RecordValue> elements() const;

  /// Of an object with names of any kind, sorted by name.
  std::vector<std::pair<std::string, RecordValue>> members() const;

  bool is_null() const;
  bool boolean() const;
  std::int64_t integer(std::int64_t least, std::int64_t most = INT64_MAX) const;

  /// A string with something in it.
  std::string text() const;

  /// A string that may be empty.
  std::string any_text() const;

  /// Lower-case hexadecimal digits, two a byte. @param digits  how many; 0: any even number
  std::string hexadecimal(std::size_t digits) const;

  [[noreturn]] void refuse(const std::string& expected) const;
  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const;

 private:
  const Json* value_;
  const std::string* where_;
  std::string path_;
};

/// The document's version, which has to be `version`. @throws InputError manifest-malformed
void require_version(const RecordValue& document, std::int64_t version);

} // namespace tieshard
