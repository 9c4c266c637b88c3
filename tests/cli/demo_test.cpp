#include "tieshard/cli/demo.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/cli/demo_checkpoint.h"
#include "tieshard/cli/demo_checks.h"
#include "tieshard/cli/demo_text.h"
#include "tieshard/core/base/file.h"

#include "tests/cli/session.h"
#include "tests/support/raised.h"

namespace tieshard::cli {
namespace {

namespace fs = std::filesystem;
using testing::CheckpointFixture;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::raised;
using testing::run;
using ::testing::UnorderedElementsAre;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(DemoCheckpoint, IsATiedLlamaWithoutAStoredHead) {
  const CheckpointFixture folder;
  write_demo_checkpoint(folder.path());
  const ResolvedModel view = resolve_model(folder.path());
  EXPECT_THAT(view.findings, IsEmpty());
  ASSERT_EQ(view.ties.groups().size(), 1U);
  EXPECT_EQ(view.checkpoint.find("lm_head.weight"), nullptr);
  EXPECT_EQ(view.checkpoint.tensors().size(), 2 + 4 * 9U);
  EXPECT_EQ(run({"plan", folder.path(), "--ranks", "2"}).status, 0);
}

TEST(DemoCheckpoint, IsTheSameForOneSeedAndAnotherForAnother) {
  const CheckpointFixture a;
  const CheckpointFixture b;
  const CheckpointFixture c;
  write_demo_checkpoint(a.path());
  write_demo_checkpoint(b.path());
  write_demo_checkpoint(c.path(), {.seed = 21});
  const auto bytes = [](const CheckpointFixture& folder) {
    return read_text_file(folder.path() / "model.safetensors");
  };
  EXPECT_EQ(bytes(a), bytes(b));
  EXPECT_NE(bytes(a), bytes(c));
}

TEST(DemoCheckpoint, DrawsMatricesWithTheUsualDeviationAndNormsAsOne) {
  const CheckpointFixture folder;
  write_demo_checkpoint(folder.path());
  const auto values = [&](const char* tensor) {
    return run({"inspect", folder.path(), "--tensor", tensor, "--first", "16384", "--json"})
        .json()["values"]
        .get<std::vector<double>>();
  };
  double sum = 0.0;
  double squares = 0.0;
  const std::vector<double> embedding = values("model.embed_tokens.weight");
  for (const double value : embedding) {
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(embedding.size());
  EXPECT_EQ(embedding.size(), 16384U);
  EXPECT_NEAR(sum / count, 0.0, 0.0008);                 // five deviations of the mean
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.0006); // five deviations of the deviation
  for (const double value : values("model.norm.weight")) {
    EXPECT_EQ(value, 1.0);
  }
}

TEST(OwnDocuments, AreThoseOfTheSourceTreeAboveTheProgram) {
  const CheckpointFixture folder;
  const fs::path root = folder.path() / "source";
  write(root / "CMakeLists.txt", "");
  write(root / "tieshard/cli/main.cpp", "");
  write(root / "README.md", "");
  write(root / "docs/terms.md", "");
  write(root / "docs/picture.png", "");
  write(root / "build/bin/README.md", "not this one");
  EXPECT_THAT(own_documents(root / "build/bin/tieshard"), ElementsAre(root / "README.md", root / "docs/terms.md"));
}

TEST(OwnDocuments, AreTheInstalledOnesWhereThereIsNoSourceTree) {
  const CheckpointFixture folder;
  EXPECT_THAT(own_documents(folder.path() / "usr/bin/tieshard"), IsEmpty());
  write(folder.path() / "usr/share/doc/tieshard/README.md", "");
  write(folder.path() / "usr/share/doc/tieshard/docs/terms.md", "");
  EXPECT_THAT(own_documents(folder.path() / "usr/bin/tieshard"),
              ElementsAre(folder.path() / "usr/share/doc/tieshard/README.md",
                          folder.path() / "usr/share/doc/tieshard/docs/terms.md"));
}

TEST(ByteTokens, AreTheBytesInOrderAsLittleEndianPairs) {
  const CheckpointFixture folder;
  write(folder.path() / "a.txt", "A\xFF");
  write(folder.path() / "b.txt", "b");
  const std::size_t count =
      write_byte_tokens({folder.path() / "a.txt", folder.path() / "b.txt"}, folder.path() / "tokens.bin");
  EXPECT_EQ(count, 3U);
  EXPECT_EQ(read_text_file(folder.path() / "tokens.bin"), std::string("A\0\xFF\0b\0", 6));
}

TEST(ReadLosses, TakesTheLossOfEachLine) {
  const CheckpointFixture folder;
  const fs::path metrics = folder.path() / "metrics.jsonl";
  write(metrics, "{\"step\":1,\"loss\":5.5}\n{\"loss\":4,\"step\":2}\n");
  EXPECT_THAT(read_losses(metrics), ElementsAre(5.5, 4.0));
  write(metrics, "{\"step\":1,\"loss\":5.5}\n{\"step\":2}\n");
  const auto refused = raised<InputError>([&] { read_losses(metrics); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kDataMalformed);
  EXPECT_THAT(refused->where, HasSubstr("line 2"));
}

TEST(LossFall, ComparesTheMeansOfTheFirstAndTheLastTen) {
  std::vector<double> losses(10, 5.0);
  losses.insert(losses.end(), 7, 100.0); // between: does not count
  losses.insert(losses.end(), 10, 4.0);
  EXPECT_DOUBLE_EQ(loss_fall(losses).first, 5.0);
  EXPECT_DOUBLE_EQ(loss_fall(losses).last, 4.0);
  EXPECT_TRUE(loss_fall(losses).reached()); // exactly 0.8
  losses.back() = 4.1;
  EXPECT_FALSE(loss_fall(losses).reached());
  losses.back() = std::nan("");
  EXPECT_FALSE(loss_fall(losses).reached());
}

class ExportFaults : public ::testing::Test {
 protected:
  ExportFaults() : source_(testing::tied_config()), exported_(testing::tied_config()) {
    source_.write(testing::tiny_llama_tensors());
  }
  std::vector<std::string> faults() const {
    return export_faults(resolve_model(source_.path()), exported_.path());
  }
  CheckpointFixture source_;
  CheckpointFixture exported_;
};

TEST_F(ExportFaults, FindsNoneInACopy) {
  exported_.write(testing::tiny_llama_tensors());
  EXPECT_THAT(faults(), IsEmpty());
}

TEST_F(ExportFaults, FindsAHeadThatIsStoredBesideTheEmbedding) {
  auto tensors = testing::tiny_llama_tensors();
  tensors.push_back(testing::counting("lm_head.weight", {6, 4})); // equal to the embedding
  exported_.write(tensors);
  EXPECT_THAT(faults(), ElementsAre("lm_head.weight is stored beside model.embed_tokens.weight"));
}

TEST_F(ExportFaults, FindsAHeadThatDriftedFromTheEmbedding) {
  exported_.write(testing::tiny_llama_tensors(true));
  EXPECT_THAT(faults(), ElementsAre("the ties are not those of the source"));
}

TEST_F(ExportFaults, FindsAnotherDtypeAndATensorOfNoUse) {
  auto tensors = testing::tiny_llama_tensors();
  tensors.back() = testing::as_bf16(tensors.back());
  tensors.push_back(testing::counting("stray", {2}));
  exported_.write(tensors);
  EXPECT_THAT(faults(),
              UnorderedElementsAre("model.norm.weight is BF16 [4], expected F32 [4]", "stray is used by no parameter"));
}

TEST_F(ExportFaults, RefusesOneThatLacksAParameter) {
  auto tensors = testing::tiny_llama_tensors();
  tensors.pop_back();
  exported_.write(tensors);
  const auto refused = raised<InputError>([&] { faults(); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kMissingParameter);
}

// Stands for tieshard-runtime: writes `losses` and exports the model as it is.
class DemoVerb : public ::testing::Test {
 protected:
  DemoVerb() {
    write(folder_.path() / "text.txt", "some text");
  }

  // `script` sees $model and $run.
  testing::Answer demo(const std::string& script, bool clean = false) {
    const fs::path runtime = folder_.path() / "fake-runtime";
    write(runtime, "#!/bin/sh\nmodel=$3\nrun=$7\nmkdir -p $run/export\n" + script);
    fs::permissions(runtime, fs::perms::owner_all);
    std::ostringstream out;
    std::ostringstream err;
    const Console console{.out = {.text = out}, .err = {.text = err}};
    const DemoOptions options{.directory = (folder_.path() / "walk").string(),
                              .text = {(folder_.path() / "text.txt").string()},
                              .runtime = runtime.string(),
                              .clean = clean};
    const int status = run_verb([&] { return run_demo(options, console); }, console);
    return {.status = status, .out = out.str(), .err = err.str()};
  }

  static std::string losses(const std::string& last) {
    return "for s in 1 2 3 4 5 6 7 8 9 10; do echo '{\"loss\":5}'; done > $run/metrics.jsonl\n"
           "for s in 1 2 3 4 5 6 7 8 9 10; do echo '{\"loss\":" +
           last + "}'; done >> $run/metrics.jsonl\n";
  }
  static constexpr const char* kExport = "cp $model/* $run/export/\n";

  CheckpointFixture folder_;
};

TEST_F(DemoVerb, WalksToTheEndAndSaysWhereEverythingIs) {
  const testing::Answer answer = demo(losses("3") + kExport);
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("1 tie group"));
  EXPECT_THAT(answer.out, HasSubstr("2 ranks, shard dim: last"));
  EXPECT_THAT(answer.out, HasSubstr("first ten steps 5.00, of the last ten 3.00 (0.60 x, goal at most 0.80 x)"));
  EXPECT_THAT(answer.out, HasSubstr("none missing, none stored twice"));
  for (const char* made : {"walk/model", "walk/tokens.bin", "walk/run/metrics.jsonl", "walk/run/export"}) {
    EXPECT_THAT(answer.out, HasSubstr((folder_.path() / made).string()));
    EXPECT_TRUE(fs::exists(folder_.path() / made)) << made;
  }
}

TEST_F(DemoVerb, RemovesItsFolderOnlyWhenAsked) {
  const testing::Answer answer = demo(losses("3") + kExport, true);
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("is removed, as --clean asks"));
  EXPECT_FALSE(fs::exists(folder_.path() / "walk"));
}

TEST_F(DemoVerb, AnswersNoWhenTheLossDidNotFallFarEnough) {
  const testing::Answer answer = demo(losses("4.1") + kExport);
  EXPECT_EQ(answer.status, 1);
  EXPECT_THAT(answer.err, HasSubstr("[demo-failed]"));
  EXPECT_THAT(answer.err, HasSubstr("(0.82 x, goal at most 0.80 x)"));
}

TEST_F(DemoVerb, AnswersNoWhenTheRunIsTooShort) {
  const testing::Answer answer = demo("echo '{\"loss\":5}' > $run/metrics.jsonl\n" + std::string(kExport));
  EXPECT_EQ(answer.status, 1);
  EXPECT_THAT(answer.err, HasSubstr("expected at least 20 losses, got 1"));
}

TEST_F(DemoVerb, AnswersNoWhenTheExportIsNotTheModel) {
  const testing::Answer answer =
      demo(losses("3") + kExport + "sed -i '1s/\"BF16\"/\"F16\" /' $run/export/model.safetensors\n");
  EXPECT_EQ(answer.status, 1);
  EXPECT_THAT(answer.err, HasSubstr("is F16"));
}

TEST_F(DemoVerb, AnswersNoWhenThereIsNoExport) {
  const testing::Answer answer = demo(losses("3"));
  EXPECT_EQ(answer.status, 1);
  EXPECT_THAT(answer.err, HasSubstr("[demo-failed]"));
  EXPECT_THAT(answer.err, HasSubstr("[config-missing]"));
}

TEST_F(DemoVerb, HandsTheStatusOfAFailedTrainingOn) {
  const testing::Answer answer = demo("exit 4\n");
  EXPECT_EQ(answer.status, 4);
  EXPECT_THAT(answer.err, HasSubstr("it ended with status 4"));
}

TEST_F(DemoVerb, WritesNothingIntoAFolderThatHoldsSomething) {
  write(folder_.path() / "walk/precious.txt", "keep");
  const testing::Answer answer = demo(losses("3") + kExport);
  EXPECT_EQ(answer.status, 2);
  EXPECT_THAT(answer.err, HasSubstr("[output-exists]"));
  EXPECT_EQ(read_text_file(folder_.path() / "walk/precious.txt"), "keep");
  EXPECT_FALSE(fs::exists(folder_.path() / "walk/model"));
}

} // namespace
} // namespace tieshard::cli
