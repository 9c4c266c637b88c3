#include "tieshard/core/checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/json.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxDimension = std::int64_t{1} << 53; ///< beyond it JSON readers disagree about the number
constexpr const char* kWriteAgain = "write the file again with a safetensors library, or download it again";

/// The header's JSON value as it is shown in a message.
std::string shown(const Json& value) {
  return format_name(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

/// One tensor's entry while it is read: knows what to name when something is wrong with it.
class EntryReader {
 public:
  EntryReader(const std::string& where, const std::string& name, const Json& json)
      : where_(where), name_(name), json_(json) {}

  TensorEntry read() const {
    if (!json_.is_object()) {
      fail(Code::kBadEntry,
           "a tensor's header entry is not an object",
           concat("expected an object, got ", shown(json_)));
    }
    TensorEntry entry{.name = name_, .dtype = read_dtype(), .shape = read_shape()};
    std::tie(entry.begin, entry.end) = read_range();
    check_size(entry);
    return entry;
  }

 private:
  [[noreturn]] void fail(Code code, const char* what, std::string why, const char* fix = kWriteAgain) const {
    throw InputError({.code = code,
                      .what = what,
                      .where = concat(where_, ", ", format_name(name_)),
                      .why = std::move(why),
                      .fix = fix});
  }

  const Json& field(const char* key, Json::value_t type) const {
    const auto found = json_.find(key);
    if (found == json_.end()) {
      fail(Code::kBadEntry, "a tensor's header entry lacks a field", concat("expected the field ", key, ", got none"));
    }
    if (found->type() != type) {
      fail(Code::kBadEntry,
           "a field of a tensor's header entry has the wrong type",
           concat("expected ",
                  key,
                  " to be ",
                  type == Json::value_t::string ? "a string" : "an array",
                  ", got ",
                  shown(*found)));
    }
    return *found;
  }

  DType read_dtype() const {
    const auto& text = field("dtype", Json::value_t::string).get_ref<const std::string&>();
    const std::optional<DType> dtype = dtype_from_name(text);
    if (!dtype) {
      fail(Code::kUnknownDtype,
           "a dtype that the safetensors format does not have",
           concat("expected a dtype of the format such as BF16, got ", format_name(text)),
           "convert the tensor to a dtype of the format, or update tieshard if the format has grown");
    }
    return *dtype;
  }

  Shape read_shape() const {
    const Json& sizes = field("shape", Json::value_t::array);
    Shape shape;
    shape.reserve(sizes.size());
    for (const Json& size : sizes) {
      // A number above 2^63 is held unsigned, and reads as negative.
      const std::int64_t value = size.is_number_integer() ? size.get<std::int64_t>() : -1;
      if (value < 0 || value > kMaxDimension) {
        fail(Code::kBadShape,
             "a shape holds something else than non-negative integers",
             concat("expected integers from 0 to 2^53, got ", shown(size), " in ", shown(sizes)));
      }
      shape.push_back(value);
    }
    return shape;
  }

  std::pair<std::uint64_t, std::uint64_t> read_range() const {
    const Json& offsets = field("data_offsets", Json::value_t::array);
    if (offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
      fail(Code::kBadEntry,
           "data_offsets of a tensor are not two byte offsets",
           concat("expected [begin, end] as non-negative integers, got ", shown(offsets)));
    }
    const auto begin = offsets[0].get<std::uint64_t>();
    const auto end = offsets[1].get<std::uint64_t>();
    if (begin > kMaxOffset || end > kMaxOffset) {
      fail(Code::kSizeOverflow,
           "a byte offset does not fit in 63 bits",
           concat("expected offsets below 2^63, got ", shown(offsets)));
    }
    if (begin > end) {
      fail(Code::kOffsetsReversed,
           "a byte range ends before it begins",
           concat("expected begin <= end in data_offsets, got ", shown(offsets)));
    }
    return {begin, end};
  }

  void check_size(const TensorEntry& entry) const {
    const auto described = [&entry] { return concat(name(entry.dtype), " ", to_string(entry.shape)); };
    const std::uint64_t range = entry.end - entry.begin;
    const std::optional<std::int64_t> count = checked_numel(entry.shape);
    if (count && *count % 8 * bits(entry.dtype) % 8 != 0) {
      fail(Code::kSizeMismatch,
           "packed elements of a tensor do not fill whole bytes",
           concat("expected a multiple of 8 bits, got ",
                  described(),
                  ": ",
                  *count,
                  " elements of ",
                  bits(entry.dtype),
                  " bits in ",
                  range,
                  " bytes"));
    }
    const std::optional<std::uint64_t> bytes = checked_bytes(entry.shape, entry.dtype);
    if (!bytes) {
      fail(Code::kSizeOverflow,
           "the size of a tensor does not fit in 63 bits",
           concat("expected fewer than 2^63 bytes, got ", described(), " in a range of ", range, " bytes"));
    }
    if (*bytes != range) {
      fail(Code::kSizeMismatch,
           "shape times dtype is not the number of bytes",
           concat("expected ",
                  *bytes,
                  " bytes for ",
                  described(),
                  ", got data_offsets [",
                  entry.begin,
                  ", ",
                  entry.end,
                  "], which are ",
                  range,
                  " bytes"));
    }
  }

  const std::string& where_;
  const std::string& name_;
  const Json& json_;
};

Json parse_text(std::string_view text, const std::string& where) {
  if (!text.starts_with('{')) {
    const std::string got = text.empty()
                                ? "a header of 0 bytes"
                                : concat("byte ", static_cast<unsigned>(static_cast<unsigned char>(text.front())));
    throw InputError({.code = Code::kHeaderNotJson,
                      .what = "safetensors header is not a JSON object",
                      .where = concat(where, ", header"),
                      .why = concat("expected JSON text that begins with '{' (byte 123), got ", got),
                      .fix = kWriteAgain});
  }
  try {
    return parse_json(text, concat(where, ", header"));
  } catch (const InputError& error) {
    Diagnostic diagnostic = error.diagnostic();
    switch (diagnostic.code) {
      case Code::kJsonDuplicateKey:
        diagnostic.code = Code::kDuplicateKey;
        diagnostic.what = "a name stands twice in a safetensors header";
        break;
      case Code::kJsonNotUtf8:
        diagnostic.code = Code::kHeaderNotUtf8;
        diagnostic.what = "safetensors header is not UTF-8";
        break;
      default:
        diagnostic.code = Code::kHeaderNotJson;
        diagnostic.what = "safetensors header is not a JSON object";
    }
    diagnostic.fix = kWriteAgain;
    throw InputError(diagnostic);
  }
}

std::map<std::string, std::string> read_metadata(const Json& metadata, const std::string& where) {
  const auto fail = [&where](const std::string& key, const Json& value) {
    throw InputError(
        {.code = Code::kMetadataNotString,
         .what = "__metadata__ holds something else than strings",
         .where = concat(where, ", ", kMetadataKey, key.empty() ? "" : ", ", format_name(key)),
         .why = concat("expected ", key.empty() ? "an object of strings" : "a string", ", got ", shown(value)),
         .fix = "write the file again with every metadata value as a string"});
  };
  std::map<std::string, std::string> strings;
  if (metadata.is_null()) { // the reference reader takes it as absent
    return strings;
  }
  if (!metadata.is_object()) {
    fail("", metadata);
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      fail(key, value);
    }
    strings.emplace(key, value.get<std::string>());
  }
  return strings;
}

std::string described_range(const TensorEntry& entry) {
  return concat(format_name(entry.name), " [", entry.begin, ", ", entry.end, "]");
}

/// Every byte of the data belongs to exactly one tensor. `tensors` are sorted by their ranges.
void check_coverage(const SafetensorsHeader& header, std::uint64_t data_bytes, const std::string& where) {
  std::uint64_t covered = 0;
  const TensorEntry* previous = nullptr;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin < covered) {
      throw InputError({.code = Code::kOverlap,
                        .what = "two tensors claim the same bytes",
                        .where = concat(where, ", ", format_name(previous->name), " and ", format_name(entry.name)),
                        .why = concat("expected data_offsets that do not overlap, got ",
                                      described_range(*previous),
                                      " and ",
                                      described_range(entry)),
                        .fix = "write the file again; a tied weight is stored once, under one name"});
    }
    if (entry.begin > covered) {
      throw InputError({.code = Code::kHole,
                        .what = "bytes between tensors belong to none",
                        .where = concat(where, ", before ", format_name(entry.name)),
                        .why = concat("expected data from byte ",
                                      covered,
                                      " on, got bytes ",
                                      covered,
                                      " to ",
                                      entry.begin,
                                      " in no tensor (",
                                      entry.begin - covered,
                                      " bytes)"),
                        .fix = kWriteAgain});
    }
    covered = entry.end;
    previous = &entry;
  }
  if (covered == data_bytes) {
    return;
  }
  const bool truncated = covered > data_bytes;
  const std::uint64_t difference = truncated ? covered - data_bytes : data_bytes - covered;
  throw InputError({.code = truncated ? Code::kTruncated : Code::kTrailingBytes,
                    .what = truncated ? "a file ends before its tensors do" : "bytes follow the last tensor",
                    .where = where,
                    .why = concat("expected a file of ",
                                  header.data_start + covered,
                                  " bytes by its header, got ",
                                  header.data_start + data_bytes,
                                  ": ",
                                  difference,
                                  truncated ? " bytes are missing" : " bytes too many"),
                    .fix = truncated ? "download or copy the file again; this copy is incomplete" : kWriteAgain});
}

} // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes, const std::string& where) {
  const Json json = parse_text(text, where);
  SafetensorsHeader header;
  header.data_start = 8 + text.size();
  header.tensors.reserve(json.size());
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) {
      header.metadata = read_metadata(value, where);
    } else {
      header.tensors.push_back(EntryReader(where, name, value).read());
    }
  }
  std::ranges::sort(
      header.tensors, {}, [](const TensorEntry& entry) { return std::tie(entry.begin, entry.end, entry.name); });
  check_coverage(header, data_bytes, where);
  return header;
}

} // namespace tieshard
