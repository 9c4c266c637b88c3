#include "tieshard/core/checkpoint/safetensors_writer.h"

#include <limits>

#include "tieshard/core/checkpoint/safetensors_file.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/checkpoint/checkpoint_files.h"

namespace tieshard {
namespace {

std::vector<TensorSpec> some_tensors() {
  return {{.name = "scale", .dtype = DType::kF32, .shape = {}},
          {.name = "b", .dtype = DType::kBF16, .shape = {3}},
          {.name = "a", .dtype = DType::kBF16, .shape = {2, 2}},
          {.name = "empty", .dtype = DType::kF32, .shape = {0, 4}},
          {.name = "packed", .dtype = DType::kF4, .shape = {6}},
          {.name = "ids", .dtype = DType::kI64, .shape = {1}}};
}

/// Every tensor as a run of one byte: the number of its letters.
std::vector<std::byte> content(const TensorEntry& entry) {
  return std::vector<std::byte>(entry.end - entry.begin, static_cast<std::byte>(entry.name.size()));
}

void write(const std::filesystem::path& path, const SafetensorsLayout& layout) {
  std::vector<std::byte> bytes;
  write_safetensors(path, layout, [&bytes](const TensorEntry& entry) -> std::span<const std::byte> {
    bytes = content(entry);
    return bytes;
  });
}

TEST(SafetensorsLayout, OrdersByFallingDtypeThenName) {
  const SafetensorsLayout layout = layout_safetensors(some_tensors(), {});
  std::vector<std::string> names;
  for (const TensorEntry& entry : layout.header.tensors) {
    names.push_back(entry.name);
  }
  EXPECT_THAT(names, testing::ElementsAre("ids", "empty", "scale", "a", "b", "packed"));
}

TEST(SafetensorsLayout, IsTheSameWhateverTheOrderOfItsInput) {
  std::vector<TensorSpec> reversed = some_tensors();
  std::ranges::reverse(reversed);
  EXPECT_EQ(layout_safetensors(some_tensors(), {}).prefix, layout_safetensors(reversed, {}).prefix);
}

TEST(SafetensorsLayout, WritesTheBytesThatTheLibraryWrites) {
  // What safetensors 0.8 saves for {"w": float32 [2, 1], "b": bfloat16 []} with metadata {"format": "pt"}.
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  const SafetensorsLayout layout = layout_safetensors(
      {{.name = "b", .dtype = DType::kBF16, .shape = {}}, {.name = "w", .dtype = DType::kF32, .shape = {2, 1}}},
      {{"format", "pt"}});
  EXPECT_EQ(layout.prefix, length_prefix(header.size() + padding.size()) + header + padding);
  EXPECT_EQ(layout.file_bytes, layout.prefix.size() + 10);
}

TEST(SafetensorsLayout, AlignsTheDataToEightBytes) {
  for (std::size_t letters = 1; letters <= 16; ++letters) {
    const SafetensorsLayout layout =
        layout_safetensors({{.name = std::string(letters, 'n'), .dtype = DType::kU8, .shape = {1}}}, {});
    EXPECT_EQ(layout.header.data_start % 8, 0U) << letters;
    EXPECT_EQ(layout.header.data_start, layout.prefix.size());
  }
}

TEST(SafetensorsLayout, OffsetsCountFromTheStartOfTheFile) {
  const SafetensorsLayout layout = layout_safetensors(some_tensors(), {});
  EXPECT_EQ(layout.offset_of("ids"), layout.header.data_start);
  EXPECT_EQ(layout.offset_of("a"), layout.header.data_start + 8 + 4);
  expect_refusal<InternalError>(Code::kBug, {"absent"}, [&] { layout.offset_of("absent"); });
}

TEST(SafetensorsLayout, RefusesANameThatOccursTwice) {
  expect_refusal<UsageError>(Code::kDuplicateTensorName, {"w"}, [] {
    layout_safetensors(
        {{.name = "w", .dtype = DType::kF32, .shape = {1}}, {.name = "w", .dtype = DType::kBF16, .shape = {2}}}, {});
  });
}

TEST(SafetensorsLayout, RefusesTheNameOfTheMetadata) {
  expect_refusal<UsageError>(Code::kBadEntry, {"__metadata__"}, [] {
    layout_safetensors({{.name = "__metadata__", .dtype = DType::kF32, .shape = {1}}}, {});
  });
}

TEST(SafetensorsLayout, RefusesTextThatIsNotUtf8) {
  expect_refusal<UsageError>(
      Code::kJsonNotUtf8, {}, [] { layout_safetensors({{.name = "w\xff", .dtype = DType::kF32, .shape = {1}}}, {}); });
  expect_refusal<UsageError>(Code::kJsonNotUtf8, {}, [] { layout_safetensors({}, {{"format", "\xff"}}); });
}

TEST(SafetensorsLayout, RefusesShapesThatCannotBeStored) {
  const auto layout_of = [](DType dtype, Shape shape) {
    return [dtype, shape] { layout_safetensors({{.name = "w", .dtype = dtype, .shape = shape}}, {}); };
  };
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  expect_refusal<UsageError>(Code::kBadShape, {"w", "[-1]"}, layout_of(DType::kF32, {-1}));
  expect_refusal<UsageError>(Code::kSizeOverflow, {"w"}, layout_of(DType::kF32, {kHuge}));
  expect_refusal<UsageError>(Code::kSizeMismatch, {"w", "F4 [3]"}, layout_of(DType::kF4, {3}));
  expect_refusal<UsageError>(Code::kSizeOverflow, {"v"}, [] {
    layout_safetensors({{.name = "u", .dtype = DType::kU8, .shape = {kHuge - 1}},
                        {.name = "v", .dtype = DType::kU8, .shape = {kHuge - 1}},
                        {.name = "w", .dtype = DType::kU8, .shape = {kHuge - 1}}},
                       {});
  });
}

TEST(SafetensorsWriter, ReadsBackAsWritten) {
  const TempDir dir;
  std::vector<TensorSpec> tensors = some_tensors();
  tensors.push_back({.name = "été \"重\"\\\n\x01", .dtype = DType::kU8, .shape = {2}});
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"\"", "\n"}};
  const SafetensorsLayout layout = layout_safetensors(tensors, metadata);
  write(dir / "f", layout);
  const SafetensorsFile file = SafetensorsFile::open(dir / "f");
  EXPECT_EQ(file.size(), layout.file_bytes);
  EXPECT_EQ(file.header().metadata, metadata);
  ASSERT_EQ(file.header().tensors.size(), tensors.size());
  for (const TensorSpec& tensor : tensors) {
    const TensorEntry* entry = file.find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->dtype, tensor.dtype);
    EXPECT_EQ(entry->shape, tensor.shape);
    EXPECT_EQ(file.header().data_start + entry->begin, layout.offset_of(tensor.name));
    std::vector<std::byte> bytes(entry->end - entry->begin);
    file.file().read_at(layout.offset_of(tensor.name), bytes);
    EXPECT_EQ(bytes, content(*entry)) << tensor.name;
  }
}

TEST(SafetensorsWriter, WritesAFileWithoutTensors) {
  const TempDir dir;
  write(dir / "f", layout_safetensors({}, {}));
  EXPECT_EQ(dir.read("f"), length_prefix(8) + "{}      ");
  EXPECT_TRUE(SafetensorsFile::open(dir / "f").header().tensors.empty());
}

TEST(SafetensorsWriter, RefusesTheWrongNumberOfBytesAndLeavesTheOldFile) {
  const TempDir dir;
  dir.write("f", "old");
  const SafetensorsLayout layout = layout_safetensors({{.name = "w", .dtype = DType::kF32, .shape = {2}}}, {});
  const std::vector<std::byte> seven(7);
  expect_refusal<UsageError>(Code::kSizeMismatch, {"w", "8 bytes", "got 7"}, [&] {
    write_safetensors(dir / "f", layout, [&](const TensorEntry&) { return std::span<const std::byte>(seven); });
  });
  EXPECT_EQ(dir.read("f"), "old");
  EXPECT_EQ(dir.names(), std::vector<std::string>{"f"});
}

} // namespace
} // namespace tieshard
