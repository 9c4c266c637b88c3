// tests/core/state/sharded_fixture.h
//
// Sharded safetensors files for tests, put together byte by byte as PyTorch DCP's writer lays them out, without the
// code under test.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tieshard/core/base/shape.h"

#include "tests/core/base/temp_dir.h"
#include "tests/core/checkpoint/checkpoint_files.h"

namespace tieshard::testing {

/// An I16 block: the whole tensor's element of row-major number n is `first` + n.
struct FixtureBlock {
  std::string name;
  Shape whole;
  Shape offsets;
  Shape shape;
  int first = 0;
};

inline std::string json_array(const Shape& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) {
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  }
  return "[" + text + "]";
}

/// The numbers of a block, row-major.
inline std::vector<std::int16_t> numbers_of(const FixtureBlock& block) {
  std::vector<std::int16_t> numbers;
  const std::int64_t count = numel(block.shape);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t number = 0;
    std::int64_t stride = 1;
    for (std::size_t d = block.shape.size(); d-- > 0;) {
      number += (block.offsets[d] + rest % block.shape[d]) * stride;
      rest /= block.shape[d];
      stride *= block.whole[d];
    }
    numbers.push_back(static_cast<std::int16_t>(block.first + number));
  }
  return numbers;
}

/// The file's bytes. `metadata` are further strings; `sharding_info` replaces the text of that key ("-" leaves it out).
inline std::string sharded_file(const std::vector<FixtureBlock>& blocks,
                                const std::map<std::string, std::string>& metadata = {},
                                const std::string& sharding_info = "") {
  std::string info;
  std::string members;
  std::string data;
  for (const FixtureBlock& block : blocks) {
    info += (info.empty() ? "" : ", ") + ("\\\"" + block.name + "\\\": {\\\"saved_offsets\\\": ") +
            json_array(block.offsets) + "}";
    const std::size_t begin = data.size();
    for (const std::int16_t number : numbers_of(block)) {
      data += static_cast<char>(number & 0xFF);
      data += static_cast<char>(number >> 8 & 0xFF);
    }
    members += "," + entry(block.name,
                           "I16",
                           json_array(block.shape),
                           "[" + std::to_string(begin) + "," + std::to_string(data.size()) + "]");
  }
  std::string strings = R"("format":"pt")";
  if (sharding_info != "-") {
    strings += R"(,"DCP_SHARDING_INFO":")" + (sharding_info.empty() ? "{" + info + "}" : sharding_info) + "\"";
  }
  for (const auto& [key, value] : metadata) {
    strings += ",\"" + key + R"(":")" + value + "\"";
  }
  return packed(R"({"__metadata__":{)" + strings + "}" + members + "}", data);
}

inline std::string dcp_name(int rank) {
  return "shard-0000" + std::to_string(rank + 1) + "-model-00001-of-00001.safetensors";
}

/// A [6, 8] tensor "w" in blocks of the 2x2 grid, one a file, and a whole [3] tensor "b" in the first.
inline void write_grid(const TempDir& directory) {
  directory.write(dcp_name(0), sharded_file({{"w", {6, 8}, {0, 0}, {3, 4}}, {"b", {3}, {0}, {3}, 500}}));
  directory.write(dcp_name(1), sharded_file({{"w", {6, 8}, {0, 4}, {3, 4}}}));
  directory.write(dcp_name(2), sharded_file({{"w", {6, 8}, {3, 0}, {3, 4}}}));
  directory.write(dcp_name(3), sharded_file({{"w", {6, 8}, {3, 4}, {3, 4}}}));
}

} // namespace tieshard::testing
