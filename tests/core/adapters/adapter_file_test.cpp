#include "tieshard/core/adapters/adapter_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/adapter_fixture.h"
#include "tests/support/diagnostics.h"

namespace tieshard {
namespace {

using testing::adapter_config;
using testing::CheckpointFixture;
using testing::counting;
using ::testing::ElementsAre;
using testing::expect_refusal;
using testing::FixtureTensor;
using testing::lora_pair;
using ::testing::SizeIs;

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj";

/// The adapter's plan on a tied Llama with one layer, width 4 and vocabulary 6.
LoraPlan plan_for(const LoraConfig& config) {
  CheckpointFixture fixture(testing::tied_config());
  fixture.write(testing::tiny_llama_tensors());
  const ResolvedModel model = resolve_model(fixture.path());
  return plan_lora(config, adaptable_modules(model), model.table, model.ties);
}

/// Opens an adapter with these tensors and matches it.
std::vector<MatchedTensor> match(const std::vector<FixtureTensor>& tensors,
                                 const std::string& config = adapter_config(R"(["q_proj"])")) {
  CheckpointFixture fixture;
  const AdapterFile adapter = AdapterFile::open(testing::write_adapter(fixture, config, tensors));
  std::vector<MatchedTensor> matched = adapter.match(plan_for(adapter.config()));
  for (MatchedTensor& each : matched) {
    each.entry = nullptr; // the file goes with this function
  }
  return matched;
}

std::vector<FixtureTensor> with(std::vector<FixtureTensor> tensors, const std::vector<FixtureTensor>& more) {
  tensors.insert(tensors.end(), more.begin(), more.end());
  return tensors;
}

TEST(AdapterFile, NamesAreThoseOfTheModelWithPeftsPrefix) {
  const std::vector<MatchedTensor> matched = match(lora_pair(kQuery, 4, 4));
  ASSERT_THAT(matched, SizeIs(2));
  EXPECT_EQ(matched[0].tensor.parameter, "model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(matched[0].tensor.stored_name, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
}

TEST(AdapterFile, ReadsATensorAsFloat32) {
  CheckpointFixture fixture;
  const AdapterFile adapter = AdapterFile::open(testing::write_adapter(
      fixture, adapter_config(R"(["q_proj"])"), {testing::as_bf16(counting("a", {2, 2}, 1.0F))}));
  EXPECT_THAT(adapter.read(*adapter.file().find("a")), ElementsAre(1, 2, 3, 4));
}

TEST(AdapterFile, RefusesMissingTensorsAndNamesThem) {
  std::vector<FixtureTensor> half = lora_pair(kQuery, 4, 4);
  half.pop_back();
  expect_refusal([&] { match(half); }, Code::kMissingParameter, {"q_proj.lora_B.weight", "[4, 2]"});
}

TEST(AdapterFile, RefusesTensorsThatNothingWouldUse) {
  expect_refusal([] { match(with(lora_pair(kQuery, 4, 4), lora_pair("model.layers.5.self_attn.q_proj", 4, 4))); },
                 Code::kUnusedTensor,
                 {"model.layers.5.self_attn.q_proj.lora_A.weight", "model.layers.5.self_attn.q_proj.lora_B.weight"});
}

TEST(AdapterFile, RefusesAnotherModelsSizesAndAnotherRank) {
  expect_refusal([] { match(lora_pair(kQuery, 8, 4)); }, Code::kShapeMismatch, {"expected [2, 4], got [2, 8]"});
  expect_refusal([] { match(lora_pair(kQuery, 4, 4), adapter_config(R"(["q_proj"])", "", 3)); },
                 Code::kShapeMismatch,
                 {"expected [3, 4], got [2, 4]", "expected [4, 3], got [4, 2]"});
}

TEST(AdapterFile, RefusesQuantisedTensors) {
  std::vector<FixtureTensor> tensors = lora_pair(kQuery, 4, 4);
  tensors[0] = testing::zeros(tensors[0].name, DType::kI8, {2, 4});
  expect_refusal([&] { match(tensors); }, Code::kDtypeNotLoadable, {"lora_A", "I8"});
}

TEST(AdapterFile, SaysWhatADirectoryLacks) {
  expect_refusal([] { AdapterFile::open("/nowhere/at/all"); }, Code::kDirectoryNotFound, {"/nowhere/at/all"});
  const CheckpointFixture model;
  expect_refusal([&] { AdapterFile::open(model.path()); }, Code::kFileNotFound, {"adapter_config.json"});
  std::ofstream(model.path() / "adapter_config.json") << adapter_config(R"(["q_proj"])");
  expect_refusal([&] { AdapterFile::open(model.path()); }, Code::kNoWeights, {"got none"});
  std::ofstream(model.path() / "adapter_model.bin") << "pickle";
  expect_refusal([&] { AdapterFile::open(model.path()); }, Code::kNoWeights, {"adapter_model.bin", "pickle"});
}

/// B^T of the embedding is A of the head, and A^T is B.
std::vector<FixtureTensor> shared_adapter(float b_of_head) {
  const std::string embed = "base_model.model.model.embed_tokens.";
  std::vector<FixtureTensor> tensors{counting(embed + "lora_embedding_A", {2, 6}),
                                     counting(embed + "lora_embedding_B", {4, 2})};
  std::vector<float> a(8);
  std::vector<float> b(12);
  for (int row = 0; row < 2; ++row) {
    for (int column = 0; column < 4; ++column) {
      a[static_cast<std::size_t>(row * 4 + column)] = static_cast<float>(column * 2 + row);
    }
    for (int token = 0; token < 6; ++token) {
      b[static_cast<std::size_t>(token * 2 + row)] = static_cast<float>(row * 6 + token);
    }
  }
  b.back() += b_of_head;
  tensors.push_back({"base_model.model.lm_head.lora_A.weight", DType::kF32, {2, 4}, testing::bytes_of(a)});
  tensors.push_back({"base_model.model.lm_head.lora_B.weight", DType::kF32, {6, 2}, testing::bytes_of(b)});
  return tensors;
}

TEST(AdapterFile, TheTwoHalvesOfATiedAdapterHaveToBeEqual) {
  const std::string config = adapter_config(R"(["lm_head"])", R"("ensure_weight_tying": true, )");
  EXPECT_THAT(match(shared_adapter(0), config), SizeIs(4));
  expect_refusal(
      [&] { match(shared_adapter(1), config); }, Code::kTieConflict, {"lora_embedding_A", "lm_head.lora_B.weight"});
}

TEST(AdapterFile, TheBasesOwnWeightThatPeftSavesUnderAnAdaptedEmbeddingIsKnown) {
  const std::string config = adapter_config(R"(["lm_head"])", R"("ensure_weight_tying": true, )");
  const std::vector<MatchedTensor> matched = match(
      with(shared_adapter(0), {counting("base_model.model.model.embed_tokens.base_layer.weight", {6, 4})}), config);
  ASSERT_THAT(matched, SizeIs(5));
  EXPECT_EQ(matched[0].tensor.parameter, "model.embed_tokens.weight");
  EXPECT_EQ(matched[0].tensor.role, AdapterTensorRole::kBase);
}

TEST(AdapterFile, AModuleThatIsTrainedWholeAndStoredTwiceWithDifferentValuesIsToldFromAnAdapter) {
  const std::string config =
      adapter_config(R"(["q_proj"])", R"("modules_to_save": ["lm_head"], "ensure_weight_tying": true, )");
  try {
    match(with(lora_pair(kQuery, 4, 4),
               {counting("base_model.model.model.embed_tokens.weight", {6, 4}),
                counting("base_model.model.lm_head.weight", {6, 4}, 1.0F)}),
          config);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostic().code, Code::kTieConflict);
    EXPECT_EQ(error.diagnostic().fix.find("--lora-tied named"), std::string::npos) << error.what();
  }
}

TEST(AdapterFile, TensorsOfTheOtherChoiceForATiedWeightNameTheFlag) {
  CheckpointFixture fixture;
  const AdapterFile adapter = AdapterFile::open(testing::write_adapter(
      fixture, adapter_config(R"(["lm_head"])", R"("ensure_weight_tying": true, )"), shared_adapter(0)));
  LoraConfig config = adapter.config();
  config.tied = TiedTarget::kNamed;
  expect_refusal([&] { adapter.match(plan_for(config)); }, Code::kUnusedTensor, {"embed_tokens", "--lora-tied both"});
}

} // namespace
} // namespace tieshard
