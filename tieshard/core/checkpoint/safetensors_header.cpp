#include "tieshard/core/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/json_reader.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMaxDimension = std::uint64_t{1} << 53; ///< beyond it JSON readers disagree about the number
constexpr std::size_t kMostDimensions = 64;                     ///< what torch can index; more would only fill memory
constexpr std::size_t kMostMetadata = 250'000;                  ///< strings; likewise
constexpr const char* kWriteAgain = "write the file again with a safetensors library, or download it again";

/// One tensor's entry while it is read: knows what to name when something is wrong with it.
class EntryReader {
 public:
  EntryReader(const std::string& where, std::string_view name, JsonReader& json)
      : where_(where), json_(json), entry_{.name = std::string(name), .dtype = DType::kU8, .shape = {}} {}

  /// Pre: the entry is the value that comes next.
  TensorEntry read() {
    if (json_.kind() != JsonReader::Kind::kObject) {
      fail(Code::kBadEntry,
           "a tensor's header entry is not an object",
           concat("expected an object, got ", format_name(json_.skip())));
    }
    bool has_dtype = false;
    bool has_shape = false;
    bool has_range = false;
    json_.enter_object();
    while (const auto key = json_.next_key()) {
      if (*key == "dtype") {
        has_dtype = true;
        read_dtype();
      } else if (*key == "shape") {
        has_shape = true;
        read_shape();
      } else if (*key == "data_offsets") {
        has_range = true;
        read_range();
      } else {
        json_.skip();
      }
    }
    require("dtype", has_dtype);
    require("shape", has_shape);
    require("data_offsets", has_range);
    check_size();
    return std::move(entry_);
  }

 private:
  [[noreturn]] void fail(Code code, const char* what, std::string why, const char* fix = kWriteAgain) const {
    throw InputError({.code = code,
                      .what = what,
                      .where = concat(where_, ", ", format_name(entry_.name)),
                      .why = std::move(why),
                      .fix = fix});
  }

  void require(const char* key, bool present) const {
    if (!present) {
      fail(Code::kBadEntry, "a tensor's header entry lacks a field", concat("expected the field ", key, ", got none"));
    }
  }

  void require_kind(const char* key, JsonReader::Kind kind) const {
    if (json_.kind() != kind) {
      fail(Code::kBadEntry,
           "a field of a tensor's header entry has the wrong type",
           concat("expected ",
                  key,
                  " to be ",
                  kind == JsonReader::Kind::kString ? "a string" : "an array",
                  ", got ",
                  format_name(json_.skip())));
    }
  }

  void read_dtype() {
    require_kind("dtype", JsonReader::Kind::kString);
    const std::string_view text = json_.string();
    const std::optional<DType> dtype = dtype_from_name(text);
    if (!dtype) {
      fail(Code::kUnknownDtype,
           "a dtype that the safetensors format does not have",
           concat("expected a dtype of the format such as BF16, got ", format_name(text)),
           "convert the tensor to a dtype of the format, or update tieshard if the format has grown");
    }
    entry_.dtype = *dtype;
  }

  void read_shape() {
    require_kind("shape", JsonReader::Kind::kArray);
    std::size_t dimensions = 0;
    json_.enter_array();
    while (json_.next_element()) {
      const std::string_view size = json_.skip();
      const std::optional<std::uint64_t> value = json_unsigned(size);
      if (!value || *value > kMaxDimension) {
        fail(Code::kBadShape,
             "a shape holds something else than non-negative integers",
             concat("expected integers from 0 to 2^53, got ", format_name(size), " as size ", dimensions));
      }
      if (++dimensions <= kMostDimensions) {
        entry_.shape.push_back(static_cast<std::int64_t>(*value));
      }
    }
    if (dimensions > kMostDimensions) {
      fail(Code::kBadShape,
           "a shape has more dimensions than any tensor",
           concat("expected at most ", kMostDimensions, " dimensions, got ", dimensions));
    }
  }

  void read_range() {
    require_kind("data_offsets", JsonReader::Kind::kArray);
    std::array<std::string_view, 2> shown = {"", ""};
    std::array<std::optional<std::uint64_t>, 2> offsets;
    std::size_t count = 0;
    json_.enter_array();
    for (; json_.next_element(); ++count) {
      const std::string_view offset = json_.skip();
      if (count < offsets.size()) {
        shown[count] = offset;
        offsets[count] = json_unsigned(offset);
      }
    }
    const auto got = [&shown, count] {
      return concat("[", format_name(shown[0]), count > 1 ? "," : "", format_name(shown[1]), count > 2 ? ",...]" : "]");
    };
    if (count != 2 || !offsets[0] || !offsets[1]) {
      fail(Code::kBadEntry,
           "data_offsets of a tensor are not two byte offsets",
           concat("expected [begin, end] as non-negative integers, got ", got()));
    }
    if (*offsets[0] > kMaxOffset || *offsets[1] > kMaxOffset) {
      fail(Code::kSizeOverflow,
           "a byte offset does not fit in 63 bits",
           concat("expected offsets below 2^63, got ", got()));
    }
    if (*offsets[0] > *offsets[1]) {
      fail(Code::kOffsetsReversed,
           "a byte range ends before it begins",
           concat("expected begin <= end in data_offsets, got ", got()));
    }
    entry_.begin = *offsets[0];
    entry_.end = *offsets[1];
  }

  void check_size() const {
    const auto described = [this] { return concat(name(entry_.dtype), " ", to_string(entry_.shape)); };
    const std::uint64_t range = entry_.end - entry_.begin;
    const std::optional<std::int64_t> count = checked_numel(entry_.shape);
    if (count && *count % 8 * bits(entry_.dtype) % 8 != 0) {
      fail(Code::kSizeMismatch,
           "packed elements of a tensor do not fill whole bytes",
           concat("expected a multiple of 8 bits, got ",
                  described(),
                  ": ",
                  *count,
                  " elements of ",
                  bits(entry_.dtype),
                  " bits in ",
                  range,
                  " bytes"));
    }
    const std::optional<std::uint64_t> bytes = checked_bytes(entry_.shape, entry_.dtype);
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
                  entry_.begin,
                  ", ",
                  entry_.end,
                  "], which are ",
                  range,
                  " bytes"));
    }
  }

  const std::string& where_;
  JsonReader& json_;
  TensorEntry entry_;
};

void require_brace(std::string_view text, const std::string& where) {
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
}

/// What is wrong with the text as JSON, in the words of a header; other refusals as they are.
Diagnostic in_words_of_a_header(Diagnostic diagnostic) {
  switch (diagnostic.code) {
    case Code::kJsonDuplicateKey:
      diagnostic.code = Code::kDuplicateKey;
      diagnostic.what = "a name stands twice in a safetensors header";
      break;
    case Code::kJsonNotUtf8:
      diagnostic.code = Code::kHeaderNotUtf8;
      diagnostic.what = "safetensors header is not UTF-8";
      break;
    case Code::kJsonMalformed:
    case Code::kJsonTooDeep:
      diagnostic.code = Code::kHeaderNotJson;
      diagnostic.what = "safetensors header is not a JSON object";
      break;
    default:
      return diagnostic;
  }
  diagnostic.fix = kWriteAgain;
  return diagnostic;
}

std::map<std::string, std::string> read_metadata(JsonReader& json, const std::string& where) {
  const auto fail = [&where, &json](const std::string& key) {
    throw InputError(
        {.code = Code::kMetadataNotString,
         .what = "__metadata__ holds something else than strings",
         .where = concat(where, ", ", kMetadataKey, key.empty() ? "" : ", ", format_name(key)),
         .why =
             concat("expected ", key.empty() ? "an object of strings" : "a string", ", got ", format_name(json.skip())),
         .fix = "write the file again with every metadata value as a string"});
  };
  std::map<std::string, std::string> strings;
  if (json.kind() == JsonReader::Kind::kNull) { // the reference reader takes it as absent
    json.skip();
    return strings;
  }
  if (json.kind() != JsonReader::Kind::kObject) {
    fail("");
  }
  json.enter_object();
  while (const auto next = json.next_key()) {
    std::string key(*next);
    if (json.kind() != JsonReader::Kind::kString) {
      fail(key);
    }
    if (strings.size() == kMostMetadata) {
      throw InputError({.code = Code::kHeaderTooLarge,
                        .what = "safetensors header with more metadata than the limit",
                        .where = concat(where, ", ", kMetadataKey),
                        .why = concat("expected at most ", kMostMetadata, " strings, got more"),
                        .fix = "write the file again with less metadata; no loader needs as much"});
    }
    strings.emplace_hint(strings.end(), std::move(key), json.string());
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
  require_brace(text, where);
  SafetensorsHeader header;
  header.data_start = 8 + text.size();
  try {
    JsonReader json(text, concat(where, ", header"));
    json.enter_object();
    while (const auto key = json.next_key()) {
      if (*key == kMetadataKey) {
        header.metadata = read_metadata(json, where);
      } else {
        header.tensors.push_back(EntryReader(where, *key, json).read());
      }
    }
    json.finish();
  } catch (const InputError& error) {
    throw InputError(in_words_of_a_header(error.diagnostic()));
  }
  std::ranges::sort(
      header.tensors, {}, [](const TensorEntry& entry) { return std::tie(entry.begin, entry.end, entry.name); });
  check_coverage(header, data_bytes, where);
  return header;
}

} // namespace tieshard
