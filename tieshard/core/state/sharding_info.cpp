#include "tieshard/core/state/sharding_info.h"

#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/json_reader.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kMaxIndex = std::uint64_t{1} << 53; ///< as of a shape in a header
constexpr std::size_t kMostDimensions = 64;

/// Where a value stands; put into words only when it is wrong, since there may be a million of them.
struct Place {
  const std::string& info;
  const std::string& tensor;
  const char* field = "";

  std::string text() const {
    return concat(info, ", ", format_name(tensor), *field == 0 ? "" : ", ", field);
  }
};

[[noreturn]] void fail(const std::string& where, std::string why) {
  throw InputError({.code = Code::kBadEntry,
                    .what = "DCP_SHARDING_INFO of a file is not as it has to be",
                    .where = where,
                    .why = std::move(why),
                    .fix = "write the file again with the tool that made it"});
}

Shape read_numbers(JsonReader& json, const Place& at) {
  if (json.kind() != JsonReader::Kind::kArray) {
    fail(at.text(), concat("expected an array of whole numbers, got ", format_name(json.skip())));
  }
  Shape numbers;
  json.enter_array();
  while (json.next_element()) {
    const std::string_view text = json.skip();
    const std::optional<std::uint64_t> number = json_unsigned(text);
    if (!number || *number > kMaxIndex) {
      fail(at.text(), concat("expected whole numbers from 0 to 2^53, got ", format_name(text)));
    }
    if (numbers.size() == kMostDimensions) {
      fail(at.text(), concat("expected at most ", kMostDimensions, " dimensions, got more"));
    }
    numbers.push_back(static_cast<std::int64_t>(*number));
  }
  return numbers;
}

BlockPlace read_place(JsonReader& json, const std::string& info, const std::string& tensor) {
  if (json.kind() != JsonReader::Kind::kObject) {
    fail(Place{info, tensor}.text(),
         concat("expected an object with ", kSavedOffsets, ", got ", format_name(json.skip())));
  }
  BlockPlace place;
  bool has_offsets = false;
  json.enter_object();
  while (const auto key = json.next_key()) {
    if (*key == kSavedOffsets) {
      has_offsets = true;
      place.offsets = read_numbers(json, {info, tensor, kSavedOffsets});
    } else if (*key == kWholeShape) {
      place.whole = read_numbers(json, {info, tensor, kWholeShape});
    } else {
      json.skip();
    }
  }
  if (!has_offsets) {
    fail(Place{info, tensor}.text(), concat("expected the field ", kSavedOffsets, ", got none"));
  }
  return place;
}

} // namespace

std::unordered_map<std::string, BlockPlace> parse_sharding_info(std::string_view text, const std::string& where) {
  const std::string place = concat(where, ", ", kShardingInfoKey);
  std::unordered_map<std::string, BlockPlace> places;
  try {
    JsonReader json(text, place);
    if (json.kind() != JsonReader::Kind::kObject) {
      fail(place, concat("expected an object by tensor name, got ", format_name(json.skip())));
    }
    json.enter_object();
    while (const auto key = json.next_key()) {
      std::string name(*key);
      BlockPlace read = read_place(json, place, name);
      places.emplace(std::move(name), std::move(read));
    }
    json.finish();
  } catch (const InputError& error) {
    if (error.diagnostic().code == Code::kBadEntry) {
      throw;
    }
    fail(error.diagnostic().where, error.diagnostic().why);
  }
  return places;
}

} // namespace tieshard
