#include "tieshard/runtime/state/hf_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/diagnostics.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHead = "lm_head.weight";

struct Sharded {
  PlannedLlama loaded;
  std::shared_ptr<FsdpState> state;
};

Sharded shard_llama(const fs::path& directory, const DeviceMesh& mesh) {
  PlannedLlama loaded = load_llama(directory, mesh);
  auto state = fully_shard(*loaded.model, loaded.plan, mesh);
  return {std::move(loaded), std::move(state)};
}

std::vector<std::string> entries(const fs::path& directory) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

/// Whole parameters of a checkpoint, by name.
Wholes wholes_of(const fs::path& directory) {
  return values_of(*load_whole(directory));
}

class Export : public ::testing::TestWithParam<int> {};

TEST_P(Export, OfWhatWasLoadedHoldsTheSameValuesUnderCanonicalNames) {
  for (const StoredHead head : {StoredHead::kAbsent, StoredHead::kEqual, StoredHead::kAlone}) {
    const auto directory = write_tiny_llama("model", {.head = head});
    const auto out = fresh_directory("out") / "export";
    on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
      const Sharded sharded = shard_llama(directory, mesh);
      const ExportReport report = export_hf(*sharded.state, sharded.loaded.checkpoint, out);
      EXPECT_EQ(report.directory, out);
      EXPECT_EQ(report.files, std::vector<std::string>{"model.safetensors"});
      EXPECT_EQ(report.left_out, std::vector<std::string>{kHead});
      EXPECT_EQ(report.tensors, static_cast<std::int64_t>(sharded.loaded.plan.parameters().size()));
      EXPECT_EQ(report.bytes, fs::file_size(out / "model.safetensors"));
      const Checkpoint exported = Checkpoint::open(out);
      EXPECT_EQ(exported.find(kHead), nullptr);
      const Wholes expected = wholes_of(directory);
      for (const auto& [fqn, whole] : wholes_of(out)) {
        EXPECT_TRUE(at::equal(whole, expected.at(fqn))) << fqn;
      }
      EXPECT_THAT(entries(out.parent_path()), ::testing::ElementsAre("export")); // no staging directory is left
    });
  }
}

TEST_P(Export, InSeveralFilesLoadsAsInOne) {
  const auto directory = write_tiny_llama("model", {});
  const auto out = fresh_directory("out") / "export";
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Sharded sharded = shard_llama(directory, mesh);
    const ExportReport report = export_hf(*sharded.state, sharded.loaded.checkpoint, out, {.max_shard_bytes = 3000});
    ASSERT_GT(report.files.size(), 2U);
    std::vector<std::string> expected_entries = report.files;
    expected_entries.insert(expected_entries.end(), {"config.json", "model.safetensors.index.json"});
    EXPECT_THAT(entries(out), ::testing::UnorderedElementsAreArray(expected_entries));
    const Wholes expected = wholes_of(directory);
    for (const auto& [fqn, whole] : wholes_of(out)) {
      EXPECT_TRUE(at::equal(whole, expected.at(fqn))) << fqn;
    }
  });
}

TEST_P(Export, OfABfloat16SourceTrainedInFloat32RoundsToNearest) {
  CheckpointFixture fixture(tiny_llama_config("\"tie_word_embeddings\": true,"));
  const Checkpoint empty = fixture.write({}).open();
  std::vector<FixtureTensor> tensors;
  for (const ParameterInfo& info : require_family(empty.config()).table(empty.config())) {
    if (info.fqn != kHead) {
      tensors.push_back(as_bf16(counting(info.fqn, info.shape)));
    }
  }
  fixture.write(tensors);
  const auto out = fresh_directory("out") / "export";
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Sharded sharded = shard_llama(fixture.path(), mesh); // float32 shards
    for (const FsdpParam* parameter : sharded.state->managed()) {
      parameter->shard().mul_(1.0 + 1.0 / 300).add_(0.001); // no bf16 numbers any more
    }
    export_hf(*sharded.state, sharded.loaded.checkpoint, out);
    const PlannedLlama again = load_llama(out, mesh, ShardDimPolicy::kLast, at::kBFloat16);
    EXPECT_EQ(again.checkpoint.find("model.norm.weight")->dtype, DType::kBF16);
    const auto found = values_of(*again.model);
    for (const FsdpParam* parameter : sharded.state->managed()) {
      const at::Tensor& trained = parameter->shard();
      ASSERT_TRUE(trained.numel() == 0 || !at::equal(trained.to(at::kBFloat16).to(at::kFloat), trained));
      EXPECT_TRUE(at::equal(found.at(parameter->fqn()), trained.to(at::kBFloat16))) << parameter->fqn();
    }
  });
}

TEST_P(Export, TakesTheCompanionFilesAndLeavesOldWeightsBehind) {
  const auto directory = write_tiny_llama("model", {});
  const std::string tokenizer = "{\"version\": \"1.0\"}\n";
  for (const char* name : {"tokenizer.json", "generation_config.json", "merges.txt", "chat_template.jinja"}) {
    std::ofstream(directory / name) << tokenizer;
  }
  for (const char* name : {"pytorch_model.bin", ".hidden.json", "notes.md"}) {
    std::ofstream(directory / name) << "not taken";
  }
  fs::create_directory(directory / "folder.json");
  const auto out = fresh_directory("out") / "export";
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Sharded sharded = shard_llama(directory, mesh);
    export_hf(*sharded.state, sharded.loaded.checkpoint, out);
  });
  EXPECT_THAT(entries(out),
              ::testing::UnorderedElementsAre("config.json",
                                              "model.safetensors",
                                              "tokenizer.json",
                                              "generation_config.json",
                                              "merges.txt",
                                              "chat_template.jinja"));
  EXPECT_EQ(read_text_file(out / "tokenizer.json"), tokenizer);
}

TEST_P(Export, RefusesADirectoryThatExistsAndLeavesItAlone) {
  const auto directory = write_tiny_llama("model", {});
  const auto out = fresh_directory("out");
  std::ofstream(out / "mine.txt") << "mine";
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Sharded sharded = shard_llama(directory, mesh);
    const auto write = [&] { export_hf(*sharded.state, sharded.loaded.checkpoint, out); };
    if (mesh.rank() == 0) {
      expect_refusal(write, Code::kOutputExists, {out.string()});
    } else {
      expect_refusal(write, Code::kPeerFailed, {"export: stage", "rank 0 says"});
    }
  });
  EXPECT_THAT(entries(out), ::testing::ElementsAre("mine.txt"));
}

TEST_P(Export, ThatCannotBeWrittenPublishesNothing) {
  const auto directory = write_tiny_llama("model", {});
  const auto parent = fresh_directory("out");
  std::ofstream(parent / "file") << "a file, where a directory should be";
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Sharded sharded = shard_llama(directory, mesh);
    const auto write = [&] { export_hf(*sharded.state, sharded.loaded.checkpoint, parent / "file" / "export"); };
    if (mesh.rank() == 0) {
      expect_refusal(write, Code::kIoFailed, {"file"});
    } else {
      expect_refusal(write, Code::kPeerFailed, {"rank 0 says"});
    }
  });
  EXPECT_THAT(entries(parent), ::testing::ElementsAre("file"));
}

TEST_P(Export, WritesOverWhatAnInterruptedOneLeftStaged) {
  const auto directory = write_tiny_llama("model", {});
  const auto out = fresh_directory("out") / "export";
  fs::create_directories(out.parent_path() / ".export.staging");
  std::ofstream(out.parent_path() / ".export.staging" / "model-00001-of-00002.safetensors") << "half of it";
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Sharded sharded = shard_llama(directory, mesh);
    export_hf(*sharded.state, sharded.loaded.checkpoint, out);
  });
  EXPECT_THAT(entries(out), ::testing::UnorderedElementsAre("config.json", "model.safetensors"));
  EXPECT_THAT(entries(out.parent_path()), ::testing::ElementsAre("export"));
}

TEST_P(Export, TakesADirectoryNameWithASlashAtItsEnd) {
  const auto directory = write_tiny_llama("model", {});
  const auto parent = fresh_directory("out");
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Sharded sharded = shard_llama(directory, mesh);
    export_hf(*sharded.state, sharded.loaded.checkpoint, parent / "export" / "");
  });
  EXPECT_THAT(entries(parent), ::testing::ElementsAre("export"));
  EXPECT_THAT(entries(parent / "export"), ::testing::UnorderedElementsAre("config.json", "model.safetensors"));
}

TEST_P(Export, WritesTheShardsAlsoWhileTheModelIsWhole) {
  const auto directory = write_tiny_llama("model", {});
  const auto out = fresh_directory("out") / "export";
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Sharded sharded = shard_llama(directory, mesh);
    sharded.state->unshard();
    export_hf(*sharded.state, sharded.loaded.checkpoint, out);
    const Wholes expected = wholes_of(directory);
    for (const auto& [fqn, whole] : wholes_of(out)) {
      EXPECT_TRUE(at::equal(whole, expected.at(fqn))) << fqn;
    }
  });
}

/// The embedding has 8.1 MB, which is several windows for each rank; hidden has uneven parts on 3 ranks.
constexpr TinyLlama kWide{.vocab = 8001, .hidden = 256, .intermediate = 400, .layers = 1, .heads = 4, .head_dim = 64};

TEST_P(Export, OfManyWindowsHasTheBytesOfTheSource) {
  const auto directory = write_tiny_llama("model", kWide);
  const std::string source = read_text_file(directory / "model.safetensors");
  for (const ShardDimPolicy policy : {ShardDimPolicy::kLast, ShardDimPolicy::kFirst}) {
    for (const BackendChoice backend : {BackendChoice::kShm, BackendChoice::kGloo}) {
      const auto out = fresh_directory("out") / "export";
      on_ranks(
          GetParam(),
          [&](const DeviceMesh& mesh) {
            PlannedLlama loaded = load_llama(directory, mesh, policy);
            const auto state = fully_shard(*loaded.model, loaded.plan, mesh);
            export_hf(*state, loaded.checkpoint, out);
          },
          backend);
      const Checkpoint exported = Checkpoint::open(out);
      const Checkpoint wanted = Checkpoint::open(directory);
      const std::string found = read_text_file(out / "model.safetensors");
      for (const StoredTensor& tensor : wanted.tensors()) {
        const StoredTensor& other = *exported.find(tensor.name);
        EXPECT_TRUE(found.substr(other.offset, other.bytes) == source.substr(tensor.offset, tensor.bytes))
            << tensor.name;
      }
    }
  }
}

TEST_P(Export, SaysWhichValuesAreTooLargeForTheDtype) {
  const auto directory = write_tiny_llama("model", {});
  const auto out = fresh_directory("out") / "export";
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Sharded sharded = shard_llama(directory, mesh);
    for (const FsdpParam* parameter : sharded.state->managed()) {
      if (parameter->fqn() == "model.layers.1.mlp.up_proj.weight") { // 20 x 12, on 1 or 3 ranks
        parameter->shard().fill_(1e5);
      }
    }
    const ExportReport report = export_hf(*sharded.state, sharded.loaded.checkpoint, out, {.dtype = DType::kF16});
    ASSERT_EQ(report.findings.size(), 1U);
    EXPECT_EQ(report.findings[0].code, Code::kNotFinite);
    EXPECT_THAT(report.findings[0].where, ::testing::HasSubstr("model.layers.1.mlp.up_proj.weight (240)"));
  });
  EXPECT_TRUE(fs::exists(out / "model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Export, ::testing::Values(1, 3), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

TEST(ExportThatOneRankCannotWrite, EndsOnAllOfThemAndPublishesNothing) {
  const auto directory = write_tiny_llama("model", kWide);
  const auto out = fresh_directory("out") / "export";
  on_ranks(3, [&](const DeviceMesh& mesh) {
    const Sharded sharded = shard_llama(directory, mesh);
    const auto write = [&] { export_hf(*sharded.state, sharded.loaded.checkpoint, out); };
    if (mesh.rank() == 1) { // its writes beyond the first MiB fail, in the middle of the exchange
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{1 << 20, 1 << 20};
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
      expect_refusal(write, Code::kIoFailed, {"model.safetensors"});
    } else {
      expect_refusal(write, Code::kPeerFailed, {"export: write", "rank 1 says"});
    }
  });
  EXPECT_FALSE(fs::exists(out));
}

TEST(ExportOfReplicas, IsWrittenByOneOfThem) {
  const auto directory = write_tiny_llama("model", {});
  const auto out = fresh_directory("out") / "export";
  on_grid({.replicas = 2, .shards = 2}, [&](const DeviceMesh& mesh) {
    const Sharded sharded = shard_llama(directory, mesh);
    if (mesh.axis("dp_replicate").rank() == 1) { // would be seen in the files
      for (const FsdpParam* parameter : sharded.state->managed()) {
        parameter->shard().fill_(-1);
      }
    }
    export_hf(*sharded.state, sharded.loaded.checkpoint, out);
    const Wholes expected = wholes_of(directory);
    for (const auto& [fqn, whole] : wholes_of(out)) {
      EXPECT_TRUE(at::equal(whole, expected.at(fqn))) << fqn;
    }
  });
}

TEST(ExportOfAPart, IsRefusedWithTheNamesThatNoUnitManages) {
  const auto directory = write_tiny_llama("model", {});
  const auto out = fresh_directory("out") / "export";
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const PlannedLlama loaded = load_llama(directory, mesh);
    const std::vector<UnitModule> layer{loaded.model->units()[1]};
    const auto state = fully_shard(static_cast<torch::nn::Module&>(*loaded.model), layer, loaded.plan, mesh);
    const auto write = [&] { export_hf(*state, loaded.checkpoint, out); };
    if (mesh.rank() == 0) {
      expect_refusal(write, Code::kNotSharded, {"model.embed_tokens.weight", "model.layers.1.", "model.norm.weight"});
    } else {
      expect_refusal(write, Code::kPeerFailed, {"rank 0 says the same"});
    }
  });
  EXPECT_FALSE(fs::exists(out));
}

} // namespace
} // namespace tieshard::testing
