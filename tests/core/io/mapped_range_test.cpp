// Mappings of files, and what becomes of them when the file is cut. Faults are real ones.

#include "tieshard/core/io/mapped_range.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/core/base/temp_dir.h"
#include "tests/support/raised.h"

namespace tieshard::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kPage = 4096;

class MappedFile : public ::testing::Test {
 protected:
  /// `pages` pages, each full of its own number (from 1 on).
  std::filesystem::path write(int pages) const {
    const std::filesystem::path path = directory_.path() / "weights";
    std::ofstream out(path, std::ios::binary);
    for (int page = 1; page <= pages; ++page) {
      out << std::string(kPage, static_cast<char>(page));
    }
    return path;
  }

  std::unique_ptr<MappedRange> map(std::uint64_t offset, std::uint64_t bytes) const {
    return MappedRange::map(File::open_for_reading(directory_.path() / "weights"), offset, bytes);
  }

  void cut_to(std::uint64_t pages) const {
    std::filesystem::resize_file(directory_.path() / "weights", pages * kPage);
  }

 private:
  TempDir directory_;
};

/// What a read of memory gives, past the optimiser.
int at(const MappedRange& range, std::uint64_t byte) {
  return static_cast<int>(*static_cast<const volatile std::byte*>(range.data() + byte));
}

TEST_F(MappedFile, BeginsAtAnyByte) {
  write(3);
  const auto range = map(kPage - 1, kPage + 2);
  ASSERT_NE(range, nullptr);
  range->populate(0, kPage + 2);
  EXPECT_EQ(at(*range, 0), 1);
  EXPECT_EQ(at(*range, 1), 2);
  EXPECT_EQ(at(*range, kPage), 2);
  EXPECT_EQ(at(*range, kPage + 1), 3);
  EXPECT_NO_THROW(range->require_intact());
}

TEST_F(MappedFile, IsWritableAndTheFileStaysAsItIs) {
  const auto path = write(2);
  const auto range = map(0, 2 * kPage);
  range->data()[5] = std::byte{77};
  EXPECT_EQ(at(*range, 5), 77);
  std::ifstream in(path, std::ios::binary);
  in.seekg(5);
  EXPECT_EQ(in.get(), 1);
}

TEST_F(MappedFile, ReadsZerosBehindACutAndSaysWhereItIs) {
  write(8);
  const auto range = map(kPage, 7 * kPage);
  range->data()[6 * kPage] = std::byte{99}; // what was written to a page does not save it
  EXPECT_NO_THROW(require_mappings_intact());
  cut_to(4);
  EXPECT_EQ(at(*range, 0), 2);
  EXPECT_NO_THROW(require_mappings_intact()); // nothing lost was asked for
  EXPECT_EQ(at(*range, 5 * kPage), 0);
  EXPECT_EQ(at(*range, 6 * kPage), 0);
  const auto failed = raised<PeerError>([] { require_mappings_intact(); });
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->code, Code::kFileChanged);
  EXPECT_THAT(failed->where, HasSubstr(concat("weights, byte ", 6 * kPage)));
  EXPECT_THROW(range->require_intact(), PeerError);
  range->data()[5 * kPage] = std::byte{1}; // a step that is under way goes on to its end
  EXPECT_EQ(at(*range, 5 * kPage), 1);
}

TEST_F(MappedFile, ThatIsCutIsForgottenWithItsMapping) {
  write(2);
  {
    const auto range = map(0, 2 * kPage);
    cut_to(0);
    EXPECT_EQ(at(*range, 0), 0);
    EXPECT_THROW(require_mappings_intact(), PeerError);
  }
  EXPECT_NO_THROW(require_mappings_intact());
}

TEST_F(MappedFile, IsPopulatedWithoutASignalWhenItIsCut) {
  write(3);
  const auto range = map(0, 3 * kPage);
  cut_to(1);
  range->populate(0, 3 * kPage);
  EXPECT_EQ(at(*range, 0), 1);
  EXPECT_EQ(at(*range, 2 * kPage), 0);
  EXPECT_THROW(range->require_intact(), PeerError);
}

TEST_F(MappedFile, MayFailInManyThreadsAndManyMappingsAtOnce) {
  write(4);
  std::vector<std::unique_ptr<MappedRange>> ranges;
  for (int i = 0; i < 600; ++i) { // more than one block of the registry
    ranges.push_back(map(0, 4 * kPage));
    ASSERT_NE(ranges.back(), nullptr);
  }
  cut_to(1);
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&ranges] {
      for (const auto& range : ranges) {
        EXPECT_EQ(at(*range, 0), 1);
        EXPECT_EQ(at(*range, 3 * kPage), 0);
        EXPECT_EQ(at(*range, kPage), 0);
      }
    });
  }
  threads.clear();
  for (const auto& range : ranges) {
    EXPECT_THROW(range->require_intact(), PeerError);
  }
  ranges.clear();
  EXPECT_NO_THROW(require_mappings_intact());
}

// --- Faults that are nobody's business here. Each in a process of its own: handlers are the process's.

using MappedGuardDeathTest = MappedFile;

/// A mapping that no guard knows, one page behind the end of its file.
const volatile char* unguarded(const std::filesystem::path& path) {
  const File file = File::open_for_reading(path);
  void* const pages = ::mmap(nullptr, 4 * kPage, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  std::filesystem::resize_file(path, kPage);
  return static_cast<const volatile char*>(pages) + 2 * kPage;
}

[[noreturn]] void exit_seven(int) {
  ::_exit(7);
}

[[noreturn]] void exit_eight(int, siginfo_t* info, void*) {
  ::_exit(info->si_code == BUS_ADRERR ? 8 : 1);
}

TEST_F(MappedGuardDeathTest, EndTheProcessAsWithoutAGuard) {
  const auto path = write(4);
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_DFL); // a sanitizer has its own
        const auto range = map(0, kPage);
        static_cast<void>(*unguarded(path));
      },
      ::testing::KilledBySignal(SIGBUS),
      "");
}

TEST_F(MappedGuardDeathTest, GoToTheHandlerThatWasThereBefore) {
  const auto path = write(4);
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, exit_seven);
        const auto range = map(0, kPage);
        static_cast<void>(*unguarded(path));
      },
      ::testing::ExitedWithCode(7),
      "");
}

TEST_F(MappedGuardDeathTest, GoToAHandlerThatCameLaterAndStayGuardedAgainstIt) {
  const auto path = write(4);
  EXPECT_EXIT(
      {
        const auto range = map(0, 4 * kPage);
        struct sigaction later{};
        later.sa_sigaction = exit_eight;
        later.sa_flags = SA_SIGINFO;
        ::sigaction(SIGBUS, &later, nullptr);
        require_mappings_intact(); // puts the guard in front again
        const volatile char* const other = unguarded(path);
        if (at(*range, 3 * kPage) != 0) {
          std::abort();
        }
        static_cast<void>(*other);
      },
      ::testing::ExitedWithCode(8),
      "");
}

/// Hands every signal back to the handler that it replaced, as a well-behaved library does.
struct sigaction before_polite{};
void polite(int signal, siginfo_t* info, void* context) {
  before_polite.sa_sigaction(signal, info, context);
}

TEST_F(MappedGuardDeathTest, DoNotGoInCirclesWhenALaterHandlerHandsThemBack) {
  const auto path = write(4);
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_DFL);
        const auto range = map(0, 4 * kPage);
        struct sigaction later{};
        later.sa_sigaction = polite;
        later.sa_flags = SA_SIGINFO;
        ::sigaction(SIGBUS, &later, &before_polite);
        require_mappings_intact();
        static_cast<void>(*unguarded(path));
      },
      ::testing::KilledBySignal(SIGBUS),
      "");
}

} // namespace
} // namespace tieshard::testing
