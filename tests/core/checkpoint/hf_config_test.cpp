#include "tieshard/core/checkpoint/hf_config.h"

#include <nlohmann/json.hpp>

#include "tests/core/base/refusal.h"

namespace tieshard {
namespace {

HfConfig parse(const std::string& text) {
  return HfConfig::parse(text, "config.json");
}

template <typename Call>
void expect_refused(Code code, std::vector<std::string> named, Call&& call) {
  named.emplace_back("config.json");
  expect_refusal<InputError>(code, named, call);
}

TEST(HfConfig, ReadsNamesAndDtypeInBothStyles) {
  const HfConfig v5 = parse(R"({"model_type":"llama","architectures":["LlamaForCausalLM","X"],"dtype":"bfloat16"})");
  EXPECT_EQ(v5.model_type(), "llama");
  EXPECT_EQ(v5.architecture(), "LlamaForCausalLM");
  EXPECT_EQ(v5.dtype(), DType::kBF16);
  EXPECT_EQ(v5.where(), "config.json");
  EXPECT_EQ(parse(R"({"torch_dtype":"float32"})").dtype(), DType::kF32);
  EXPECT_EQ(parse(R"({"torch_dtype":"float32","dtype":"float16"})").dtype(), DType::kF16) << "the newer key wins";
  EXPECT_EQ(parse(R"({"text_config":{"torch_dtype":"float16"}})").dtype(), DType::kF16);
}

TEST(HfConfig, AbsentAndNullFieldsAreTheSame) {
  for (const char* text : {"{}", R"({"model_type":null,"architectures":null,"dtype":null,"tie_word_embeddings":null,
                                     "text_config":null,"rope_parameters":null,"rope_scaling":null,"n":null})"}) {
    const HfConfig config = parse(text);
    EXPECT_EQ(config.model_type(), "");
    EXPECT_EQ(config.architecture(), "");
    EXPECT_EQ(config.dtype(), std::nullopt);
    EXPECT_FALSE(config.tie_word_embeddings());
    EXPECT_FALSE(config.has("n"));
    EXPECT_EQ(config.optional_integer("n"), std::nullopt);
    EXPECT_EQ(config.integer_or("n", 7), 7);
    EXPECT_EQ(config.number_or("n", 0.5), 0.5);
    EXPECT_TRUE(config.boolean_or("n", true));
    EXPECT_EQ(config.string_or("n", "x"), "x");
    EXPECT_EQ(config.rope().theta, 10000.0);
    EXPECT_EQ(config.rope().type, "default");
    expect_refused(Code::kConfigMissingKey, {"n"}, [&] { config.integer("n"); });
  }
  EXPECT_EQ(parse(R"({"architectures":[]})").architecture(), "");
  EXPECT_EQ(parse(R"({"dtype":"auto"})").dtype(), std::nullopt);
}

TEST(HfConfig, GivesFieldsOfTheRightType) {
  const HfConfig config = parse(R"({"i":32,"zero":0,"x":1e-5,"b":false,"s":"silu"})");
  EXPECT_EQ(config.integer("i"), 32);
  EXPECT_EQ(config.optional_integer("zero"), 0);
  EXPECT_EQ(config.number_or("x", 1), 1e-5);
  EXPECT_EQ(config.number_or("i", 1), 32.0);
  EXPECT_FALSE(config.boolean_or("b", true));
  EXPECT_EQ(config.string_or("s", ""), "silu");
  EXPECT_TRUE(config.has("b"));
  EXPECT_EQ(config.json().at("i"), 32);
}

TEST(HfConfig, RefusesIntegersThatCannotBeSizes) {
  EXPECT_EQ(parse(R"({"n":1099511627776})").integer("n"), std::int64_t{1} << 40);
  for (const char* value :
       {"-1", "1099511627777", "9223372036854775808", "18446744073709551615", "8.0", "\"8\"", "true", "[]"}) {
    const HfConfig config = parse(std::string("{\"n\":") + value + "}");
    expect_refused(Code::kConfigValue, {"n", value}, [&] { config.integer("n"); });
    expect_refused(Code::kConfigValue, {"n"}, [&] { config.integer_or("n", 1); });
  }
}

TEST(HfConfig, RefusesFieldsOfTheWrongType) {
  const HfConfig config = parse(R"({"s":"x","n":1})");
  expect_refused(Code::kConfigValue, {"s", "number"}, [&] { config.number_or("s", 1); });
  expect_refused(Code::kConfigValue, {"n", "true or false"}, [&] { config.boolean_or("n", true); });
  expect_refused(Code::kConfigValue, {"n", "string"}, [&] { config.string_or("n", ""); });
}

TEST(HfConfig, RefusesHeadFieldsOfTheWrongType) {
  const std::vector<std::pair<const char*, const char*>> texts = {
      {R"({"model_type":1})", "model_type"},
      {R"({"architectures":"LlamaForCausalLM"})", "architectures"},
      {R"({"architectures":[1]})", "architectures"},
      {R"({"dtype":16})", "dtype"},
      {R"({"dtype":"F24"})", "F24"},
      {R"({"torch_dtype":"int8"})", "torch_dtype"},
      {R"({"text_config":{"dtype":"x"}})", "text_config.dtype"},
      {R"({"tie_word_embeddings":"true"})", "tie_word_embeddings"},
      {R"({"text_config":{"tie_word_embeddings":1}})", "text_config.tie_word_embeddings"}};
  for (const auto& [text, name] : texts) {
    SCOPED_TRACE(text);
    expect_refused(Code::kConfigValue, {name}, [&, text = text] { parse(text); });
  }
}

TEST(HfConfig, FindsTheTieFlagAndSaysWhere) {
  const HfConfig top = parse(R"({"tie_word_embeddings":false,"text_config":{"tie_word_embeddings":true}})");
  ASSERT_TRUE(top.tie_word_embeddings());
  EXPECT_FALSE(top.tie_word_embeddings()->value) << "the top level is asked first";
  EXPECT_EQ(top.tie_word_embeddings()->where, "tie_word_embeddings");
  const HfConfig nested = parse(R"({"text_config":{"tie_word_embeddings":true}})");
  ASSERT_TRUE(nested.tie_word_embeddings());
  EXPECT_TRUE(nested.tie_word_embeddings()->value);
  EXPECT_EQ(nested.tie_word_embeddings()->where, "text_config.tie_word_embeddings");
  EXPECT_FALSE(parse(R"({"vision_config":{"tie_word_embeddings":true}})").tie_word_embeddings());
}

TEST(HfConfig, ReadsRotaryParametersOfVersion4) {
  const RopeConfig plain = parse(R"({"rope_theta":500000.0,"rope_scaling":null})").rope();
  EXPECT_EQ(plain.theta, 500000.0);
  EXPECT_EQ(plain.type, "default");
  EXPECT_EQ(plain.factor, 1.0);
  const RopeConfig linear = parse(R"({"rope_theta":20000,"rope_scaling":{"type":"linear","factor":2.0}})").rope();
  EXPECT_EQ(linear.theta, 20000.0);
  EXPECT_EQ(linear.type, "linear");
  EXPECT_EQ(linear.factor, 2.0);
  EXPECT_EQ(parse(R"({"rope_scaling":{"type":"dynamic","rope_type":"linear","factor":2}})").rope().type, "linear");
}

TEST(HfConfig, ReadsRotaryParametersOfVersion5) {
  const RopeConfig rope = parse(R"({"rope_theta":1.0,"rope_parameters":{"rope_type":"llama3","rope_theta":500000.0,
      "factor":32.0,"low_freq_factor":1.5,"high_freq_factor":8.0,"original_max_position_embeddings":8192}})")
                              .rope();
  EXPECT_EQ(rope.type, "llama3");
  EXPECT_EQ(rope.theta, 500000.0) << "the newer place wins";
  EXPECT_EQ(rope.factor, 32.0);
  EXPECT_EQ(rope.low_freq_factor, 1.5);
  EXPECT_EQ(rope.high_freq_factor, 8.0);
  EXPECT_EQ(rope.original_max_position_embeddings, 8192);
}

TEST(HfConfig, RefusesRotaryParametersThatItCannotApply) {
  const std::vector<std::pair<const char*, const char*>> texts = {
      {R"({"rope_theta":"x"})", "rope_theta"},
      {R"({"rope_scaling":2.0})", "rope_scaling"},
      {R"({"rope_scaling":{"factor":"2"}})", "rope_scaling.factor"},
      {R"({"rope_parameters":{"rope_type":3}})", "rope_parameters.rope_type"},
      {R"({"rope_parameters":{"original_max_position_embeddings":-1}})", "original_max_position_embeddings"},
      {R"({"rope_parameters":{"full_attention":{"rope_theta":1.0}}})", "rope_parameters.full_attention"}};
  for (const auto& [text, name] : texts) {
    SCOPED_TRACE(text);
    const HfConfig config = parse(text);
    expect_refused(Code::kConfigValue, {name}, [&] { config.rope(); });
  }
}

TEST(HfConfig, RefusesTextThatIsNoJsonObject) {
  for (const char* text : {"", "{\"a\":", "[]", "\"llama\"", "null"}) {
    SCOPED_TRACE(text);
    expect_refused(Code::kConfigMalformed, {}, [&] { parse(text); });
  }
  expect_refused(Code::kConfigMalformed, {"key a", "json-duplicate-key"}, [] { parse(R"({"a":1,"a":2})"); });
  expect_refused(Code::kConfigMalformed, {"json-not-utf8"}, [] { parse("{\"a\":\"\xff\"}"); });
}

TEST(HfConfig, CopiesShareTheDocument) {
  const HfConfig config = parse(R"({"n":1})");
  const HfConfig copy = config;
  EXPECT_EQ(&copy.json(), &config.json());
}

TEST(HfConfig, RefusesFieldsThatShouldBeObjects) {
  for (const char* key : {"text_config", "quantization_config"}) {
    for (const char* value : {"[1]", "\"mxfp4\"", "7", "true"}) {
      const std::string text = std::string("{\"") + key + "\":" + value + "}";
      expect_refusal<InputError>(
          Code::kConfigValue, {key, "an object", value}, [&text] { HfConfig::parse(text, "config.json"); });
    }
    EXPECT_NO_THROW(HfConfig::parse(std::string("{\"") + key + "\":null}", "config.json"));
  }
}

} // namespace
} // namespace tieshard
