#include "tieshard/core/state/directory_lock.h"

#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"

namespace tieshard {
namespace {

TEST(DirectoryLock, MakesTheDirectoryAndIsFreeAgainAtItsEnd) {
  const TempDir temp;
  {
    const DirectoryLock lock = DirectoryLock::take(temp / "run");
  }
  const DirectoryLock again = DirectoryLock::take(temp / "run");
}

TEST(DirectoryLock, ThatIsHeldIsRefusedWithTheProcessAndHostThatHoldIt) {
  const TempDir temp;
  const DirectoryLock lock = DirectoryLock::take(temp.path());
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  const std::string holder = concat("process ", ::getpid(), " of host ", host);
  expect_refusal<InputError>(
      Code::kDirectoryInUse, {temp.path().string(), holder}, [&] { DirectoryLock::take(temp.path()); });
}

TEST(DirectoryLock, BesideADirectoryIsInNothingThatIsPublishedAndGoesWithItsHolder) {
  const TempDir temp;
  {
    DirectoryLock lock = DirectoryLock::take_beside(temp / "above" / "out" / "");
    EXPECT_FALSE(std::filesystem::exists(temp / "above" / "out"));
    const DirectoryLock moved = std::move(lock);
    EXPECT_TRUE(std::filesystem::exists(temp / "above" / ".out.lock"));
    expect_refusal<InputError>(
        Code::kDirectoryInUse, {".out.lock"}, [&] { DirectoryLock::take_beside(temp / "above" / "out"); });
  }
  EXPECT_FALSE(std::filesystem::exists(temp / "above" / ".out.lock"));
  const DirectoryLock again = DirectoryLock::take_beside(temp / "above" / "out");
}

TEST(DirectoryLock, MovesWithItsObject) {
  const TempDir temp;
  DirectoryLock lock = DirectoryLock::take(temp.path());
  DirectoryLock moved = std::move(lock);
  EXPECT_THROW(DirectoryLock::take(temp.path()), InputError);
  {
    DirectoryLock assigned = DirectoryLock::take(temp / "other");
    assigned = std::move(moved);
  }
  const DirectoryLock again = DirectoryLock::take(temp.path());
}

TEST(DirectoryLock, OfAKilledProcessIsGoneWithIt) {
  const TempDir temp;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const DirectoryLock lock = DirectoryLock::take(temp.path());
    static_cast<void>(!::write(ready[1], "x", 1));
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  expect_refusal<InputError>(
      Code::kDirectoryInUse, {concat("process ", child)}, [&] { DirectoryLock::take(temp.path()); });
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const DirectoryLock lock = DirectoryLock::take(temp.path());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(DirectoryLock, WhereNoFileCanBeMadeFailsWithTheKernelsReason) {
  const TempDir temp;
  temp.write("file", "");
  expect_refusal<PeerError>(Code::kIoFailed, {"file"}, [&] { DirectoryLock::take(temp / "file"); });
  expect_refusal<PeerError>(Code::kIoFailed, {"/proc/.lock"}, [] { DirectoryLock::take("/proc"); });
}

} // namespace
} // namespace tieshard
