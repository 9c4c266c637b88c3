// The launcher makes ranks of this test program; each does what the test gives it and leaves without a word to gtest.

#include "tieshard/runtime/mesh/local_launcher.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kFolder = "TIESHARD_LAUNCHER_TEST_FOLDER";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "(unset)";
}

/// Where the ranks of one test leave their notes; made fresh.
std::filesystem::path make_folder() {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) /
      concat("tieshard.launcher.", ::getpid(), ".", ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  ::setenv(kFolder, folder.c_str(), 1);
  return folder;
}

std::string note(const std::filesystem::path& folder, int rank) {
  std::ifstream file(folder / std::to_string(rank));
  return {std::istreambuf_iterator<char>(file), {}};
}

/// In a rank: tells the test something, all at once.
void leave_note(const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(variable(kFolder)) / variable("RANK");
  std::ofstream(path.string() + ".part") << text;
  std::filesystem::rename(path.string() + ".part", path);
}

using Work = void (*)();

/// Launches ranks that do `work`. @returns the launcher's status; does not return in a rank
int launch(Work work,
           std::int64_t ranks = 2,
           const std::function<void(const Diagnostic&)>& on_death = {},
           OnStopSignal on_stop = OnStopSignal::kEnd) {
  const std::optional<int> status =
      launch_local({.ranks = ranks, .on_stop = on_stop, .grace = milliseconds(200), .on_death = on_death});
  if (!status) {
    work();
    ::_exit(0);
  }
  return *status;
}

bool wait_for(const std::function<bool()>& done, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!done() && Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  return done();
}

/// True while the process runs: not when it is gone, nor when it only waits to be reaped.
bool running(pid_t process) {
  std::ifstream file(concat("/proc/", process, "/stat"));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text[name_end + 2] != 'Z' && text[name_end + 2] != 'X';
}

void tells_its_variables() {
  leave_note(concat(variable("RANK"),
                    " ",
                    variable("WORLD_SIZE"),
                    " ",
                    variable("LOCAL_RANK"),
                    " ",
                    variable("LOCAL_WORLD_SIZE"),
                    " ",
                    variable("MASTER_ADDR"),
                    ":",
                    variable("MASTER_PORT"),
                    " ",
                    variable("TORCHELASTIC_USE_AGENT_STORE")));
}

void ends_with_status_7_if_it_is_the_last() {
  if (variable("RANK") == std::to_string(std::stoi(variable("WORLD_SIZE")) - 1)) {
    ::_exit(7);
  }
  std::this_thread::sleep_for(seconds(60));
  ::_exit(8);
}

void is_killed_if_it_is_the_first() {
  if (variable("RANK") == "0") {
    ::raise(SIGKILL);
  }
  std::this_thread::sleep_for(seconds(60));
}

void ignores_sigterm_or_ends_with_status_3() {
  if (variable("RANK") == "0") {
    ::signal(SIGTERM, SIG_IGN);
    leave_note(std::to_string(::getpid()));
    std::this_thread::sleep_for(seconds(60));
  }
  wait_for([] { return !note(variable(kFolder), 0).empty(); }, seconds(20));
  ::_exit(3);
}

void tells_its_process_and_sleeps() {
  leave_note(std::to_string(::getpid()));
  std::this_thread::sleep_for(seconds(60));
}

TEST(LocalLauncher, GivesEachRankTorchrunsVariablesAndReturnsZero) {
  const auto folder = make_folder();
  ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1); // of a torchrun around it: not of these ranks
  EXPECT_EQ(launch(tells_its_variables, 3), 0);
  ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  const std::string port = note(folder, 0).substr(note(folder, 0).find(':') + 1);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(note(folder, rank), concat(rank, " 3 ", rank, " 3 127.0.0.1:", port));
  }
  EXPECT_THAT(port, ::testing::ContainsRegex("^[1-9][0-9]+ \\(unset\\)$"));
}

TEST(LocalLauncher, ReturnsTheStatusOfTheRankThatFailedAndEndsTheOthers) {
  make_folder();
  const auto start = Clock::now();
  EXPECT_EQ(launch(ends_with_status_7_if_it_is_the_last, 3), 7);
  EXPECT_LT(Clock::now() - start, seconds(30));
}

TEST(LocalLauncher, AKilledRankGives137AndIsReportedForItself) {
  make_folder();
  std::vector<Diagnostic> deaths;
  const auto note_death = [&](const Diagnostic& diagnostic) { deaths.push_back(diagnostic); };
  EXPECT_EQ(launch(is_killed_if_it_is_the_first, 2, note_death), 128 + SIGKILL);
  ASSERT_EQ(deaths.size(), 1U); // the others were ended by the launcher: nothing to report
  EXPECT_EQ(deaths.front().code, Code::kRankDied);
  EXPECT_THAT(deaths.front().where, ::testing::StartsWith("rank 0/2, process "));
  EXPECT_THAT(deaths.front().why, ::testing::HasSubstr("signal 9"));
}

TEST(LocalLauncher, ARankThatIgnoresSigtermIsKilled) {
  const auto folder = make_folder();
  EXPECT_EQ(launch(ignores_sigterm_or_ends_with_status_3), 3);
  EXPECT_FALSE(running(std::stoi(note(folder, 0))));
}

TEST(LocalLauncher, RefusesANumberOfRanksThatNoHostRuns) {
  for (const std::int64_t ranks : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    expect_refusal([&] { launch(tells_its_variables, ranks); },
                   Code::kBadRankCount,
                   {"--ranks", concat("expected 1 to ", kMostLocalRanks, ", got ", ranks)});
  }
}

TEST(LocalLauncher, StartsNoMoreRanksAfterASignal) {
  const auto folder = make_folder();
  ::sigset_t term;
  ::sigemptyset(&term);
  ::sigaddset(&term, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &term, nullptr);
  ::raise(SIGTERM); // pending when the launcher begins: it sees it after the first rank
  EXPECT_EQ(launch(tells_its_process_and_sleeps, 12), 128 + SIGTERM);
  ::sigprocmask(SIG_UNBLOCK, &term, nullptr);
  EXPECT_EQ(note(folder, 11), "");
}

/// Launches sleeping ranks from a process of its own, sends it `signal`, and expects that nothing is left.
/// @returns the wait status of the launcher
int signal_a_launcher(int signal,
                      Work body = tells_its_process_and_sleeps,
                      OnStopSignal on_stop = OnStopSignal::kEnd,
                      int times = 1) {
  const auto folder = make_folder();
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::_exit(launch(body, 2, {}, on_stop));
  }
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(wait_for([&] { return !note(folder, rank).empty(); }, seconds(20)));
    ranks.push_back(std::stoi(note(folder, rank)));
    EXPECT_TRUE(running(ranks.back()));
  }
  for (int time = 0; time < times; ++time) {
    std::this_thread::sleep_for(std::chrono::milliseconds(time == 0 ? 0 : 500)); // two that come at once are one
    ::kill(launcher, signal);
  }
  int status = 0;
  ::waitpid(launcher, &status, 0);
  for (const pid_t rank : ranks) {
    EXPECT_TRUE(wait_for([&] { return !running(rank); }, seconds(5))) << "process " << rank << " is left";
  }
  return status;
}

TEST(LocalLauncher, ASignalToItEndsEveryRankAndIsItsStatus) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const int status = signal_a_launcher(signal);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
  }
}

void ends_well_when_it_gets_a_signal() {
  ::sigset_t stops;
  ::sigemptyset(&stops);
  ::sigaddset(&stops, SIGTERM);
  ::sigaddset(&stops, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &stops, nullptr);
  leave_note(std::to_string(::getpid()));
  int got = 0;
  ::sigwait(&stops, &got);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500)); // longer than the grace: saving takes its time
  ::_exit(got == SIGTERM || got == SIGUSR1 ? 0 : 9);
}

TEST(LocalLauncher, PassesAStopSignalOnAndWaitsForRanksThatSave) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const int status = signal_a_launcher(signal, ends_well_when_it_gets_a_signal, OnStopSignal::kPassOn);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
}

TEST(LocalLauncher, ASecondStopSignalEndsRanksThatGoOn) {
  const int status = signal_a_launcher(
      SIGTERM,
      [] {
        ::signal(SIGTERM, SIG_IGN);
        tells_its_process_and_sleeps();
      },
      OnStopSignal::kPassOn,
      /*times=*/2);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
}

TEST(LocalLauncher, WhenItIsKilledItsRanksAreToo) {
  const int status = signal_a_launcher(SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(status));
}

} // namespace
} // namespace tieshard::testing
