#include "tieshard/core/doctor/value_check.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard {
namespace {

using ::testing::AllOf;
using testing::bytes_of;
using testing::CheckpointFixture;
using testing::counting;
using testing::FixtureTensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// What the scan says of all tensors of `model`, in pieces of `buffer` bytes.
std::vector<Diagnostic> scan(const CheckpointFixture& model,
                             std::uint64_t buffer = 4096,
                             int threads = 2,
                             std::optional<DType> loaded_as = std::nullopt) {
  const Checkpoint checkpoint = model.open();
  std::vector<CheckedTensor> tensors;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    tensors.push_back({.stored = &tensor, .read_as = tensor.dtype, .loaded_as = loaded_as.value_or(tensor.dtype)});
  }
  FindingList findings;
  check_values(checkpoint, tensors, {.threads = threads, .buffer_bytes = buffer}, findings);
  return findings.sorted();
}

FixtureTensor with_bytes(const std::string& name, DType dtype, const Shape& shape, std::vector<std::byte> bytes) {
  return {.name = name, .dtype = dtype, .shape = shape, .bytes = std::move(bytes)};
}

TEST(ValueCheck, SaysNothingOfFiniteValues) {
  CheckpointFixture model;
  model.write({counting("a", {300, 40}),
               with_bytes("lowest", DType::kF16, {2}, bytes_of<std::uint16_t>({0x7BFF, 0xFBFF})),
               with_bytes("bits", DType::kU8, {4}, bytes_of<std::uint32_t>({0xFFFFFFFF})),
               counting("nothing", {0, 4})});
  EXPECT_THAT(scan(model), IsEmpty());
}

TEST(ValueCheck, NamesTheFirstBadElementInEveryWideFloat) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  CheckpointFixture model;
  model.write({with_bytes("half", DType::kF16, {2, 2}, bytes_of<std::uint16_t>({0, 0, 0x7C00, 0x7C01})),
               with_bytes("brain", DType::kBF16, {3}, bytes_of<std::uint16_t>({0, 0xFF80, 0x7FC0})),
               with_bytes("single", DType::kF32, {1, 3}, bytes_of<float>({1, 2, -infinity})),
               with_bytes("double", DType::kF64, {2}, bytes_of<double>({nan, nan}))});
  const std::vector<Diagnostic> findings = scan(model);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, Code::kNotFinite);
  EXPECT_EQ(findings[0].level, Level::kWarning);
  EXPECT_THAT(findings[0].where, HasSubstr("model.safetensors: half"));
  EXPECT_THAT(findings[0].why,
              AllOf(HasSubstr("half[1, 0] = infinity"),
                    HasSubstr("brain[1] = infinity"),
                    HasSubstr("single[0, 2] = infinity"),
                    HasSubstr("double[0] = NaN")));
}

TEST(ValueCheck, FindsTheFirstOfSeveralWhateverTheOrderOfTheThreads) {
  std::vector<float> values(100'000, 1.0F);
  values[70'001] = std::numeric_limits<float>::quiet_NaN();
  values[99'999] = std::numeric_limits<float>::quiet_NaN();
  CheckpointFixture model;
  model.write({with_bytes("w", DType::kF32, {1000, 100}, bytes_of(values))});
  for (const std::uint64_t buffer : {4096, 65536, 1 << 20}) {
    const std::vector<Diagnostic> findings = scan(model, buffer, 4);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_THAT(findings[0].why, HasSubstr("w[700, 1] = NaN")) << buffer;
  }
}

TEST(ValueCheck, LooksAtWhatALoadMakesOfTheValues) {
  CheckpointFixture model;
  model.write({with_bytes("w", DType::kF32, {3}, bytes_of<float>({1, 65504, 70000}))});
  EXPECT_THAT(scan(model), IsEmpty());
  EXPECT_THAT(scan(model, 4096, 1, DType::kBF16), IsEmpty());
  const std::vector<Diagnostic> findings = scan(model, 4096, 1, DType::kF16);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].why, HasSubstr("w[2] = infinity"));
}

TEST(ValueCheck, KnowsTheNanOfNarrowFloats) {
  CheckpointFixture model;
  model.write({with_bytes("w", DType::kF8E4M3, {3}, bytes_of<std::uint8_t>({0x7E, 0xFF, 0x00}))});
  const std::vector<Diagnostic> findings = scan(model, 4096, 1, DType::kF32);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].why, HasSubstr("w[1] = NaN"));
}

/// A sparse file: `hole` bytes of zeros that are stored nowhere, between two values.
void write_sparse(const std::filesystem::path& path, std::uint64_t hole, float first, float last) {
  const std::uint64_t bytes = hole + 8;
  Json header;
  header["w"] = {{"dtype", "F32"}, {"shape", {bytes / 4}}, {"data_offsets", {0, bytes}}};
  std::string text = header.dump();
  text.resize((text.size() + 3) / 4 * 4 + 1, ' '); // no element is aligned
  const std::uint64_t length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << text;
  out.write(reinterpret_cast<const char*>(&first), 4);
  out.seekp(static_cast<std::streamoff>(hole), std::ios::cur);
  out.write(reinterpret_cast<const char*>(&last), 4);
}

TEST(ValueCheck, SeesTheValuesOnBothSidesOfAHole) {
  constexpr std::uint64_t kHole = std::uint64_t{1} << 33U;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CheckpointFixture model;
  write_sparse(model.path() / "model.safetensors", kHole, 1.0F, nan);
  const std::vector<Diagnostic> last = scan(model);
  ASSERT_EQ(last.size(), 1U);
  EXPECT_THAT(last[0].why, HasSubstr("w[" + std::to_string(kHole / 4 + 1) + "] = NaN"));
  write_sparse(model.path() / "model.safetensors", kHole, nan, nan);
  EXPECT_THAT(scan(model).at(0).why, HasSubstr("w[0] = NaN"));
  write_sparse(model.path() / "model.safetensors", kHole, 1.0F, 2.0F);
  EXPECT_THAT(scan(model), IsEmpty());
}

TEST(ValueCheck, NamesAFewOfManyTensors) {
  CheckpointFixture model;
  std::vector<FixtureTensor> tensors;
  for (int i = 100; i < 130; ++i) {
    tensors.push_back(with_bytes("w" + std::to_string(i), DType::kBF16, {1}, bytes_of<std::uint16_t>({0x7FC0})));
  }
  model.write(tensors);
  const std::vector<Diagnostic> findings = scan(model);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].why, AllOf(HasSubstr("w100[0] = NaN"), HasSubstr("and 22 more"), Not(HasSubstr("w129"))));
}

std::vector<Diagnostic> scan_within(const CheckpointFixture& model,
                                    std::uint64_t budget,
                                    ValueCheckCount* count = nullptr) {
  const Checkpoint checkpoint = model.open();
  std::vector<CheckedTensor> tensors;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    tensors.push_back({.stored = &tensor, .read_as = tensor.dtype, .loaded_as = tensor.dtype});
  }
  FindingList findings;
  const ValueCheckCount got = check_values(checkpoint, tensors, {.budget = budget}, findings);
  if (count != nullptr) {
    *count = got;
  }
  return findings.sorted();
}

TEST(ValueCheck, NamesWeightsThatAreZerosAloneAndNoBiases) {
  CheckpointFixture model;
  model.write({counting("a.weight", {4, 4}),
               testing::zeros("b.weight", DType::kBF16, {64, 70}),
               testing::zeros("c.norm", DType::kF32, {3}),
               testing::zeros("d.bias", DType::kF32, {3}),
               testing::zeros("e.down_proj_bias", DType::kF32, {3, 3}),
               with_bytes("f.weight", DType::kF32, {3}, bytes_of<float>({0, 0, -0.0F}))});
  const std::vector<Diagnostic> findings = scan(model);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, Code::kAllZero);
  EXPECT_EQ(findings[0].level, Level::kWarning);
  EXPECT_EQ(findings[0].where, "model.safetensors: b.weight");
  EXPECT_EQ(findings[0].why, "expected values, got zeros in b.weight, c.norm");
}

TEST(ValueCheck, AHoleIsZerosThatNobodyWrote) {
  CheckpointFixture model;
  model.write({counting("a.weight", {4}), testing::zeros("z.weight", DType::kF32, {1 << 20})});
  const std::string file = (std::filesystem::path(model.path()) / "model.safetensors").string();
  const std::uint64_t size = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, size - (std::uint64_t{3} << 20)); // the tail is written anew, as a hole
  std::filesystem::resize_file(file, size);
  const std::vector<Diagnostic> findings = scan(model);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].why, HasSubstr("zeros in z.weight"));
}

TEST(ValueCheck, ABudgetGoesToSmallTensorsFirstAndToAPartOfEveryOther) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> early(10'000, 1.0F);
  std::vector<float> late(10'000, 1.0F);
  early[10] = nan;
  late[9'000] = nan;
  CheckpointFixture model;
  model.write({with_bytes("early", DType::kF32, {100, 100}, bytes_of(early)),
               with_bytes("late", DType::kF32, {100, 100}, bytes_of(late)),
               testing::zeros("zero", DType::kF32, {100, 100}),
               with_bytes("norm", DType::kF32, {3}, bytes_of<float>({1, nan, 1}))});
  ValueCheckCount count;
  const std::vector<Diagnostic> findings = scan_within(model, 24'012, &count);
  ASSERT_EQ(findings.size(), 1U) << "a tensor that was not looked at whole is not said to be zeros";
  EXPECT_THAT(findings[0].why, AllOf(HasSubstr("norm[1]"), HasSubstr("early[0, 10]"), Not(HasSubstr("late"))));
  EXPECT_EQ(count.looked_at, 24'012U);
  EXPECT_EQ(count.not_read, 3 * 40'000U + 12 - 24'012);
  EXPECT_EQ(scan_within(model, 1 << 20, &count).size(), 2U);
  EXPECT_EQ(count.not_read, 0U);
}

} // namespace
} // namespace tieshard
