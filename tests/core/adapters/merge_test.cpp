#include "tieshard/core/adapters/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/adapters/adapter_file.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/io/convert.h"

#include "tests/support/adapter_fixture.h"
#include "tests/support/diagnostics.h"

namespace tieshard {
namespace {

using testing::adapter_config;
using testing::CheckpointFixture;
using testing::counting;
using testing::expect_refusal;
using testing::FixtureTensor;
using testing::lora_pair;

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj";

std::vector<float> values_of(const std::filesystem::path& directory, const std::string& name) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const StoredTensor& tensor = *checkpoint.find(name);
  std::vector<std::byte> stored(tensor.bytes);
  checkpoint.files()[tensor.file].file().read_at(tensor.offset, stored);
  std::vector<float> values(static_cast<std::size_t>(numel(tensor.shape)));
  convert(stored.data(), tensor.dtype, reinterpret_cast<std::byte*>(values.data()), DType::kF32, values.size());
  return values;
}

/// W + scaling * B A for counting tensors: W from 0, A from 1, B from -3; rank 2, alpha 6.
std::vector<float> merged_by_hand(std::int64_t out, std::int64_t in) {
  std::vector<float> values;
  for (std::int64_t row = 0; row < out; ++row) {
    for (std::int64_t column = 0; column < in; ++column) {
      double sum = static_cast<double>(row * in + column);
      for (std::int64_t k = 0; k < 2; ++k) {
        sum += 3.0 * static_cast<double>(row * 2 + k - 3) * static_cast<double>(k * in + column + 1);
      }
      values.push_back(static_cast<float>(sum));
    }
  }
  return values;
}

class Merge : public ::testing::Test {
 protected:
  Merge() : base_(testing::tied_config()) {
    base_.write(testing::tiny_llama_tensors());
    std::ofstream(base_.path() / "tokenizer.json") << "{}";
    testing::write_adapter(adapter_, adapter_config(R"(["q_proj"])"), lora_pair(kQuery, 4, 4));
  }

  MergeReport merge() {
    return merge_adapter(base_.path(), adapter_.path(), out());
  }
  std::filesystem::path out() const {
    return base_.path() / "merged";
  }

  CheckpointFixture base_;
  CheckpointFixture adapter_;
};

TEST_F(Merge, AddsTheProductToItsWeightAndLeavesTheOthers) {
  const MergeReport report = merge();
  EXPECT_EQ(report.merged, 1);
  EXPECT_EQ(report.tensors, 11);
  EXPECT_EQ(values_of(out(), std::string(kQuery) + ".weight"), merged_by_hand(4, 4));
  for (const FixtureTensor& tensor : testing::tiny_llama_tensors()) {
    if (!tensor.name.ends_with("q_proj.weight")) {
      EXPECT_EQ(values_of(out(), tensor.name), values_of(base_.path(), tensor.name)) << tensor.name;
    }
  }
  EXPECT_EQ(read_text_file(out() / "config.json"), read_text_file(base_.path() / "config.json"));
  EXPECT_TRUE(std::filesystem::exists(out() / "tokenizer.json"));
}

TEST_F(Merge, SumsInFloat32AndRoundsOnceToTheBasesDtype) {
  std::vector<FixtureTensor> narrow;
  for (const FixtureTensor& tensor : testing::tiny_llama_tensors()) {
    narrow.push_back(testing::as_bf16(tensor));
  }
  base_.write(narrow);
  merge();
  EXPECT_EQ(Checkpoint::open(out()).find(std::string(kQuery) + ".weight")->dtype, DType::kBF16);
  const std::vector<float> exact = merged_by_hand(4, 4);
  std::vector<std::uint16_t> rounded(exact.size());
  convert(reinterpret_cast<const std::byte*>(exact.data()),
          DType::kF32,
          reinterpret_cast<std::byte*>(rounded.data()),
          DType::kBF16,
          exact.size());
  std::vector<float> expected(exact.size());
  convert(reinterpret_cast<const std::byte*>(rounded.data()),
          DType::kBF16,
          reinterpret_cast<std::byte*>(expected.data()),
          DType::kF32,
          exact.size());
  EXPECT_EQ(values_of(out(), std::string(kQuery) + ".weight"), expected);
}

TEST_F(Merge, KeepsSeveralFilesAndTheirIndex) {
  std::filesystem::remove(base_.path() / "model.safetensors");
  std::vector<FixtureTensor> tensors = testing::tiny_llama_tensors();
  CheckpointFixture sharded(testing::tied_config());
  sharded.write({tensors.begin(), tensors.begin() + 3}, {}, "model-00001-of-00002.safetensors");
  sharded.write({tensors.begin() + 3, tensors.end()}, {}, "model-00002-of-00002.safetensors").write_index();
  const MergeReport report = merge_adapter(sharded.path(), adapter_.path(), out());
  EXPECT_EQ(report.files.size(), 2U);
  EXPECT_EQ(Checkpoint::open(out()).tensors().size(), tensors.size());
  EXPECT_EQ(values_of(out(), std::string(kQuery) + ".weight"), merged_by_hand(4, 4));
}

TEST_F(Merge, ReplacesWhatTheAdapterTrainedWhole) {
  CheckpointFixture adapter;
  std::vector<FixtureTensor> tensors = lora_pair(kQuery, 4, 4);
  tensors.push_back(counting("base_model.model.model.norm.weight", {4}, 50.0F));
  tensors.push_back(counting("base_model.model.model.layers.0.input_layernorm.weight", {4}, 60.0F));
  tensors.push_back(counting("base_model.model.model.layers.0.post_attention_layernorm.weight", {4}, 70.0F));
  testing::write_adapter(adapter, adapter_config(R"(["q_proj"])", R"("modules_to_save": ["norm"], )"), tensors);
  EXPECT_EQ(merge_adapter(base_.path(), adapter.path(), out()).replaced, 3);
  EXPECT_THAT(values_of(out(), "model.norm.weight"), ::testing::ElementsAre(50, 51, 52, 53));
}

/// An adapter on embed_tokens, of both uses where `both`.
void write_embedding_adapter(CheckpointFixture& adapter, bool both = true) {
  const std::string embed = "base_model.model.model.embed_tokens.";
  testing::write_adapter(
      adapter,
      adapter_config(R"(["embed_tokens"])", both ? R"("ensure_weight_tying": true, )" : ""),
      {counting(embed + "lora_embedding_A", {2, 6}, 1.0F), counting(embed + "lora_embedding_B", {4, 2}, -3.0F)});
}

/// W + what write_embedding_adapter's adds, for W that counts from `start`.
std::vector<float> embedding_merged_by_hand(float start = 0) {
  std::vector<float> expected;
  for (std::int64_t token = 0; token < 6; ++token) {
    for (std::int64_t hidden = 0; hidden < 4; ++hidden) {
      double sum = static_cast<double>(start) + static_cast<double>(token * 4 + hidden);
      for (std::int64_t k = 0; k < 2; ++k) {
        sum += 3.0 * static_cast<double>(k * 6 + token + 1) * static_cast<double>(hidden * 2 + k - 3);
      }
      expected.push_back(static_cast<float>(sum));
    }
  }
  return expected;
}

std::vector<FixtureTensor> with_head(float start) {
  std::vector<FixtureTensor> tensors = testing::tiny_llama_tensors();
  tensors.push_back(counting("lm_head.weight", {6, 4}, start));
  return tensors;
}

/// Whether config.json of `directory` says that the model is tied.
bool said_tied(const std::filesystem::path& directory) {
  return Checkpoint::open(directory).config().tie_word_embeddings()->value;
}

TEST_F(Merge, ATiedWeightIsMergedOnceAndWrittenOnceUnderItsCanonicalName) {
  write_embedding_adapter(adapter_);
  base_.write(with_head(0));
  EXPECT_EQ(merge().merged, 1);
  EXPECT_EQ(values_of(out(), "model.embed_tokens.weight"), embedding_merged_by_hand());
  EXPECT_EQ(Checkpoint::open(out()).find("lm_head.weight"), nullptr);
  EXPECT_TRUE(said_tied(out()));
}

TEST_F(Merge, TheCopyThatTheCallerChoseIsTheOneThatIsWritten) {
  write_embedding_adapter(adapter_);
  base_.write(with_head(100));
  for (const auto& [choice, start] : {std::pair{OnTieConflict::kCanonical, 0.0F}, {OnTieConflict::kAlias, 100.0F}}) {
    std::filesystem::remove_all(out());
    merge_adapter(base_.path(), adapter_.path(), out(), {.ties = {.on_conflict = choice}});
    const ResolvedModel merged = resolve_model(out()); // without any flag
    EXPECT_EQ(merged.ties.canonical("lm_head.weight"), "model.embed_tokens.weight");
    EXPECT_EQ(merged.checkpoint.find("lm_head.weight"), nullptr);
    EXPECT_EQ(values_of(out(), "model.embed_tokens.weight"), embedding_merged_by_hand(start));
  }
}

TEST_F(Merge, TheChosenCopyMayBeAllThatItsFileHeld) {
  write_embedding_adapter(adapter_);
  std::filesystem::remove(base_.path() / "model.safetensors");
  base_.write(testing::tiny_llama_tensors(), {}, "model-00001-of-00002.safetensors");
  base_.write({counting("lm_head.weight", {6, 4}, 100.0F)}, {}, "model-00002-of-00002.safetensors").write_index();
  const MergeReport canonical = merge_adapter(
      base_.path(), adapter_.path(), base_.path() / "first", {.ties = {.on_conflict = OnTieConflict::kCanonical}});
  EXPECT_EQ(canonical.files, std::vector<std::string>{"model-00001-of-00002.safetensors"});
  EXPECT_EQ(values_of(base_.path() / "first", "model.embed_tokens.weight"), embedding_merged_by_hand());
  merge_adapter(base_.path(), adapter_.path(), out(), {.ties = {.on_conflict = OnTieConflict::kAlias}});
  EXPECT_EQ(values_of(out(), "model.embed_tokens.weight"), embedding_merged_by_hand(100));
}

TEST_F(Merge, UntiedWeightsAreBothThereAndTheConfigurationSaysSo) {
  write_embedding_adapter(adapter_);
  base_.write(with_head(100));
  merge(); // untied, since they differ
  EXPECT_EQ(values_of(out(), "model.embed_tokens.weight"), embedding_merged_by_hand());
  EXPECT_EQ(values_of(out(), "lm_head.weight"), values_of(base_.path(), "lm_head.weight"));
  EXPECT_FALSE(said_tied(out()));
  base_.write(with_head(0)); // equal, and untied by the caller
  std::filesystem::remove_all(out());
  merge_adapter(base_.path(), adapter_.path(), out(), {.ties = {.untied = {"lm_head.weight"}}});
  EXPECT_EQ(values_of(out(), "lm_head.weight"), values_of(base_.path(), "lm_head.weight"));
  EXPECT_FALSE(said_tied(out()));
}

TEST_F(Merge, AnUntiedNameNeedsAStoredValue) {
  expect_refusal([&] { merge_adapter(base_.path(), adapter_.path(), out(), {.ties = {.untied = {"lm_head.weight"}}}); },
                 Code::kMissingParameter,
                 {"lm_head.weight", "--untie lm_head.weight"});
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(Merge, NeedsANameForWhatItWrites) {
  for (const char* name : {"", ".", ".."}) {
    expect_refusal([&] { merge_adapter(base_.path(), adapter_.path(), name, {}); }, Code::kBadFlag, {"OUT"});
  }
}

TEST_F(Merge, ATieThatTheCallerMadeIsSaidByTheConfiguration) {
  CheckpointFixture untied(testing::untied_config());
  untied.write(testing::tiny_llama_tensors());
  merge_adapter(untied.path(),
                adapter_.path(),
                out(),
                {.ties = {.explicit_ties = {{"lm_head.weight", "model.embed_tokens.weight"}}}});
  EXPECT_TRUE(said_tied(out()));
}

TEST_F(Merge, ATieThatNoConfigurationKnowsHasItsValueUnderEachName) {
  const std::string key = "model.layers.0.self_attn.o_proj.weight";
  merge_adapter(
      base_.path(),
      adapter_.path(),
      out(),
      {.ties = {.explicit_ties = {{key, std::string(kQuery) + ".weight"}}, .on_conflict = OnTieConflict::kCanonical}},
      TiedTarget::kBoth);
  EXPECT_EQ(values_of(out(), std::string(kQuery) + ".weight"), merged_by_hand(4, 4));
  EXPECT_EQ(values_of(out(), key), merged_by_hand(4, 4));
}

TEST_F(Merge, TheCallerSaysWhatAnAdapterOnATiedWeightIsFor) {
  write_embedding_adapter(adapter_, /*both=*/false);
  expect_refusal([&] { merge(); }, Code::kTiedTarget, {"--lora-tied both"});
  expect_refusal([&] { merge_adapter(base_.path(), adapter_.path(), out(), {}, TiedTarget::kNamed); },
                 Code::kTiedTarget,
                 {"cannot be merged", "--lora-tied both"});
  merge_adapter(base_.path(), adapter_.path(), out(), {}, TiedTarget::kBoth);
  EXPECT_EQ(values_of(out(), "model.embed_tokens.weight"), embedding_merged_by_hand());
}

TEST_F(Merge, AnAdapterForOneUseOfATiedWeightIsRefused) {
  CheckpointFixture adapter;
  testing::write_adapter(adapter, adapter_config(R"(["lm_head"])"), lora_pair("lm_head", 4, 6));
  expect_refusal([&] { merge_adapter(base_.path(), adapter.path(), out()); },
                 Code::kTiedTarget,
                 {"lm_head", "model.embed_tokens.weight"});
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(Merge, NeverWritesIntoADirectoryThatIsThere) {
  std::filesystem::create_directories(out());
  expect_refusal([&] { merge(); }, Code::kOutputExists, {"merged"});
}

TEST_F(Merge, LeavesNothingBehindWhenItFails) {
  std::vector<FixtureTensor> tensors = lora_pair(kQuery, 4, 4);
  std::vector<float> values(8, std::numeric_limits<float>::infinity());
  tensors[0].bytes = testing::bytes_of(values);
  testing::write_adapter(adapter_, adapter_config(R"(["q_proj"])"), tensors);
  expect_refusal([&] { merge(); }, Code::kNotFinite, {"q_proj.weight"});
  EXPECT_FALSE(std::filesystem::exists(out()));
  for (const auto& entry : std::filesystem::directory_iterator(base_.path())) {
    EXPECT_EQ(entry.path().string().find("staging"), std::string::npos) << entry.path();
  }
}

TEST_F(Merge, AQuantisedWeightIsRefused) {
  std::vector<FixtureTensor> tensors = testing::tiny_llama_tensors();
  tensors[1] = testing::zeros(tensors[1].name, DType::kF8E4M3, {4, 4});
  base_.write(tensors);
  expect_refusal([&] { merge(); }, Code::kDtypeNotLoadable, {"q_proj.weight", "F8_E4M3"});
}

} // namespace
} // namespace tieshard
