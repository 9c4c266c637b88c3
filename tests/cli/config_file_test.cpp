#include "tieshard/cli/config_file.h"

#include <CLI/App.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/cli/flags.h"

#include "tests/core/base/temp_dir.h"
#include "tests/support/diagnostics.h"

namespace tieshard::cli {
namespace {

using ::testing::ElementsAre;
using testing::expect_refusal;

/// A verb with a flag of each kind.
class Verb {
 public:
  Verb() : app_("about", "tieshard") {
    verb_ = app_.add_subcommand("train", "trains");
    verb_->add_option("--model", model, "model")->required();
    verb_->add_option("--steps", steps, "steps")->check(whole_number(0, 1000))->capture_default_str();
    verb_->add_option("--lr", lr, "rate")->check(finite_number_from(0))->capture_default_str();
    verb_->add_option("--clip", clip, "clip")->check(number_above(0));
    verb_->add_option("--resume", resume, "resume")->expected(0, 1);
    verb_->add_flag("--no-shuffle", no_shuffle, "in order");
    add_repeated(*verb_, "--tie", ties, "A=B", "ties");
    add_config_flag(*verb_);
    app_.add_subcommand("plan", "has no file of flags");
  }

  std::vector<std::string> words(std::vector<std::string> line) const {
    return with_config_file(app_, std::move(line));
  }

  void parse(std::vector<std::string> line) {
    line = words(std::move(line));
    std::ranges::reverse(line);
    app_.parse(std::move(line));
  }

  std::string in_force() const {
    return flags_in_force(*verb_);
  }

  std::string model;
  int steps = 100;
  double lr = 1e-4;
  double clip = 0;
  std::vector<std::string> resume;
  bool no_shuffle = false;
  std::vector<std::string> ties;

 private:
  CLI::App app_;
  CLI::App* verb_;
};

TEST(ConfigFile, PutsItsFlagsIntoTheLine) {
  const TempDir dir;
  const auto file =
      dir.write("run.json", R"({"model": "m", "steps": 7, "lr": 2e-05, "no-shuffle": true, "tie": ["a=b", "c=d"]})");
  Verb verb;
  verb.parse({"train", "--config", file.string()});
  EXPECT_EQ(verb.model, "m");
  EXPECT_EQ(verb.steps, 7);
  EXPECT_EQ(verb.lr, 2e-5);
  EXPECT_TRUE(verb.no_shuffle);
  EXPECT_THAT(verb.ties, ElementsAre("a=b", "c=d"));
}

TEST(ConfigFile, GivesWayToTheLine) {
  const TempDir dir;
  const auto file = dir.write("run.json", R"({"model": "m", "steps": 7, "tie": "a=b"})");
  Verb verb;
  verb.parse({"train", "--steps", "9", "--config=" + file.string(), "--tie=x=y"});
  EXPECT_EQ(verb.model, "m");
  EXPECT_EQ(verb.steps, 9);
  EXPECT_THAT(verb.ties, ElementsAre("x=y"));
}

TEST(ConfigFile, TakesASwitchThatIsFalseAsNotGiven) {
  const TempDir dir;
  const auto file = dir.write("run.json", R"({"no-shuffle": false, "resume": false})");
  EXPECT_THAT(Verb().words({"train", "--config", file.string()}), ElementsAre("train", "--config", file.string()));
}

TEST(ConfigFile, TakesAFlagWithoutItsValueAsTrueAndWithItAsAText) {
  const TempDir dir;
  const auto bare = dir.write("a.json", R"({"resume": true})");
  EXPECT_THAT(Verb().words({"train", "--config", bare.string()}), ::testing::Contains("--resume"));
  const auto from = dir.write("b.json", R"({"resume": "runs/a"})");
  EXPECT_THAT(Verb().words({"train", "--config", from.string()}), ::testing::Contains("--resume=runs/a"));
}

TEST(ConfigFile, LeavesLinesOfOtherVerbsAlone) {
  EXPECT_THAT(Verb().words({"plan", "--config", "none"}), ElementsAre("plan", "--config", "none"));
  EXPECT_THAT(Verb().words({}), ElementsAre());
  EXPECT_THAT(Verb().words({"train", "--config"}), ElementsAre("train", "--config")); // the parser misses its value
}

TEST(ConfigFile, RefusesWhatItsFlagsCannotTake) {
  const TempDir dir;
  const auto refused = [&](const std::string& text, Code code, const std::vector<std::string>& parts) {
    const auto file = dir.write("run.json", text);
    expect_refusal([&] { Verb().words({"train", "--config", file.string()}); }, code, parts);
  };
  refused(R"({"step": 7})", Code::kBadFlag, {"run.json, step", "a flag of train", "did you mean steps"});
  refused(R"({"--steps": 7})", Code::kBadFlag, {"without its dashes", "did you mean steps"});
  refused(R"({"config": "x"})", Code::kBadFlag, {"got config"});
  refused(R"({"help": true})", Code::kBadFlag, {"got help"});
  refused(R"({"no-shuffle": 1})", Code::kBadFlag, {"expected true or false, got 1"});
  refused(R"({"steps": [1, 2]})", Code::kBadFlag, {"expected one value, got an array"});
  refused(R"({"steps": null})", Code::kBadFlag, {"got null"});
  refused(R"({"tie": [{}]})", Code::kBadFlag, {"got object"});
  refused(R"([1])", Code::kBadFlag, {"expected one JSON object"});
  refused(R"({"steps": 1, "steps": 2})", Code::kJsonDuplicateKey, {"steps"});
  refused("steps = 1", Code::kJsonMalformed, {"run.json"});
  expect_refusal([&] { Verb().words({"train", "--config", (dir / "none").string()}); }, Code::kFileNotFound, {"none"});
}

TEST(ConfigFile, LeavesValuesToTheChecksOfTheirFlags) {
  const TempDir dir;
  for (const char* text :
       {R"({"model": "m", "steps": -1})", R"({"model": "m", "steps": 1.5})", R"({"model": "m", "steps": ""})"}) {
    const auto file = dir.write("run.json", text);
    Verb verb;
    EXPECT_THROW(verb.parse({"train", "--config", file.string()}), CLI::ParseError) << text;
  }
}

TEST(FlagsInForce, AreAFileThatGivesThemAgain) {
  const TempDir dir;
  Verb verb;
  verb.parse({"train", "--model", "m", "--lr", "0.0003", "--no-shuffle", "--tie", "a=b", "--resume"});
  EXPECT_EQ(
      verb.in_force(),
      "{\n  \"model\": \"m\",\n  \"steps\": 100,\n  \"lr\": 0.0003,\n  \"resume\": true,\n  \"no-shuffle\": true,\n"
      "  \"tie\": [\n    \"a=b\"\n  ]\n}\n");
  const auto file = dir.write("config.json", verb.in_force());
  Verb again;
  again.parse({"train", "--config", file.string()});
  EXPECT_EQ(again.in_force(), verb.in_force());
}

} // namespace
} // namespace tieshard::cli
