#include "tieshard/core/plan/weight_source.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/plan/read_plan.h"

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/diagnostics.h"

namespace tieshard {
namespace {

using ::testing::AllOf;
using testing::CheckpointFixture;
using testing::counting;
using ::testing::ElementsAre;
using testing::expect_refusal;
using testing::FixtureTensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::zeros;

const std::string kFp8Config = R"({"quantization_config": {"quant_method": "fp8"}})";
const std::string kFp8Blocks = R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]}})";
const std::string kMxfp4Config = R"({"quantization_config": {"quant_method": "mxfp4"}})";

ParameterInfo parameter(const std::string& fqn, const Shape& shape, bool stored_transposed = false) {
  static std::uint64_t identity = 0;
  return {.fqn = fqn, .shape = shape, .identity = ++identity, .stored_transposed = stored_transposed};
}

/// A checkpoint, and the plan of a model with the given parameters.
class Case {
 public:
  Case(const std::string& config,
       const ParameterTable& table,
       const std::vector<FixtureTensor>& tensors,
       const std::map<std::string, std::string>& ties = {})
      : fixture_(config),
        checkpoint_(fixture_.write(tensors).open()),
        plan_(ShardPlan::build(table, TieRegistry::of(checkpoint_, table, {.explicit_ties = ties}), 2)) {}

  WeightSources sources(const std::vector<NamedInit>& inits = {}) const {
    return find_weight_sources(checkpoint_, plan_, {.inits = inits});
  }
  ReadPlan reads(std::int64_t rank, const std::vector<NamedInit>& inits = {}) const {
    return build_read_plan(checkpoint_, plan_, rank, {.inits = inits});
  }
  void refuses(Code code, const std::vector<std::string>& parts, const std::vector<NamedInit>& inits = {}) const {
    expect_refusal([&] { sources(inits); }, code, parts);
  }

 private:
  CheckpointFixture fixture_;
  Checkpoint checkpoint_;
  ShardPlan plan_;
};

// --- Transposed.

TEST(WeightSource, TakesATransposedWeightByTheSwappedShape) {
  const Case turned(
      "{}", {parameter("w", {3, 5}, true), parameter("b", {5}, true)}, {counting("w", {5, 3}), counting("b", {5})});
  const WeightSources sources = turned.sources();
  EXPECT_EQ(sources.of_parameter[0].encoding, Encoding::kTransposed);
  EXPECT_EQ(sources.of_parameter[1].encoding, Encoding::kPlain); // a vector has nothing to turn
  const ReadPlan reads = turned.reads(1);
  const auto read = std::ranges::find(reads.reads, "w", &SliceRead::fqn);
  ASSERT_NE(read, reads.reads.end());
  EXPECT_EQ(read->shape, (Shape{3, 5}));
  EXPECT_EQ(read->stored_shape, (Shape{5, 3}));
  EXPECT_EQ(read->local_shape, (Shape{3, 2}));
  EXPECT_EQ(read->chunk, (ChunkRange{3, 2}));
  EXPECT_EQ(read->stored_bytes(), 3U * 2U * 4U);
}

TEST(WeightSource, RefusesATransposedWeightInTheParametersOwnShape) {
  Case("{}", {parameter("w", {3, 5}, true)}, {counting("w", {3, 5})})
      .refuses(Code::kShapeMismatch, {"w: expected [5, 3], stored [3, 5]"});
}

// --- FP8.

TEST(WeightSource, TakesEveryLayoutOfFp8Scales) {
  struct Layout {
    Shape scale;
    ScaleBlock block;
  };
  for (const Layout& layout : {Layout{{}, {8, 6}}, {{1}, {8, 6}}, {{1, 1}, {8, 6}}, {{8}, {1, 6}}, {{8, 1}, {1, 6}}}) {
    const Case stored(kFp8Config,
                      {parameter("l.weight", {8, 6})},
                      {zeros("l.weight", DType::kF8E4M3, {8, 6}), zeros("l.weight_scale", DType::kF32, layout.scale)});
    const WeightSources sources = stored.sources();
    const WeightSource& source = sources.of_parameter[0];
    EXPECT_EQ(source.encoding, Encoding::kFp8);
    ASSERT_NE(source.scales, nullptr);
    EXPECT_EQ(source.scales->name, "l.weight_scale");
    EXPECT_EQ(source.scale_block.rows, layout.block.rows) << to_string(layout.scale);
    EXPECT_EQ(source.scale_block.columns, layout.block.columns) << to_string(layout.scale);
    EXPECT_THAT(sources.unused, IsEmpty());
    EXPECT_THAT(sources.findings, IsEmpty());
  }
}

TEST(WeightSource, TakesUnevenBlocksByTheConfigsBlockSize) {
  const Case blocks(kFp8Blocks,
                    {parameter("l.weight", {9, 6})},
                    {zeros("l.weight", DType::kF8E5M2, {9, 6}), zeros("l.weight_scale_inv", DType::kBF16, {3, 2})});
  const WeightSource source = blocks.sources().of_parameter[0];
  EXPECT_EQ(source.encoding, Encoding::kFp8);
  EXPECT_EQ(source.scale_block.rows, 4);
  EXPECT_EQ(source.scale_block.columns, 4);
  const ReadPlan reads = blocks.reads(0);
  ASSERT_EQ(reads.reads.size(), 1U);
  EXPECT_EQ(reads.reads[0].scale->stored_name, "l.weight_scale_inv");
  EXPECT_EQ(reads.reads[0].scale->shape, (Shape{3, 2}));
  EXPECT_EQ(reads.reads[0].scale->block.rows, 4);
  EXPECT_EQ(reads.reads[0].stored_bytes(), 9U * 3U);
}

Case with_grids(const std::string& config, const std::vector<std::pair<Shape, Shape>>& grids) {
  ParameterTable table;
  std::vector<FixtureTensor> stored;
  for (const auto& [values, scales] : grids) {
    const std::string name = concat("layers.", table.size(), ".weight");
    table.push_back(parameter(name, values));
    stored.push_back(zeros(name, DType::kF8E4M3, values));
    stored.push_back(zeros(name + "_scale_inv", DType::kF32, scales));
  }
  return {config, table, stored};
}

TEST(WeightSource, DerivesTheBlockThatAloneFitsAllGridsAndSaysSo) {
  const Case derived =
      with_grids(kFp8Config, {{{8, 6}, {4, 3}}, {{12, 6}, {6, 3}}, {{2, 2}, {1, 1}}, {{7, 2, 4}, {7, 1, 2}}});
  const WeightSources sources = derived.sources();
  for (const std::size_t i : {0, 1, 3}) {
    EXPECT_EQ(sources.of_parameter[i].scale_block.rows, 2);
    EXPECT_EQ(sources.of_parameter[i].scale_block.columns, 2);
  }
  ASSERT_EQ(sources.findings.size(), 1U);
  EXPECT_EQ(sources.findings[0].code, Code::kScaleBlock);
  EXPECT_EQ(sources.findings[0].level, Level::kNote);
  EXPECT_THAT(sources.findings[0].why, AllOf(HasSubstr("2 rows by 2 columns"), HasSubstr("[4, 3] of [8, 6]")));
  EXPECT_THAT(sources.findings[0].fix, HasSubstr("weight_block_size: [2, 2]"));
}

TEST(WeightSource, NarrowsTheBlockWithEveryGrid) {
  const Case two =
      with_grids(kFp8Config, {{{12, 8}, {3, 1}}, {{16, 8}, {4, 1}}}); // 4 or 5 rows; 4 or 5; no more is known
  two.refuses(Code::kScaleBlock, {"4 to 5 rows by 8 or more columns", "and 1 more", "weight_block_size"});
  const Case three = with_grids(kFp8Config, {{{12, 8}, {3, 1}}, {{16, 8}, {4, 1}}, {{20, 8}, {5, 1}}});
  EXPECT_EQ(three.sources().of_parameter[2].scale_block.rows, 4);
}

TEST(WeightSource, TakesTransformersBlockWhereSeveralFitAndItIsOneOfThem) {
  const Case real = with_grids(kFp8Config, {{{4096, 7168}, {32, 56}}}); // 128 to 132 rows fit
  const WeightSources sources = real.sources();
  EXPECT_EQ(sources.of_parameter[0].scale_block.rows, 128);
  EXPECT_EQ(sources.of_parameter[0].scale_block.columns, 128);
  ASSERT_EQ(sources.findings.size(), 1U);
  EXPECT_THAT(sources.findings[0].why, HasSubstr("of several that fit, transformers' default of 128 rows by 128"));
}

TEST(WeightSource, RefusesGridsThatContradictEachOther) {
  with_grids(kFp8Config, {{{8, 8}, {4, 4}}, {{8, 8}, {2, 2}}}).refuses(Code::kScaleBlock, {"no one block fits"});
  with_grids(kFp8Config, {{{8, 8}, {9, 1}}}).refuses(Code::kShapeMismatch, {"[9, 1]"});
}

TEST(WeightSource, TakesStackedExpertsWithAScaleGridEach) {
  const Case stack(kFp8Blocks,
                   {parameter("experts.down_proj", {3, 8, 6})},
                   {zeros("experts.down_proj", DType::kF8E4M3, {3, 8, 6}),
                    zeros("experts.down_proj_scale_inv", DType::kF32, {3, 2, 2})});
  EXPECT_EQ(stack.sources().of_parameter[0].encoding, Encoding::kFp8);
}

TEST(WeightSource, TakesUnscaledFp8AsAFloatDtype) {
  const Case unscaled("{}", {parameter("w", {4})}, {zeros("w", DType::kF8E4M3, {4})});
  EXPECT_EQ(unscaled.sources().of_parameter[0].encoding, Encoding::kPlain);
}

TEST(WeightSource, RefusesAScaleThatNothingWouldApply) {
  const std::vector<FixtureTensor> fp8 = {zeros("l.weight", DType::kF8E4M3, {4, 4}),
                                          zeros("l.weight_scale_inv", DType::kF32, {1, 1})};
  Case("{}", {parameter("l.weight", {4, 4})}, fp8)
      .refuses(Code::kStrayScale, {"l.weight_scale_inv", "quantization_config"});
  Case(kFp8Config, {parameter("l.weight", {4, 4})}, {counting("l.weight", {4, 4}), counting("l.weight_scale", {1})})
      .refuses(Code::kStrayScale, {"l.weight_scale", "F32", "quantization_config"});
  Case("{}", {parameter("l.weight", {4})}, {zeros("l.weight", DType::kF8E4M3, {4}), counting("l.scale", {1})})
      .refuses(Code::kStrayScale, {"l.scale"});
}

TEST(WeightSource, RefusesFp8WithoutTheScaleThatTheConfigPromises) {
  Case(kFp8Config, {parameter("l.weight", {4, 4})}, {zeros("l.weight", DType::kF8E4M3, {4, 4})})
      .refuses(Code::kScaleMissing, {"l.weight", "l.weight_scale_inv", "quantization_config"});
}

TEST(WeightSource, RefusesScalesOfAnotherShapeNamingBoth) {
  Case(kFp8Blocks,
       {parameter("l.weight", {9, 6})},
       {zeros("l.weight", DType::kF8E4M3, {9, 6}), zeros("l.weight_scale_inv", DType::kF32, {2, 2})})
      .refuses(Code::kShapeMismatch,
               {"l.weight_scale_inv (with l.weight)", "expected [3, 2], stored [2, 2]", "weight_block_size"});
}

TEST(WeightSource, RefusesAGridOfOneScaleWhereTheConfigAsksForMore) {
  Case(kFp8Blocks,
       {parameter("l.weight", {9, 6})},
       {zeros("l.weight", DType::kF8E4M3, {9, 6}), zeros("l.weight_scale_inv", DType::kF32, {1, 1})})
      .refuses(Code::kShapeMismatch, {"l.weight_scale_inv (with l.weight)", "expected [3, 2], stored [1, 1]"});
}

TEST(WeightSource, RefusesABlockSizeThatIsNone) {
  for (const char* size : {"[0, 4]", "[4]", "4", "[4, 1.5]", "[-4, 4]", "\"4x4\""}) {
    Case(concat(R"({"quantization_config": {"weight_block_size": )", size, "}}"),
         {parameter("w", {4})},
         {counting("w", {4})})
        .refuses(Code::kConfigValue, {"weight_block_size", "expected two positive integers"});
  }
}

TEST(WeightSource, NotesScalesOfActivationsAsDropped) {
  const WeightSources sources = Case(kFp8Config,
                                     {parameter("l.weight", {4, 4}), parameter("a.k.weight", {2})},
                                     {zeros("l.weight", DType::kF8E4M3, {4, 4}),
                                      zeros("l.weight_scale", DType::kF32, {}),
                                      zeros("l.input_scale", DType::kF32, {}),
                                      zeros("a.k_scale", DType::kF32, {}),
                                      counting("a.k.weight", {2})})
                                    .sources();
  EXPECT_THAT(sources.unused, ElementsAre("a.k_scale", "l.input_scale"));
  ASSERT_EQ(sources.findings.size(), 1U);
  EXPECT_EQ(sources.findings[0].level, Level::kNote);
  EXPECT_THAT(sources.findings[0].what, HasSubstr("scale of activations is dropped"));
  EXPECT_THAT(sources.findings[0].where, AllOf(HasSubstr("a.k_scale"), HasSubstr("l.input_scale")));
}

// --- MXFP4.

std::vector<FixtureTensor> mxfp4(const std::string& name, const Shape& blocks, const Shape& scales) {
  return {zeros(name + "_blocks", DType::kU8, blocks), zeros(name + "_scales", DType::kU8, scales)};
}

TEST(WeightSource, TakesMxfp4BlocksAndScalesAsOneParameter) {
  const Case experts(
      kMxfp4Config, {parameter("e.down_proj", {2, 64, 6})}, mxfp4("e.down_proj", {2, 6, 2, 16}, {2, 6, 2}));
  const WeightSources sources = experts.sources();
  EXPECT_EQ(sources.of_parameter[0].encoding, Encoding::kMxfp4);
  EXPECT_EQ(sources.of_parameter[0].values->name, "e.down_proj_blocks");
  EXPECT_EQ(sources.of_parameter[0].scales->name, "e.down_proj_scales");
  EXPECT_THAT(sources.unused, IsEmpty());
  const ReadPlan reads = experts.reads(1);
  ASSERT_EQ(reads.reads.size(), 1U);
  EXPECT_EQ(reads.reads[0].fqn, "e.down_proj");
  EXPECT_EQ(reads.reads[0].shape, (Shape{2, 64, 6}));
  EXPECT_EQ(reads.reads[0].local_shape, (Shape{2, 64, 3}));
  EXPECT_EQ(reads.reads[0].stored_bytes(), 2U * 64U * 3U / 2U);
}

TEST(WeightSource, FindsAnEncodedWeightUnderItsAlias) {
  const Case tied(
      kMxfp4Config, {parameter("a", {32, 4}), parameter("b", {32, 4})}, mxfp4("b", {4, 1, 16}, {4, 1}), {{"b", "a"}});
  const WeightSources sources = tied.sources();
  ASSERT_EQ(sources.of_parameter.size(), 1U);
  EXPECT_EQ(sources.of_parameter[0].values->name, "b_blocks");
}

TEST(WeightSource, RefusesBlocksWithoutScalesNamingBoth) {
  Case(kMxfp4Config, {parameter("e.up", {32, 4})}, {zeros("e.up_blocks", DType::kU8, {4, 1, 16})})
      .refuses(Code::kScaleMissing, {"e.up_blocks", "e.up_scales"});
}

TEST(WeightSource, RefusesMxfp4WithoutAQuantizationConfig) {
  Case("{}", {parameter("e.up", {32, 4})}, mxfp4("e.up", {4, 1, 16}, {4, 1}))
      .refuses(Code::kStrayScale, {"e.up_scales", "quantization_config"});
}

TEST(WeightSource, RefusesMxfp4OfAnotherShapeNamingBlocksAndScales) {
  const ParameterTable table = {parameter("e.up", {64, 4})};
  Case(kMxfp4Config, table, mxfp4("e.up", {4, 1, 16}, {4, 1}))
      .refuses(Code::kShapeMismatch,
               {"e.up_blocks: expected [4, 2, 16], stored [4, 1, 16]", "e.up_scales: expected [4, 2], stored [4, 1]"});
  Case(kMxfp4Config, table, mxfp4("e.up", {4, 2, 16}, {4, 1}))
      .refuses(Code::kShapeMismatch, {"e.up_scales (with e.up_blocks)"});
  Case(kMxfp4Config, {parameter("e.up", {40, 4})}, mxfp4("e.up", {4, 1, 16}, {4, 1}))
      .refuses(Code::kShapeMismatch, {"e.up_blocks"}); // 40 inputs are no whole groups
}

// --- Other methods.

TEST(WeightSource, NamesTheMethodOfAQuantisationThatItCannotRead) {
  Case(R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})",
       {parameter("l.weight", {8, 8})},
       {zeros("l.qweight", DType::kI32, {1, 8}), zeros("l.scales", DType::kF16, {1, 8})})
      .refuses(Code::kDtypeNotLoadable, {"l.qweight (I32)", "quant_method = gptq", "dequantise"});
  Case(R"({"quantization_config": {"quant_method": "bitsandbytes"}})",
       {parameter("l.weight", {8, 8})},
       {zeros("l.weight", DType::kU8, {32, 1}), zeros("l.weight.absmax", DType::kF32, {1})})
      .refuses(Code::kDtypeNotLoadable, {"l.weight (U8)", "quant_method = bitsandbytes"});
}

// --- Initial values.

constexpr InitRule kRule{.kind = InitRule::Kind::kNormal, .a = 0.0, .b = 0.02};

TEST(WeightSource, InitialisesAMissingParameterWhenAsked) {
  const Case missing(
      "{}", {parameter("a", {4, 2}), parameter("b", {3}), parameter("c", {3})}, {counting("a", {4, 2})}, {{"c", "b"}});
  const std::vector<NamedInit> inits = {{.fqn = "c", .rule = kRule}}; // by its alias
  const WeightSources sources = missing.sources(inits);
  EXPECT_EQ(sources.of_parameter[1].values, nullptr);
  ASSERT_EQ(sources.findings.size(), 1U);
  EXPECT_EQ(sources.findings[0].code, Code::kInitialised);
  EXPECT_EQ(sources.findings[0].level, Level::kNote);
  EXPECT_THAT(sources.findings[0].where, HasSubstr("b = normal(0, 0.02)"));
  const ReadPlan reads = missing.reads(1, inits);
  EXPECT_EQ(reads.reads.size(), 1U);
  ASSERT_EQ(reads.inits.size(), 1U);
  EXPECT_EQ(reads.inits[0].fqn, "b");
  EXPECT_EQ(reads.inits[0].shape, (Shape{3}));
  EXPECT_EQ(reads.inits[0].chunk, (ChunkRange{2, 1}));
}

TEST(WeightSource, RefusesAnInitialValueThatItsDtypeCannotHold) {
  ParameterInfo narrow = parameter("a", {4});
  narrow.dtype = DType::kF16;
  const Case missing("{}", {narrow, parameter("b", {1})}, {counting("b", {1})});
  for (const InitRule& rule : {InitRule{.kind = InitRule::Kind::kConstant, .a = -70000.0},
                               InitRule{.kind = InitRule::Kind::kNormal, .a = 0.0, .b = 20000.0},
                               InitRule{.kind = InitRule::Kind::kUniform, .a = -1.0, .b = 1e6}}) {
    missing.refuses(Code::kBadFlag, {"--init a=", "65504", "F16"}, {{.fqn = "a", .rule = rule}});
  }
  EXPECT_EQ(missing.sources({{.fqn = "a", .rule = {.a = 65504.0}}}).findings.size(), 1U);
}

TEST(WeightSource, LeavesEmptyInitialSlicesOut) {
  const Case missing("{}", {parameter("a", {1})}, {});
  EXPECT_EQ(missing.reads(0, {{.fqn = "a", .rule = kRule}}).inits.size(), 1U);
  EXPECT_THAT(missing.reads(1, {{.fqn = "a", .rule = kRule}}).inits, IsEmpty());
}

TEST(WeightSource, RefusesInitsThatNothingNeeds) {
  const Case stored("{}", {parameter("a", {2})}, {counting("a", {2})});
  stored.refuses(Code::kBadFlag, {"--init a", "model.safetensors holds this parameter"}, {{.fqn = "a", .rule = kRule}});
  stored.refuses(Code::kUnknownParameter, {"--init z"}, {{.fqn = "z", .rule = kRule}});
  Case("{}", {parameter("a", {2})}, {})
      .refuses(Code::kBadFlag, {"two rules"}, {{.fqn = "a", .rule = kRule}, {.fqn = "a", .rule = {}}});
}

TEST(WeightSource, NamesInitAsTheLastWayForAMissingParameter) {
  Case("{}", {parameter("a", {2}), parameter("b", {2})}, {counting("a", {2})})
      .refuses(Code::kMissingParameter, {"--init b=normal(0.02)"});
}

TEST(WeightSource, NamesTheNumberOfLayersWhenTheLastOnesAreMissing) {
  const ParameterTable table = {
      parameter("model.layers.0.w", {2}), parameter("model.layers.1.w", {2}), parameter("model.layers.2.w", {2})};
  const std::string config = R"({"num_hidden_layers": 3})";
  Case(config, table, {counting("model.layers.0.w", {2}), counting("model.layers.1.w", {2})})
      .refuses(Code::kMissingParameter, {"model.layers.2.w", "num_hidden_layers = 3", "2 layers of model.layers."});
  const Case in_between(config, table, {counting("model.layers.0.w", {2}), counting("model.layers.2.w", {2})});
  try {
    in_between.sources();
    FAIL();
  } catch (const InputError& error) { // a hole is not one layer too many
    EXPECT_THAT(error.diagnostic().fix, ::testing::Not(HasSubstr("num_hidden_layers")));
  }
}

// --- Packed weights of a model that is known by its stored names alone.

TEST(WeightSource, RefusesWhatOnlyItsQuantiserCanReadThoughNoParameterMissesIt) {
  const ParameterTable table = {parameter("q.scales", {1, 4})};
  for (const char* packed : {"q.qweight", "q.weight_packed", "q.W_q", "q.weight"}) {
    Case(R"({"model_type": "platypus", "quantization_config": {"quant_method": "gptq"}})",
         table,
         {counting("q.scales", {1, 4}), zeros(packed, DType::kI32, {1, 4})})
        .refuses(Code::kDtypeNotLoadable, {packed, "I32", "gptq"});
  }
  Case("{}", table, {counting("q.scales", {1, 4}), zeros("q.up_blocks", DType::kU8, {1, 1, 16})})
      .refuses(Code::kDtypeNotLoadable, {"q.up_blocks"});
  EXPECT_THAT(
      Case("{}", table, {counting("q.scales", {1, 4}), zeros("position_ids", DType::kI64, {4})}).sources().unused,
      ElementsAre("position_ids"));
}

// --- What is said of them.

TEST(WeightSource, SaysOfASecondScaleThatOneIsApplied) {
  const std::vector<FixtureTensor> stored = {zeros("l.weight", DType::kF8E4M3, {4, 4}),
                                             counting("l.weight_scale", {1}),
                                             counting("l.weight_scale_inv", {1, 1})};
  Case(kFp8Config, {parameter("l.weight", {4, 4})}, stored)
      .refuses(Code::kStrayScale, {"that of l.weight is l.weight_scale_inv", "l.weight_scale would be a second"});
}

TEST(WeightSource, LeavesTheScaleOfATiedCopyWithItsCopy) {
  const Case tied(kFp8Config,
                  {parameter("a.weight", {4, 4}), parameter("b.weight", {4, 4})},
                  {zeros("a.weight", DType::kF8E4M3, {4, 4}),
                   zeros("b.weight", DType::kF8E4M3, {4, 4}),
                   counting("a.weight_scale", {1}, 2.0F),
                   counting("b.weight_scale", {1}, 2.0F)},
                  {{"b.weight", "a.weight"}});
  EXPECT_EQ(tied.sources().of_parameter[0].scales->name, "a.weight_scale");
  EXPECT_THAT(tied.sources().unused, IsEmpty());
}

TEST(WeightSource, GivesEveryKindOfOffenceInTheOrderOfTheLoader) {
  CheckpointFixture fixture;
  fixture.write({zeros("a", DType::kI8, {2}), counting("b", {3})});
  const Checkpoint checkpoint = fixture.open();
  const ParameterTable table = {parameter("a", {2}), parameter("b", {2}), parameter("c", {2})};
  const ShardPlan plan = ShardPlan::build(table, TieRegistry::of(checkpoint, table), 2);
  std::vector<Code> codes;
  for (const Diagnostic& offence : find_weight_offences(checkpoint, plan)) {
    codes.push_back(offence.code);
  }
  EXPECT_THAT(codes, ElementsAre(Code::kDtypeNotLoadable, Code::kMissingParameter, Code::kShapeMismatch));
  expect_refusal([&] { find_weight_sources(checkpoint, plan); }, Code::kDtypeNotLoadable, {"a"});
}

TEST(WeightSource, NamesUntieWhereItIsTheCauseOfAMissingValue) {
  CheckpointFixture fixture(testing::tied_config());
  fixture.write({counting("model.embed_tokens.weight", {6, 4})});
  const Checkpoint checkpoint = fixture.open();
  const ParameterTable table = {parameter("model.embed_tokens.weight", {6, 4}), parameter("lm_head.weight", {6, 4})};
  for (const char* untied : {"lm_head.weight", "model.embed_tokens.weight"}) {
    const ShardPlan plan = ShardPlan::build(table, TieRegistry::of(checkpoint, table, {.untied = {untied}}), 2);
    expect_refusal([&] { find_weight_sources(checkpoint, plan); },
                   Code::kMissingParameter,
                   {concat("leave --untie ", untied, " out"), "lm_head.weight"});
  }
}

} // namespace
} // namespace tieshard
