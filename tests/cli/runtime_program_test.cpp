#include "tieshard/cli/runtime_program.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

#include "tests/core/base/temp_dir.h"
#include "tests/support/raised.h"

namespace tieshard::cli {
namespace {

using testing::raised;

TEST(RuntimeVerbs, AreThoseThatCompute) {
  EXPECT_TRUE(is_runtime_verb("eval"));
  EXPECT_TRUE(is_runtime_verb("generate"));
  EXPECT_TRUE(is_runtime_verb("train"));
  EXPECT_TRUE(is_runtime_verb("forward"));
  EXPECT_FALSE(is_runtime_verb("plan"));
  EXPECT_FALSE(is_runtime_verb(""));
}

TEST(RunProgram, GivesTheChildsStatus) {
  EXPECT_EQ(run_program("/bin/sh", {"-c", "exit 0"}), 0);
  EXPECT_EQ(run_program("/bin/sh", {"-c", "exit 7"}), 7);
  EXPECT_EQ(run_program("/bin/sh", {"-c", "kill -9 $$"}), 128 + SIGKILL);
}

TEST(RunProgram, HandsEachArgumentOnAsItIs) {
  EXPECT_EQ(run_program("/bin/sh", {"-c", "test \"$1\" = 'a b' && test -z \"$2\" && test $# = 2", "sh", "a b", ""}), 0);
}

TEST(RunProgram, WritesBothOutputsIntoAFile) {
  const TempDir dir;
  EXPECT_EQ(run_program("/bin/sh", {"-c", "echo one; echo two >&2; exit 3"}, dir / "said"), 3);
  EXPECT_EQ(dir.read("said"), "one\ntwo\n");
  EXPECT_EQ(run_program("/bin/sh", {"-c", "echo again"}, dir / "said"), 0);
  EXPECT_EQ(dir.read("said"), "again\n");
  const auto refused = raised([&] { run_program("/bin/sh", {}, dir / "no" / "said"); });
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kIoFailed);
}

TEST(RunProgram, GivesTheShellsStatusForAProgramThatIsNotThere) {
  EXPECT_EQ(run_program("/no/such/program", {}), 127);
}

TEST(RuntimeProgram, IsNamedWithTheRemedyWhereItIsNotBuilt) {
  // The test program lies in a folder of its own.
  const auto refused = raised<InputError>([] { runtime_program(); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kFileNotFound);
  EXPECT_THAT(refused->where, ::testing::EndsWith("/tieshard-runtime"));
  EXPECT_THAT(refused->fix, ::testing::HasSubstr("make build"));
}

} // namespace
} // namespace tieshard::cli
