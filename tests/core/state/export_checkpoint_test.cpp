#include "tieshard/core/state/export_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/state/manifest.h"
#include "tieshard/core/state/shard_file_writer.h"
#include "tieshard/core/state/trainer_state.h"

#include "tests/core/base/refusal.h"
#include "tests/core/state/sharded_fixture.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

using testing::dcp_name;
using ::testing::ElementsAre;
using testing::sharded_file;
using ::testing::SizeIs;

constexpr const char* kTinyLlama = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 10,
  "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
  "max_position_embeddings": 16, "tie_word_embeddings": true, "dtype": "bfloat16"})";

const std::map<std::string, Shape> kLlamaShapes = {{"model.embed_tokens.weight", {10, 4}},
                                                   {"model.layers.0.self_attn.q_proj.weight", {4, 4}},
                                                   {"model.layers.0.self_attn.k_proj.weight", {4, 4}},
                                                   {"model.layers.0.self_attn.v_proj.weight", {4, 4}},
                                                   {"model.layers.0.self_attn.o_proj.weight", {4, 4}},
                                                   {"model.layers.0.mlp.gate_proj.weight", {6, 4}},
                                                   {"model.layers.0.mlp.up_proj.weight", {6, 4}},
                                                   {"model.layers.0.mlp.down_proj.weight", {4, 6}},
                                                   {"model.layers.0.input_layernorm.weight", {4}},
                                                   {"model.layers.0.post_attention_layernorm.weight", {4}},
                                                   {"model.norm.weight", {4}}};

/// A training checkpoint of a tied Llama over 2 ranks, float32 with one moment each; element n is n.
class Export : public ::testing::Test {
 protected:
  void write(std::int64_t vocabulary = 10) {
    manifest_.id = std::string(32, 'a');
    manifest_.optimizer = "sgd";
    manifest_.mesh = {{.name = "dp_shard", .size = 2}};
    manifest_.ties = {{.canonical = "model.embed_tokens.weight", .alias = "lm_head.weight", .evidence = "config-flag"}};
    for (auto [name, shape] : kLlamaShapes) {
      shape[0] = name == "model.embed_tokens.weight" ? vocabulary : shape[0];
      manifest_.parameters.push_back({.fqn = name,
                                      .dtype = DType::kF32,
                                      .shape = shape,
                                      .dim = static_cast<int>(shape.size()) - 1,
                                      .optimizer = OptimizerRecord{.moments = {"momentum_buffer"}, .counters = {}}});
    }
    fs::create_directories(in());
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      write_rank(rank);
    }
    write_text_file(in() / "manifest.json", to_json(manifest_));
    write_text_file(in() / "trainer.json", to_json(TrainerState{.generators = {"00", "01"}}));
    write_text_file(in() / "config.json", kTinyLlama);
    write_text_file(in() / "tokenizer.json", "{}");
  }

  void write_rank(std::int64_t rank) {
    std::vector<std::vector<float>> values;
    std::vector<BlockInMemory> blocks;
    for (const ParameterRecord& parameter : manifest_.parameters) {
      for (const std::string suffix : {"", ".momentum_buffer"}) {
        const ChunkRange chunk = chunk_range(parameter.shape.back(), 2, rank);
        const TensorBlock block = block_of(parameter.fqn + suffix, DType::kF32, parameter.shape, parameter.dim, chunk);
        values.emplace_back();
        for (std::int64_t n = 0; n < numel(parameter.shape); ++n) {
          const std::int64_t column = n % parameter.shape.back();
          if (column >= chunk.offset && column < chunk.offset + chunk.size) {
            values.back().push_back(static_cast<float>(n));
          }
        }
        blocks.push_back({.block = block, .data = reinterpret_cast<const std::byte*>(values.back().data())});
      }
    }
    manifest_.files.push_back(write_shard_file(in(), shard_file_name(rank, 0, 1), blocks, manifest_.id));
  }

  fs::path in() const {
    return directory_ / "in";
  }
  fs::path out() const {
    return directory_ / "out";
  }

  Manifest manifest_;
  TempDir directory_;
};

std::vector<std::uint16_t> halves_of(const Checkpoint& checkpoint, const std::string& name) {
  const StoredTensor& tensor = *checkpoint.find(name);
  std::vector<std::uint16_t> values(tensor.bytes / 2);
  checkpoint.files()[tensor.file].file().read_at(tensor.offset, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST_F(Export, HoldsEachParameterOnceInTheConfigsDtype) {
  write();
  const ExportCheckpointReport report = export_checkpoint(in(), out(), {});
  EXPECT_EQ(report.tensors, 11);
  EXPECT_THAT(report.files, ElementsAre("model.safetensors"));
  EXPECT_THAT(report.left_out, ::testing::Contains("lm_head.weight"));
  EXPECT_THAT(report.left_out, SizeIs(12));
  EXPECT_THAT(list_directory(out()), ElementsAre("config.json", "model.safetensors", "tokenizer.json"));
  const Checkpoint checkpoint = Checkpoint::open(out());
  EXPECT_THAT(checkpoint.tensors(), SizeIs(11));
  EXPECT_EQ(checkpoint.find("model.norm.weight")->dtype, DType::kBF16);
  EXPECT_THAT(halves_of(checkpoint, "model.norm.weight"), ElementsAre(0x0000, 0x3F80, 0x4000, 0x4040)); // 0 to 3
  EXPECT_EQ(checkpoint.files()[0].header().metadata.at("format"), "pt");
  EXPECT_EQ(read_text_file(out() / "config.json"), kTinyLlama);
}

TEST_F(Export, SplitsIntoFilesWithAnIndexAndWritesTheAskedDtypeIntoTheConfig) {
  write();
  const ExportCheckpointReport report =
      export_checkpoint(in(), out(), {.dtype = DType::kF16, .max_shard_bytes = 100, .memory = 64, .threads = 3});
  EXPECT_GT(report.files.size(), 2U);
  const Checkpoint checkpoint = Checkpoint::open(out());
  EXPECT_THAT(checkpoint.tensors(), SizeIs(11));
  EXPECT_THAT(checkpoint.findings(), ::testing::IsEmpty());
  EXPECT_EQ(checkpoint.config().dtype(), DType::kF16);
  EXPECT_THAT(halves_of(checkpoint, "model.norm.weight"), ElementsAre(0x0000, 0x3C00, 0x4000, 0x4200));
  const std::vector<std::uint16_t> embedding = halves_of(checkpoint, "model.embed_tokens.weight");
  EXPECT_EQ(embedding.at(39), 0x50E0); // 39
}

TEST_F(Export, RefusesADtypeThatValuesAreTooLargeFor) {
  write(20000); // element n is n, and 65520 is the first that float16 has no number for
  std::string config = kTinyLlama;
  config.replace(config.find("10,"), 3, "20000,");
  write_text_file(in() / "config.json", config);
  expect_refusal<InputError>(Code::kNotFinite, {in().string(), "model.embed_tokens.weight (14480)"}, [&] {
    export_checkpoint(in(), out(), {.dtype = DType::kF16});
  });
  EXPECT_THAT(list_directory(directory_.path()), ElementsAre("in"));
}

TEST_F(Export, TrimsRowsBeyondTheVocabularyAndSaysSo) {
  write(12);
  const ExportCheckpointReport report = export_checkpoint(in(), out(), {.dtype = DType::kF32});
  ASSERT_THAT(report.findings, SizeIs(1));
  expect_names(report.findings[0], Code::kUnusedTensor, {"model.embed_tokens.weight", "[12, 4]", "[10, 4]", "2 rows"});
  const Checkpoint checkpoint = Checkpoint::open(out());
  EXPECT_THAT(checkpoint.find("model.embed_tokens.weight")->shape, ElementsAre(10, 4));
}

TEST_F(Export, RefusesAShapeThatTheConfigDoesNotHaveAndAMissingParameter) {
  write(9);
  expect_refusal<InputError>(Code::kShapeMismatch, {"model.embed_tokens.weight", "[9, 4]", "[10, 4]"}, [&] {
    export_checkpoint(in(), out(), {});
  });
  std::string more = kTinyLlama;
  more.replace(more.find("\"num_hidden_layers\": 1"), 22, "\"num_hidden_layers\": 2");
  write_text_file(in() / "config.json", more);
  expect_refusal<InputError>(
      Code::kMissingParameter, {"model.layers.1.", "9"}, [&] { export_checkpoint(in(), out(), {}); });
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(Export, NeedsAConfigWhichMayBeElsewhere) {
  write();
  fs::create_directories(directory_ / "base");
  fs::rename(in() / "config.json", directory_ / "base" / "config.json");
  expect_refusal<InputError>(Code::kConfigMissing, {"--config-from"}, [&] { export_checkpoint(in(), out(), {}); });
  export_checkpoint(in(), out(), {.config_from = directory_ / "base"});
  EXPECT_THAT(list_directory(out()), ElementsAre("config.json", "model.safetensors"));
}

TEST_F(Export, RefusesAnAdaptersCheckpoint) {
  write();
  manifest_.parameters.push_back({.fqn = "lm.base", .shape = {2, 2}, .stored = false});
  write_text_file(in() / "manifest.json", to_json(manifest_));
  expect_refusal<InputError>(
      Code::kMissingParameter, {"lm.base", "merge-adapter"}, [&] { export_checkpoint(in(), out(), {}); });
}

TEST_F(Export, RefusesAnOutputWithoutANameOrAmongTheCheckpointsOfTheRun) {
  write();
  expect_refusal<InputError>(Code::kBadFlag, {"OUT"}, [&] { export_checkpoint(in(), "", {}); });
  expect_refusal<InputError>(Code::kBadFlag, {"model"}, [&] { export_checkpoint(in(), in() / "model", {}); });
}

TEST_F(Export, WritesOverNothing) {
  write();
  fs::create_directories(out());
  expect_refusal<InputError>(Code::kOutputExists, {"out"}, [&] { export_checkpoint(in(), out(), {}); });
}

TEST(Merge, PutsAGridTogetherWithoutAConfigAndSaysThatThereIsNone) {
  const TempDir directory;
  testing::write_grid(directory);
  const fs::path out = directory / "out";
  const ExportCheckpointReport report = export_checkpoint(directory.path(), out, {.plain = true});
  EXPECT_EQ(report.tensors, 2);
  ASSERT_THAT(report.findings, SizeIs(2));
  EXPECT_EQ(report.findings[0].code, Code::kConfigMissing);
  expect_names(report.findings[1], Code::kBlockMissing, {"blocks alone of 2 of 2", "--config-from"});
  EXPECT_EQ(report.findings[1].level, Level::kWarning);
  const SafetensorsFile file = SafetensorsFile::open(out / "model.safetensors");
  std::vector<std::int16_t> values(48);
  file.file().read_at(file.header().data_start + file.find("w")->begin, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, testing::numbers_of({"w", {6, 8}, {0, 0}, {6, 8}}));
  expect_refusal<InputError>(Code::kConfigMissing, {}, [&] {
    export_checkpoint(directory.path(), directory / "other", {.plain = true, .config_from = directory / "none"});
  });
}

TEST(Merge, LeavesOutWhatIsOptimizerStateByItsNameBesideItsParameter) {
  const TempDir directory;
  directory.write(dcp_name(0),
                  sharded_file({{"w", {2}, {0}, {2}}, {"w.exp_avg", {2}, {0}, {2}}, {"v.step", {1}, {0}, {1}}}));
  const ExportCheckpointReport report = export_checkpoint(directory.path(), directory / "out", {.plain = true});
  EXPECT_THAT(report.left_out, ElementsAre("w.exp_avg"));
  EXPECT_EQ(report.tensors, 2); // "v" is no tensor, so "v.step" is what it is called
}

TEST(Merge, RefusesAHole) {
  const TempDir directory;
  testing::write_grid(directory);
  fs::remove(directory / dcp_name(2));
  expect_refusal<InputError>(
      Code::kBlockMissing, {"w"}, [&] { export_checkpoint(directory.path(), directory / "out", {.plain = true}); });
  EXPECT_FALSE(fs::exists(directory / "out"));
}

} // namespace
} // namespace tieshard
