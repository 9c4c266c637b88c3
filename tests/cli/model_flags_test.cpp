#include "tieshard/cli/model_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/session.h"
#include "tests/support/raised.h"

namespace tieshard::cli {
namespace {

using ::testing::AllOf;
using testing::Answer;
using testing::CheckpointFixture;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::raised;
using testing::run;
using testing::tied_config;
using testing::tiny_llama_tensors;

TEST(ModelFlags, SayHowACheckpointIsOpened) {
  const OpenFlags flags{
      .ties = {"a=b"}, .untied = {"c"}, .on_tie_conflict = "alias", .no_rename = true, .max_header_bytes = "1KiB"};
  const ResolveOptions options = flags.options();
  EXPECT_EQ(options.ties.explicit_ties.at("a"), "b");
  EXPECT_THAT(options.ties.untied, ElementsAre("c"));
  EXPECT_EQ(options.ties.on_conflict, OnTieConflict::kAlias);
  EXPECT_FALSE(options.rename);
  EXPECT_EQ(options.limits.max_header_bytes, 1024U);
}

TEST(ModelFlags, LeaveEveryDefaultAlone) {
  const ResolveOptions options = OpenFlags{}.options();
  EXPECT_EQ(options.ties.on_conflict, OnTieConflict::kUntie);
  EXPECT_TRUE(options.rename);
  EXPECT_EQ(options.limits.max_header_bytes, SafetensorsLimits{}.max_header_bytes);
  EXPECT_EQ(ShardFlags{}.policy(), ShardDimPolicy::kLast);
  EXPECT_EQ(ShardFlags{}.dtype(), std::nullopt);
  const LocalShardOptions load = LoadFlags{}.options();
  EXPECT_EQ(load.read_buffer, LocalShardOptions{}.read_buffer);
  EXPECT_EQ(load.host_ram, std::nullopt);
  EXPECT_TRUE(load.map);
  EXPECT_TRUE(load.check_values);
}

TEST(ModelFlags, SayWhatALoadMayDo) {
  const LoadFlags flags{
      .inits = {"a=zeros"}, .read_buffer = "2MiB", .host_ram = "1GiB", .no_mmap = true, .no_check_values = true};
  const LocalShardOptions load = flags.options();
  EXPECT_EQ(load.read_buffer, 2U << 20U);
  EXPECT_EQ(load.host_ram, 1U << 30U);
  EXPECT_FALSE(load.map);
  EXPECT_FALSE(load.check_values);
  ASSERT_EQ(flags.sources().inits.size(), 1U);
  EXPECT_EQ(flags.sources().inits[0].fqn, "a");
}

TEST(ModelFlags, NameTheFlagWhoseValueCannotBeUsed) {
  for (const char* size : {"", "much", "-1", "16 M"}) {
    const auto refusal = raised<InputError>([&] { size_flag("--read-buffer", size); });
    ASSERT_TRUE(refusal) << size;
    EXPECT_EQ(refusal->code, Code::kBadFlag);
    EXPECT_EQ(refusal->where, "--read-buffer");
    EXPECT_THAT(refusal->fix, HasSubstr("16MiB"));
  }
  EXPECT_EQ(dtype_flag("--param-dtype", "bfloat16"), DType::kBF16);
  EXPECT_TRUE(raised<InputError>([&] { dtype_flag("--param-dtype", "int64"); }));
  for (const char* init : {"a", "=zeros", "a="}) {
    EXPECT_TRUE(raised<InputError>([&] { LoadFlags{.inits = {init}}.sources(); })) << init;
  }
}

TEST(ModelFlags, AreTheSameInEveryVerbThatOpensAModel) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors());
  const std::vector<std::vector<std::string>> verbs = {
      {"inspect"}, {"ties"}, {"doctor", "--ranks", "2"}, {"load", "--ranks", "2"}};
  for (const std::vector<std::string>& verb : verbs) {
    const auto with = [&](const std::vector<std::string>& flags) {
      std::vector<std::string> words = {verb[0], model.path()};
      words.insert(words.end(), verb.begin() + 1, verb.end());
      words.insert(words.end(), flags.begin(), flags.end());
      return run(words);
    };
    const Answer small_header = with({"--max-header-bytes", "64"});
    EXPECT_EQ(small_header.status, 2) << verb[0];
    EXPECT_THAT(small_header.out + small_header.err, HasSubstr("[header-too-large]")) << verb[0];
    const Answer no_rule = with({"--on-tie-conflict", "guess"});
    EXPECT_EQ(no_rule.status, 2) << verb[0];
    EXPECT_THAT(no_rule.err, AllOf(HasSubstr("[bad-flag]"), HasSubstr("--on-tie-conflict"))) << verb[0];
    EXPECT_EQ(with({"--no-rename", "--max-header-bytes", "1MiB"}).status, 0) << verb[0];
  }
}

} // namespace
} // namespace tieshard::cli
