#include "tieshard/core/doctor/doctor.h"

#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard {
namespace {

using testing::bytes_of;
using testing::CheckpointFixture;
using testing::counting;
using ::testing::ElementsAre;
using testing::FixtureTensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::tiny_llama_config;
using testing::tiny_llama_tensors;

const std::string kTied = testing::tied_config();
const std::string kNorm = "model.norm.weight";

std::vector<std::string> codes(const DoctorReport& report) {
  std::vector<std::string> codes;
  for (const Diagnostic& finding : report.findings) {
    codes.emplace_back(id(finding.code));
  }
  return codes;
}

void overwrite(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(Doctor, FindsNothingInASoundCheckpointAndSaysWhatItIs) {
  CheckpointFixture model(kTied);
  model.write(tiny_llama_tensors());
  const DoctorReport report = diagnose(model.path(), {.ranks = 2});
  EXPECT_EQ(report.verdict(), Verdict::kOk);
  EXPECT_THAT(report.findings, IsEmpty());
  EXPECT_EQ(report.family, "llama");
  EXPECT_EQ(report.architecture, "LlamaForCausalLM");
  EXPECT_EQ(report.files, 1U);
  EXPECT_EQ(report.tensors, 11U);
  EXPECT_EQ(report.parameters, 196);
  ASSERT_EQ(report.ties.size(), 1U);
  EXPECT_EQ(report.ties[0].canonical, "model.embed_tokens.weight");
  EXPECT_EQ(report.ties[0].aliases[0].name, "lm_head.weight");
}

TEST(Doctor, CountsWhatEachKindOfRankHoldsAndReads) {
  CheckpointFixture model(kTied);
  model.write(tiny_llama_tensors());
  for (const std::int64_t ranks : {1, 2, 3, 5, 64}) {
    for (const ShardDimPolicy policy : {ShardDimPolicy::kLast, ShardDimPolicy::kFirst}) {
      const DoctorReport report = diagnose(model.path(), {.ranks = ranks, .policy = policy});
      std::int64_t next = 0;
      std::int64_t elements = 0;
      std::uint64_t read = 0;
      for (const RankBytes& rank : report.ranks) {
        EXPECT_EQ(rank.first, next);
        next = rank.last + 1;
        elements += rank.elements * (rank.last - rank.first + 1);
        read += rank.read_bytes * static_cast<std::uint64_t>(rank.last - rank.first + 1);
        EXPECT_EQ(rank.memory_bytes, 4U * static_cast<std::uint64_t>(rank.elements)); // F32, as stored
      }
      EXPECT_EQ(next, ranks);
      EXPECT_EQ(elements, 196) << ranks;
      EXPECT_EQ(read, 784U) << ranks;
    }
  }
  const DoctorReport half = diagnose(model.path(), {.ranks = 2, .param_dtype = DType::kBF16});
  EXPECT_EQ(half.ranks[0].memory_bytes, 196U);
  EXPECT_EQ(half.ranks[0].read_bytes, 392U);
}

TEST(Doctor, NamesEveryBrokenShardAtOnce) {
  CheckpointFixture model(kTied);
  model.write({counting("a", {2})}, {}, "model-00001-of-00002.safetensors");
  model.write({counting("b", {2})}, {}, "model-00002-of-00002.safetensors");
  model.write_index();
  overwrite(model.path() / "model-00001-of-00002.safetensors", "");
  overwrite(model.path() / "model-00002-of-00002.safetensors", "<html>");
  const DoctorReport report = diagnose(model.path());
  EXPECT_EQ(report.verdict(), Verdict::kRefuse);
  EXPECT_THAT(codes(report), ElementsAre("file-empty", "not-safetensors"));
}

TEST(Doctor, GoesOnFromABrokenConfigToBrokenWeights) {
  CheckpointFixture model("{");
  overwrite(model.path() / "model.safetensors", "");
  EXPECT_THAT(codes(diagnose(model.path())), ElementsAre("config-malformed", "file-empty"));
}

TEST(Doctor, GoesOnFromBrokenWeightsToAConfigWithoutItsFields) {
  CheckpointFixture model(R"({"model_type": "llama"})");
  overwrite(model.path() / "model.safetensors", "");
  EXPECT_THAT(codes(diagnose(model.path())), ElementsAre("file-empty", "config-missing-key"));
}

TEST(Doctor, LooksAtValuesAlsoWhenParametersAreMissing) {
  CheckpointFixture model(kTied);
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  tensors.back().bytes = bytes_of<float>({0, std::numeric_limits<float>::infinity(), 2, 3});
  tensors.erase(tensors.begin() + 1);
  model.write(tensors);
  const DoctorReport report = diagnose(model.path(), {.ranks = 2});
  EXPECT_THAT(codes(report), ElementsAre("missing-parameter", "not-finite"));
  EXPECT_THAT(report.ranks, IsEmpty());
}

TEST(Doctor, RefusesAFlagAndStillChecksTheFiles) {
  CheckpointFixture model(kTied);
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  tensors.push_back(counting("stray.weight", {2}));
  model.write(tensors);
  const DoctorReport report = diagnose(model.path(), {.ranks = 2, .dims = {{"lm_head.weight", 0}}});
  EXPECT_EQ(report.verdict(), Verdict::kRefuse);
  EXPECT_THAT(codes(report), ElementsAre("tied-weight-on-vocab", "unused-tensor"));
  EXPECT_EQ(report.findings[0].level, Level::kError);
}

TEST(Doctor, RefusesALoadThatNeedsMoreMemoryThanItMay) {
  CheckpointFixture model(kTied);
  model.write(tiny_llama_tensors());
  EXPECT_THAT(codes(diagnose(model.path(), {.read_buffer = 4096, .host_ram = 4096})), ElementsAre("host-memory"));
  EXPECT_THAT(codes(diagnose(model.path(), {.read_buffer = 4096, .host_ram = 64 << 20})), IsEmpty());
}

TEST(Doctor, WarnsOfWhatTheLoaderWarnsOf) {
  CheckpointFixture model(kTied);
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  tensors.push_back(counting("stray.weight", {2}));
  model.write(tensors);
  const DoctorReport report = diagnose(model.path(), {.ranks = 2});
  EXPECT_EQ(report.verdict(), Verdict::kWarn);
  ASSERT_THAT(codes(report), ElementsAre("unused-tensor"));
  EXPECT_THAT(report.findings[0].where, HasSubstr("stray.weight"));
}

TEST(Doctor, SaysThatADirectoryIsNotThere) {
  EXPECT_THAT(codes(diagnose("/no/such/directory")), ElementsAre("directory-not-found"));
}

TEST(Doctor, SpellsItsVerdicts) {
  EXPECT_EQ(id(Verdict::kOk), "ok");
  EXPECT_EQ(id(Verdict::kWarn), "warn");
  EXPECT_EQ(id(Verdict::kRefuse), "refuse");
}

TEST(Doctor, ShowsEveryKindOfWhatTheLoaderRefusesAndItsFirstOneFirst) {
  CheckpointFixture model(kTied);
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  tensors.pop_back(); // the norm is missing
  tensors[1] = counting(tensors[1].name, {4, 5});
  tensors[2] = testing::zeros(tensors[2].name, DType::kI8, {4, 4});
  model.write(tensors);
  const DoctorReport report = diagnose(model.path(), {.ranks = 2});
  EXPECT_THAT(codes(report), ElementsAre("dtype-not-loadable", "missing-parameter", "shape-mismatch"));
}

} // namespace
} // namespace tieshard
