// That the references can tell: a model with one formula wrong is seen to be wrong, by far more than rounding is.

#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "tieshard/core/families/family.h"
#include "tieshard/core/families/gpt2.h"
#include "tieshard/core/families/t5.h"
#include "tieshard/core/ties/resolved_model.h"
#include "tieshard/runtime/load/shard_loader.h"
#include "tieshard/runtime/models/decoder.h"
#include "tieshard/runtime/models/gpt2.h"
#include "tieshard/runtime/models/t5.h"
#include "tieshard/runtime/tensors/module_parameters.h"

#include "tests/parity/reference.h"
#include "tests/support/training.h"

namespace tieshard::testing {
namespace {

template <typename Config>
struct Mistake {
  std::string reference;
  std::string name;
  std::function<void(Config&)> make;
};

/// The difference from the reference's logits of a model that `make` builds, with the reference's weights.
double difference_of(const Reference& reference,
                     const std::function<std::shared_ptr<LanguageModel>(const HfConfig&, bool)>& make) {
  const ResolvedModel resolved = resolve_model(reference.directory(), {});
  const auto model = make(resolved.checkpoint.config(), resolved.ties.is_alias("lm_head.weight"));
  const DeviceMesh mesh;
  const ShardPlan plan = ShardPlan::build(
      parameter_table(*model), resolved.ties, 1, {.policy = ShardDimPolicy::kLast, .dims = {}, .units = {}});
  load_shards(*model, resolved.checkpoint, plan, mesh);
  model->eval();
  return largest_difference(reference.logits_of(*model), reference.tensor("logits"));
}

const at::TensorOptions kMetaFloat = at::TensorOptions().device(at::kMeta).dtype(at::kFloat);

template <typename Config>
void expect_noticed(const Mistake<Config>& mistake,
                    const std::function<Config(const HfConfig&)>& config_of,
                    const std::function<std::shared_ptr<LanguageModel>(const Config&, bool)>& model_of) {
  const Reference reference(mistake.reference);
  const auto difference = [&](bool wrong) {
    return difference_of(reference, [&](const HfConfig& stored, bool tied) {
      Config config = config_of(stored);
      if (wrong) {
        mistake.make(config);
      }
      return model_of(config, tied);
    });
  };
  EXPECT_LE(difference(false), kLogitsTolerance);
  EXPECT_GT(difference(true), 8 * kLogitsTolerance);
}

template <typename Config>
std::string title(const ::testing::TestParamInfo<Mistake<Config>>& info) {
  return info.param.reference + "_" + info.param.name;
}

class WrongDecoder : public ::testing::TestWithParam<Mistake<DecoderConfig>> {};

TEST_P(WrongDecoder, IsNoticed) {
  expect_noticed<DecoderConfig>(
      GetParam(),
      [](const HfConfig& config) { return require_family(config).decoder(config).value(); },
      [](const DecoderConfig& config, bool tied) {
        return std::make_shared<DecoderForCausalLm>(config, tied, kMetaFloat);
      });
}

void windows(DecoderConfig& config, std::int64_t change) {
  for (DecoderLayerConfig& layer : config.layers) {
    layer.window += layer.window > 0 ? change : 0;
  }
}

std::vector<Mistake<DecoderConfig>> decoder_mistakes() {
  using C = DecoderConfig;
  const auto wider = [](C& c) { windows(c, 1); };
  const auto narrower = [](C& c) { windows(c, -1); };
  const auto theta = [](C& c) { c.ropes.front().theta *= 2; };
  return {
      {"llama_tied", "Theta", theta},
      {"llama_tied", "Epsilon", [](C& c) { c.rms_norm_eps = 1e-3; }},
      {"llama_tied", "Scale", [](C& c) { c.attention_scale *= 1.01; }},
      {"llama3_rope", "PlainRope", [](C& c) { c.ropes.front().type = "default"; }},
      {"mistral", "WiderWindow", wider},
      {"mistral", "NarrowerWindow", narrower},
      {"qwen2_tied", "NoBias", [](C& c) { c.query_key_value_bias = false; }},
      {"qwen2_window", "WiderWindow", wider},
      {"qwen2_window", "EveryLayer", [](C& c) { c.layers.front().window = c.layers.back().window; }},
      {"qwen2_moe", "NoBias", [](C& c) { c.query_key_value_bias = false; }},
      {"qwen2_moe", "NoSharedExpert", [](C& c) { c.experts->shared_intermediate_size = 0; }},
      {"qwen2_moe", "Renormalised", [](C& c) { c.experts->renormalise = true; }},
      {"qwen2_moe", "WiderWindow", wider},
      {"qwen2_moe", "NoWindow", [](C& c) { c.layers.front().window = 0; }},
      {"qwen2_moe", "EveryLayer", [](C& c) { c.layers.back().window = c.layers.front().window; }},
      {"qwen2_moe_tied", "NotRenormalised", [](C& c) { c.experts->renormalise = false; }},
      {"qwen2_moe_tied", "OneExpert", [](C& c) { c.experts->chosen = 1; }},
      {"qwen3_tied", "NoNorms", [](C& c) { c.query_key_norms = false; }},
      {"qwen3_moe", "NotRenormalised", [](C& c) { c.experts->renormalise = false; }},
      {"qwen3_moe", "OneExpert", [](C& c) { c.experts->chosen = 1; }},
      {"qwen3_moe_unnormalised", "Renormalised", [](C& c) { c.experts->renormalise = true; }},
      {"mixtral", "NotRenormalised", [](C& c) { c.experts->renormalise = false; }},
      {"phi3_tied", "WholeHeadTurns", [](C& c) { c.ropes.front().partial_rotary_factor = 1.0; }},
      {"phi3_tied", "WiderWindow", wider},
      {"gemma_tied", "PlainNorm", [](C& c) { c.norm_scale = NormScale::kWeight; }},
      {"gemma_tied", "UnscaledEmbedding", [](C& c) { c.embedding_scale = 1.0; }},
      {"gemma_tied", "Silu", [](C& c) { c.activation = GateActivation::kSilu; }},
      {"gemma_tied", "ExactGelu", [](C& c) { c.activation = GateActivation::kGeluErf; }},
      {"gemma2", "NoScoreCap", [](C& c) { c.attention_softcap = 0; }},
      {"gemma2", "NoLogitCap", [](C& c) { c.logits_softcap = 0; }},
      {"gemma2", "ScaleOfTheHead", [](C& c) { c.attention_scale = std::pow(static_cast<double>(c.head_dim), -0.5); }},
      {"gemma2", "WiderWindow", wider},
      {"gemma2", "OtherLayersSlide", [](C& c) { std::swap(c.layers[0], c.layers[1]); }},
      {"gemma3_text", "LocalThetaEverywhere", [](C& c) { c.layers[1].rope = c.layers[0].rope; }},
      {"gemma3_text", "NoNorms", [](C& c) { c.query_key_norms = false; }},
      {"gemma3_text", "NarrowerWindow", narrower},
      {"gpt_oss_untied", "NoSinks", [](C& c) { c.sinks = false; }},
      {"gpt_oss_untied", "NoClamp", [](C& c) { c.experts->swiglu_limit = std::numeric_limits<double>::infinity(); }},
      {"gpt_oss_untied", "WiderWindow", wider},
      {"gpt_oss_untied", "NarrowerWindow", narrower},
      {"gpt_oss_untied", "Truncated", [](C& c) { c.ropes.front().truncate = true; }},
      {"gpt_oss_untied", "YarnWithoutItsFactor", [](C& c) { c.ropes.front().attention_factor = 1.0; }},
      {"gpt_oss_tied", "Theta", theta},
  };
}

INSTANTIATE_TEST_SUITE_P(Formulas, WrongDecoder, ::testing::ValuesIn(decoder_mistakes()), title<DecoderConfig>);

class WrongGpt2 : public ::testing::TestWithParam<Mistake<Gpt2Config>> {};

TEST_P(WrongGpt2, IsNoticed) {
  expect_noticed<Gpt2Config>(GetParam(), Gpt2Config::from, [](const Gpt2Config& config, bool tied) {
    return std::make_shared<Gpt2ForCausalLm>(config, tied, kMetaFloat);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Formulas,
    WrongGpt2,
    ::testing::Values(Mistake<Gpt2Config>{"gpt2_tied", "ExactGelu", [](Gpt2Config& c) { c.tanh_gelu = false; }},
                      Mistake<Gpt2Config>{"gpt2_tied", "Unscaled", [](Gpt2Config& c) { c.scale_attention = false; }},
                      Mistake<Gpt2Config>{"gpt2_tied", "ByLayer", [](Gpt2Config& c) { c.scale_by_layer = true; }}),
    title<Gpt2Config>);

class WrongT5 : public ::testing::TestWithParam<Mistake<T5Config>> {};

TEST_P(WrongT5, IsNoticed) {
  expect_noticed<T5Config>(GetParam(), T5Config::from, [](const T5Config& config, bool tied) {
    return std::make_shared<T5ForConditionalGeneration>(config, tied, kMetaFloat);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Formulas,
    WrongT5,
    ::testing::Values(Mistake<T5Config>{"t5_tied", "UnscaledHead", [](T5Config& c) { c.scale_head = false; }},
                      Mistake<T5Config>{"t5_tied", "LongerDistance", [](T5Config& c) { c.position_distance += 1; }},
                      Mistake<T5Config>{"t5_gated", "Silu", [](T5Config& c) { c.activation = T5Activation::kSilu; }},
                      Mistake<T5Config>{
                          "t5_gated", "ExactGelu", [](T5Config& c) { c.activation = T5Activation::kGeluErf; }}),
    title<T5Config>);

} // namespace
} // namespace tieshard::testing
