#include "tieshard/runtime/state/export_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/diagnostics.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

ShardPlan plan_of(const Checkpoint& checkpoint, std::int64_t ranks = 2) {
  const ParameterTable table = require_family(checkpoint.config()).table(checkpoint.config());
  return ShardPlan::build(table, TieRegistry::of(checkpoint, table), ranks);
}

TEST(ExportLayout, HoldsEachCanonicalParameterOnceAndNoAlias) {
  const Checkpoint source = Checkpoint::open(write_tiny_llama("model", {.head = StoredHead::kEqual}));
  const ShardPlan plan = plan_of(source);
  for (const std::uint64_t limit : {std::uint64_t{1} << 40, std::uint64_t{3000}, std::uint64_t{1}}) {
    std::vector<std::string> names;
    for (const ExportFile& file : layout_export(plan, source, limit)) {
      for (const TensorEntry& tensor : file.layout.header.tensors) {
        names.push_back(tensor.name);
      }
    }
    std::vector<std::string> expected;
    for (const ShardedParameter& parameter : plan.parameters()) {
      expected.push_back(parameter.fqn);
    }
    EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(expected)) << limit;
    EXPECT_THAT(names, ::testing::Not(::testing::Contains(kHead))) << limit;
  }
}

TEST(ExportLayout, IsOneFileBelowTheLimitAndNumberedFilesAboveIt) {
  const Checkpoint source = Checkpoint::open(write_tiny_llama("model", {}));
  const ShardPlan plan = plan_of(source);
  const std::vector<ExportFile> one = layout_export(plan, source, std::uint64_t{1} << 40);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one.front().name, "model.safetensors");
  constexpr std::uint64_t kLimit = 3000; // the embedding has 37 x 12 x 4 = 1776 bytes
  const std::vector<ExportFile> several = layout_export(plan, source, kLimit);
  ASSERT_GT(several.size(), 2U);
  for (std::size_t index = 0; index < several.size(); ++index) {
    EXPECT_EQ(several[index].name, concat("model-0000", index + 1, "-of-0000", several.size(), ".safetensors"));
    EXPECT_LE(several[index].layout.file_bytes - several[index].layout.prefix.size(), kLimit);
  }
  EXPECT_EQ(layout_export(plan, source, 1).size(), plan.parameters().size()); // never less than a tensor
}

TEST(ExportLayout, KeepsTheDtypeThatTheSourceStores) {
  CheckpointFixture fixture(tiny_llama_config("\"tie_word_embeddings\": true,"));
  const Checkpoint empty = fixture.write({}).open();
  std::vector<FixtureTensor> tensors;
  for (const ParameterInfo& info : require_family(empty.config()).table(empty.config())) {
    if (info.fqn != kEmbed) { // stored under the alias only
      const FixtureTensor tensor = counting(info.fqn, info.shape);
      tensors.push_back(info.fqn == "model.norm.weight" ? tensor : as_bf16(tensor));
    }
  }
  const Checkpoint source = fixture.write(tensors).open();
  const std::vector<ExportFile> files = layout_export(plan_of(source), source, std::uint64_t{1} << 40);
  ASSERT_EQ(files.size(), 1U);
  for (const TensorEntry& tensor : files.front().layout.header.tensors) {
    EXPECT_EQ(tensor.dtype, tensor.name == "model.norm.weight" ? DType::kF32 : DType::kBF16) << tensor.name;
  }
}

TEST(ExportIndex, MapsEachTensorToItsFileAndSumsTheirBytes) {
  const Checkpoint source = Checkpoint::open(write_tiny_llama("model", {}));
  const ShardPlan plan = plan_of(source);
  const std::vector<ExportFile> files = layout_export(plan, source, 3000);
  const Json index = Json::parse(export_index(files));
  EXPECT_EQ(index.at("metadata").at("total_size").get<std::int64_t>(), 4 * plan.total_numel());
  EXPECT_EQ(index.at("weight_map").size(), plan.parameters().size());
  for (const ExportFile& file : files) {
    for (const TensorEntry& tensor : file.layout.header.tensors) {
      EXPECT_EQ(index.at("weight_map").at(tensor.name), file.name);
    }
  }
}

struct FlagCase {
  const char* name;
  const char* flag;                              ///< put into config.json
  bool stored_apart;                             ///< both names, with different values
  const char* exported;                          ///< the flag of the export; "" when config.json has to stay as it is
  std::map<std::string, std::string> metadata{}; ///< of the weights file
};

class ExportConfig : public ::testing::TestWithParam<FlagCase> {};

TEST_P(ExportConfig, SaysHowTheHeadWasTrained) {
  const FlagCase& test = GetParam();
  CheckpointFixture fixture(tiny_llama_config(test.flag));
  const Checkpoint empty = fixture.write({}).open();
  std::vector<FixtureTensor> tensors;
  for (const ParameterInfo& info : require_family(empty.config()).table(empty.config())) {
    if (info.fqn != kHead || test.stored_apart) {
      tensors.push_back(counting(info.fqn, info.shape, info.fqn == kHead ? 100.0F : 0.0F));
    }
  }
  const Checkpoint source = fixture.write(tensors, test.metadata).open();
  const std::string text = export_config(plan_of(source), source);
  std::ifstream file(fixture.path() / "config.json");
  const std::string before{std::istreambuf_iterator<char>(file), {}};
  if (*test.exported == '\0') {
    EXPECT_EQ(text, before); // byte for byte
  } else {
    Json expected = Json::parse(before);
    expected["tie_word_embeddings"] = std::string(test.exported) == "true";
    EXPECT_EQ(Json::parse(text), expected); // and nothing else
  }
}

INSTANTIATE_TEST_SUITE_P(
    Flags,
    ExportConfig,
    ::testing::Values(FlagCase{"Tied", "\"tie_word_embeddings\": true,", false, ""},
                      FlagCase{"Untied", "\"tie_word_embeddings\": false,", true, ""},
                      FlagCase{"UntiedByAConflict", "\"tie_word_embeddings\": true,", true, "false"},
                      FlagCase{"UntiedByDefault", "", true, ""},
                      FlagCase{"TiedByTheFile", "\"tie_word_embeddings\": false,", false, "true", {{kHead, kEmbed}}},
                      FlagCase{"TiedByTheFileWithoutAFlag", "", false, "true", {{kHead, kEmbed}}}),
    [](const auto& info) { return std::string(info.param.name); });

} // namespace
} // namespace tieshard::testing
