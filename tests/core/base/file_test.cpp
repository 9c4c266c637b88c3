#include "tieshard/core/base/file.h"

#include <chrono>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>

#include "tieshard/core/base/staged_file.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string read_range(const File& file, std::uint64_t offset, std::size_t bytes) {
  std::string text(bytes, '\0');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(File, ReadsExactlyTheRange) {
  const TempDir dir;
  const File file = File::open_for_reading(dir.write("f", "0123456789"));
  EXPECT_EQ(file.size(), 10U);
  EXPECT_EQ(read_range(file, 3, 4), "3456");
  EXPECT_EQ(read_range(file, 0, 10), "0123456789");
  EXPECT_EQ(read_range(file, 10, 0), "");
}

TEST(File, SaysWhichBytesOfASparseFileAreStored) {
  const TempDir dir;
  constexpr std::uint64_t kHole = 1 << 24;
  {
    const File file = File::open_for_writing(dir.write("f", "head"));
    file.write_at(kHole, bytes_of("tail"));
  }
  const File file = File::open_for_reading(dir / "f");
  const auto head = file.next_stored(0);
  ASSERT_TRUE(head);
  EXPECT_EQ(head->begin, 0U);
  const auto tail = file.next_stored(head->end);
  if (head->end < file.size()) { // else this file system has no holes
    ASSERT_TRUE(tail);
    EXPECT_GT(tail->begin, kHole / 2);
    EXPECT_EQ(tail->end, kHole + 4);
  }
  EXPECT_EQ(file.next_stored(kHole + 2), (FileExtent{kHole + 2, kHole + 4}));
  EXPECT_EQ(file.next_stored(kHole + 4), std::nullopt);
  EXPECT_EQ(file.next_stored(~std::uint64_t{0}), std::nullopt);
}

TEST(File, RefusesToReadPastTheEnd) {
  const TempDir dir;
  const File file = File::open_for_reading(dir.write("f", "0123456789"));
  expect_refusal<PeerError>(Code::kIoFailed, {(dir / "f").string(), "byte 10"}, [&] { read_range(file, 8, 3); });
  expect_refusal<PeerError>(Code::kIoFailed, {}, [&] { read_range(file, ~std::uint64_t{0} - 7, 8); });
}

TEST(File, NamesAFileThatIsNotThere) {
  const TempDir dir;
  expect_refusal<InputError>(Code::kFileNotFound, {(dir / "no").string()}, [&] { File::open_for_reading(dir / "no"); });
  fs::create_symlink("nowhere", dir / "dangling");
  expect_refusal<InputError>(Code::kFileNotFound, {"symbolic link"}, [&] { File::open_for_reading(dir / "dangling"); });
  dir.write("f", "x");
  expect_refusal<InputError>(Code::kFileNotFound, {}, [&] { File::open_for_reading(dir / "f/g"); });
}

TEST(File, FollowsSymbolicLinks) {
  const TempDir dir;
  dir.write("blob", "content");
  fs::create_symlink("blob", dir / "link");
  EXPECT_EQ(read_text_file(dir / "link"), "content");
}

TEST(File, RefusesWhatIsNoRegularFileWithoutWaiting) {
  const TempDir dir;
  expect_refusal<InputError>(Code::kFileUnreadable, {"directory"}, [&] { File::open_for_reading(dir.path()); });
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_refusal<InputError>(Code::kFileUnreadable, {"pipe"}, [&] { File::open_for_reading(dir / "pipe"); });
}

TEST(File, CreatesWithTheReservedSizeAndTruncatesAnOldOne) {
  const TempDir dir;
  dir.write("f", std::string(100, 'x'));
  const File file = File::create(dir / "f", 10);
  EXPECT_EQ(file.size(), 10U);
  file.write_at(4, bytes_of("abc"));
  EXPECT_EQ(dir.read("f"), std::string("\0\0\0\0abc\0\0\0", 10));
  EXPECT_EQ(read_range(file, 4, 3), "abc") << "what was written can be read back by the same descriptor";
}

TEST(File, SecondWriterWritesItsRangeOfAnExistingFile) {
  const TempDir dir;
  const File first = File::create(dir / "f", 6);
  const File second = File::open_for_writing(dir / "f");
  std::thread other([&] { second.write_at(3, bytes_of("def")); });
  first.write_at(0, bytes_of("abc"));
  other.join();
  first.sync();
  EXPECT_EQ(dir.read("f"), "abcdef");
  expect_refusal<PeerError>(Code::kIoFailed, {"absent"}, [&] { File::open_for_writing(dir / "absent"); });
}

TEST(File, FullDiskHasItsOwnCode) {
  const File full = File::open_for_writing("/dev/full");
  expect_refusal<PeerError>(Code::kDiskFull, {"/dev/full", "3 bytes"}, [&] { full.write_at(0, bytes_of("abc")); });
}

TEST(File, ReservingMoreThanThereIsFailsAtOnceAndLeavesNothing) {
  const TempDir dir;
  try {
    File::create(dir / "huge", std::uint64_t{1} << 60);
    FAIL() << "reserved 2^60 bytes";
  } catch (const PeerError& error) { // full, or larger than the file system's files can be
    EXPECT_TRUE(error.diagnostic().code == Code::kDiskFull || error.diagnostic().code == Code::kIoFailed)
        << error.what();
  }
  EXPECT_THROW(File::create(dir / "huge", ~std::uint64_t{0}), PeerError);
  EXPECT_TRUE(dir.names().empty());
}

TEST(File, MovingHandsTheDescriptorOver) {
  const TempDir dir;
  File a = File::open_for_reading(dir.write("a", "aaa"));
  File b = File::open_for_reading(dir.write("b", "bbb"));
  a = std::move(b);
  EXPECT_EQ(read_range(a, 0, 3), "bbb");
  EXPECT_EQ(a.path(), dir / "b");
  const File c = std::move(a);
  EXPECT_EQ(read_range(c, 0, 3), "bbb");
}

TEST(File, DestructionClosesTheDescriptor) {
  const TempDir dir;
  dir.write("f", "x");
  const auto lowest_free = [&] {
    const int descriptor = ::open((dir / "f").c_str(), O_RDONLY);
    ::close(descriptor);
    return descriptor;
  };
  const int before = lowest_free();
  {
    File a = File::open_for_reading(dir / "f");
    const File b = std::move(a);
  }
  EXPECT_EQ(lowest_free(), before);
}

TEST(File, IsUnchangedWhileNobodyTouchesIt) {
  const TempDir dir;
  const File file = File::open_for_reading(dir.write("f", "12345"));
  EXPECT_EQ(file.identity().size, 5U);
  EXPECT_GT(file.identity().inode, 0U);
  EXPECT_NO_THROW(file.require_unchanged());
  EXPECT_NO_THROW(file.read_ahead(0, 5)); // and a hint beyond the end is only a hint
  EXPECT_NO_THROW(file.read_ahead(1ULL << 63, 1ULL << 63));
}

TEST(File, SaysWhatChangedSinceItWasOpened) {
  const TempDir dir;
  const auto refuse = [](const File& file, const std::vector<std::string>& parts) {
    expect_refusal<PeerError>(Code::kFileChanged, parts, [&] { file.require_unchanged(); });
  };
  const File longer = File::open_for_reading(dir.write("longer", "12345"));
  dir.write("longer", "1234567");
  refuse(longer, {"longer", "expected 5 bytes", "got 7 bytes"});
  const File later = File::open_for_reading(dir.write("later", "12345"));
  fs::last_write_time(dir / "later", fs::last_write_time(dir / "later") + std::chrono::nanoseconds(1));
  refuse(later, {"later", "modified at"});
  const File gone = File::open_for_reading(dir.write("gone", "12345"));
  fs::remove(dir / "gone");
  refuse(gone, {"gone", "no file of that name"});
  const File replaced = File::open_for_reading(dir.write("replaced", "12345"));
  fs::rename(dir.write("new", "12345"), dir / "replaced");
  refuse(replaced, {"replaced", "another file under that name"});
}

TEST(TextFile, IsRefusedAboveItsLimit) {
  const TempDir dir;
  dir.write("f", "12345");
  EXPECT_EQ(read_text_file(dir / "f", 5), "12345");
  expect_refusal<InputError>(Code::kFileTooLarge, {"4 bytes", "5"}, [&] { read_text_file(dir / "f", 4); });
}

TEST(TextFile, ReplacesAnOldOneAndLeavesNoTemporaryFile) {
  const TempDir dir;
  write_text_file(dir / "f", "old and longer");
  write_text_file(dir / "f", "new");
  EXPECT_EQ(dir.read("f"), "new");
  EXPECT_EQ(dir.names(), std::vector<std::string>{"f"});
  write_text_file(dir / "empty", "");
  EXPECT_EQ(dir.read("empty"), "");
}

TEST(TextFile, NamesADirectoryThatIsNotThere) {
  const TempDir dir;
  expect_refusal<PeerError>(Code::kIoFailed, {"sub"}, [&] { write_text_file(dir / "sub/f", "x"); });
}

TEST(StagedFile, IsAbsentUntilPublishedAndTheOldOneIsIntact) {
  const TempDir dir;
  dir.write("f", "old");
  {
    const StagedFile abandoned = StagedFile::create(dir / "f", 3);
    abandoned.file().write_at(0, bytes_of("new"));
    EXPECT_EQ(dir.read("f"), "old");
    EXPECT_EQ(dir.names().size(), 2U);
  }
  EXPECT_EQ(dir.names(), std::vector<std::string>{"f"});
  StagedFile staged = StagedFile::create(dir / "f", 3);
  staged.file().write_at(0, bytes_of("new"));
  staged.publish();
  EXPECT_EQ(dir.read("f"), "new");
}

TEST(StagedFile, TwoOfOneNameDoNotDisturbEachOther) {
  const TempDir dir;
  StagedFile one = StagedFile::create(dir / "f", 3);
  StagedFile two = StagedFile::create(dir / "f", 3);
  one.file().write_at(0, bytes_of("one"));
  two.file().write_at(0, bytes_of("two"));
  one.publish();
  two.publish();
  EXPECT_EQ(dir.read("f"), "two");
  EXPECT_EQ(dir.names(), std::vector<std::string>{"f"});
}

TEST(StagedFile, FailedRenameNamesTheFileAndLeavesNothing) {
  const TempDir dir;
  fs::create_directory(dir / "f");
  {
    StagedFile staged = StagedFile::create(dir / "f", 0);
    expect_refusal<PeerError>(Code::kIoFailed, {(dir / "f").string()}, [&] { staged.publish(); });
  }
  EXPECT_EQ(dir.names(), std::vector<std::string>{"f"});
}

TEST(ListDirectory, GivesTheNamesSorted) {
  const TempDir dir;
  for (const char* name : {"c", "a", ".b"}) {
    dir.write(name, "");
  }
  EXPECT_EQ(list_directory(dir.path()), (std::vector<std::string>{".b", "a", "c"}));
  expect_refusal<InputError>(Code::kFileUnreadable, {"absent"}, [&] { list_directory(dir / "absent"); });
  expect_refusal<InputError>(Code::kFileUnreadable, {"directory"}, [&] { list_directory(dir / "a"); });
}

TEST(SyncDirectory, AcceptsTheEmptyPathOfABareFileName) {
  EXPECT_NO_THROW(sync_directory(""));
  const TempDir dir;
  expect_refusal<PeerError>(Code::kIoFailed, {"absent"}, [&] { sync_directory(dir / "absent"); });
}

} // namespace
} // namespace tieshard
