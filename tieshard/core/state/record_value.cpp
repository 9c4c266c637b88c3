#include "tieshard/core/state/record_value.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

std::string short_text(const Json& value) {
  return value.is_object() || value.is_array() ? std::string(value.is_object() ? "an object" : "a list")
                                               : format_name(value.dump());
}

} // namespace

RecordValue RecordValue::member(const char* name) const {
  if (!value_->is_object()) {
    refuse("an object");
  }
  const std::string path = path_.empty() ? std::string(name) : concat(path_, ".", name);
  const auto found = value_->find(name);
  if (found == value_->end()) {
    static const Json nothing;
    RecordValue(nothing, *where_, path).refuse("this member", "none");
  }
  return {*found, *where_, path};
}

void RecordValue::require_only(std::initializer_list<std::string_view> names) const {
  if (!value_->is_object()) {
    refuse("an object");
  }
  for (const auto& [name, value] : value_->items()) {
    if (std::ranges::find(names, std::string_view(name)) == names.end()) {
      refuse("the members that docs/checkpoints.md lists", concat("\"", format_name(name), "\" too"));
    }
  }
}

std::vector<RecordValue> RecordValue::elements() const {
  if (!value_->is_array()) {
    refuse("a list");
  }
  std::vector<RecordValue> elements;
  elements.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) {
    elements.emplace_back((*value_)[i], *where_, concat(path_, "[", i, "]"));
  }
  return elements;
}

std::vector<std::pair<std::string, RecordValue>> RecordValue::members() const {
  if (!value_->is_object()) {
    refuse("an object");
  }
  std::vector<std::pair<std::string, RecordValue>> members;
  for (const auto& [name, value] : value_->items()) {
    members.emplace_back(name, RecordValue(value, *where_, concat(path_, ".", format_name(name))));
  }
  return members;
}

bool RecordValue::is_null() const {
  return value_->is_null();
}

bool RecordValue::boolean() const {
  if (!value_->is_boolean()) {
    refuse("true or false");
  }
  return value_->get<bool>();
}

std::int64_t RecordValue::integer(std::int64_t least, std::int64_t most) const {
  const bool fits = value_->is_number_integer() &&
                    (!value_->is_number_unsigned() || std::in_range<std::int64_t>(value_->get<std::uint64_t>()));
  const std::int64_t number = fits ? value_->get<std::int64_t>() : 0;
  if (!fits || number < least || number > most) {
    refuse(most == INT64_MAX ? concat("a whole number from ", least, " on")
                             : concat("a whole number from ", least, " to ", most));
  }
  return number;
}

std::string RecordValue::text() const {
  std::string text = any_text();
  if (text.empty()) {
    refuse("a string with something in it");
  }
  return text;
}

std::string RecordValue::any_text() const {
  if (!value_->is_string()) {
    refuse("a string");
  }
  return value_->get<std::string>();
}

std::string RecordValue::hexadecimal(std::size_t digits) const {
  std::string text = any_text();
  const bool right_length = digits == 0 ? text.size() % 2 == 0 : text.size() == digits;
  if (!right_length || text.find_first_not_of("0123456789abcdef") != text.npos) {
    refuse(digits == 0 ? std::string("hexadecimal digits, two a byte") : concat(digits, " hexadecimal digits"));
  }
  return text;
}

void RecordValue::refuse(const std::string& expected) const {
  refuse(expected, short_text(*value_));
}

void RecordValue::refuse(const std::string& expected, const std::string& got) const {
  throw InputError(
      {.code = Code::kManifestMalformed,
       .what = "a training checkpoint's description is not as it has to be",
       .where = path_.empty() ? *where_ : concat(*where_, ", ", path_),
       .why = concat("expected ", expected, ", got ", got),
       .fix = "take another checkpoint of the run; this one was edited, cut, or written by another version"});
}

void require_version(const RecordValue& document, std::int64_t version) {
  const RecordValue stated = document.member("version");
  if (const std::int64_t got = stated.integer(1); got != version) {
    stated.refuse(concat(version), concat(got, ": use the version of tieshard that wrote it"));
  }
}

} // namespace tieshard
