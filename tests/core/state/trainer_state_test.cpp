#include "tieshard/core/state/trainer_state.h"

#include <nlohmann/json.hpp>

#include "tieshard/core/base/json.h"

#include "tests/core/base/refusal.h"

namespace tieshard {
namespace {

TrainerState example() {
  return {.step = 200,
          .samples = 800,
          .tokens = 204'800,
          .generators = {"00ff", "01fe"},
          .flags = {{"lr", "1e-4"}, {"no-decay", ""}}};
}

std::string with(const std::string& pointer, const Json& value) {
  Json document = Json::parse(to_json(example()));
  document[Json::json_pointer(pointer)] = value;
  return document.dump();
}

void expect_malformed(const std::string& text, const std::vector<std::string>& named) {
  expect_refusal<InputError>(Code::kManifestMalformed, named, [&] { parse_trainer_state(text, "trainer.json"); });
}

TEST(TrainerState, ComesBackAsItWasWritten) {
  EXPECT_EQ(parse_trainer_state(to_json(example()), "trainer.json"), example());
  EXPECT_EQ(parse_trainer_state(to_json(TrainerState()), "trainer.json"), TrainerState());
  EXPECT_THAT(to_json(example()), testing::EndsWith("\n}\n"));
}

TEST(TrainerState, IsRefusedWithThePathOfWhatIsWrong) {
  expect_malformed("3", {"expected an object, got 3"});
  expect_malformed(with("/version", 2), {"trainer.json, version", "version of tieshard"});
  expect_malformed(with("/step", -1), {"trainer.json, step"});
  expect_malformed(with("/samples", "8"), {"trainer.json, samples"});
  expect_malformed(with("/tokens", 0.5), {"trainer.json, tokens"});
  expect_malformed(with("/generators/1", "0"), {"generators[1]", "two a byte"});
  expect_malformed(with("/generators/1", "zz"), {"generators[1]"});
  expect_malformed(with("/generators", Json::object()), {"generators", "expected a list"});
  expect_malformed(with("/flags/lr", 1), {"flags.lr", "expected a string, got 1"});
  expect_malformed(with("/more", 1), {"\"more\" too"});
}

TEST(TrainerState, IsWrittenWhateverBytesAFlagHas) {
  TrainerState state = example();
  state.flags["data"] = "caf\xe9.bin"; // a path need not be UTF-8
  EXPECT_EQ(parse_trainer_state(to_json(state), "trainer.json").flags["data"], "caf\xef\xbf\xbd.bin");
}

} // namespace
} // namespace tieshard
