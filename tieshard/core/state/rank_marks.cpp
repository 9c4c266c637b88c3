#include "tieshard/core/state/rank_marks.h"

#include <chrono>
#include <sstream>
#include <system_error>
#include <thread>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

fs::path mark(const fs::path& staging, const char* kind, std::int64_t rank) {
  return staging / concat(".", kind, "-", rank);
}

PeerError failed(const fs::path& staging, std::int64_t rank, const std::string& why) {
  return PeerError({.code = Code::kSaveFailed,
                    .what = "a checkpoint could not be saved in the background",
                    .where = concat(staging.string(), ", shard rank ", rank),
                    .why = why,
                    .fix = "mend what is said above; the checkpoints before this one are as they were"});
}

} // namespace

std::string to_text(const std::vector<FileRecord>& files) {
  std::string text;
  for (const FileRecord& file : files) {
    text += concat(file.name, " ", file.bytes, " ", file.xxh128, "\n");
  }
  return text;
}

std::vector<FileRecord> parse_records(const std::string& text) {
  std::vector<FileRecord> files;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    FileRecord file;
    std::istringstream parts(line);
    if (!(parts >> file.name >> file.bytes >> file.xxh128)) {
      throw InternalError({.code = Code::kBug,
                           .what = "a rank's list of files is not as it was written",
                           .why = concat("got \"", line, "\""),
                           .fix = "report this"});
    }
    files.push_back(std::move(file));
  }
  return files;
}

void mark_done(const fs::path& staging, std::int64_t rank, const std::vector<FileRecord>& files) {
  write_text_file(mark(staging, "done", rank), to_text(files));
}

void mark_failed(const fs::path& staging, std::int64_t rank, const std::string& why) noexcept {
  try {
    write_text_file(mark(staging, "failed", rank), why);
  } catch (const std::exception&) { // its own future holds the failure
  }
}

std::vector<FileRecord> await_marks(const fs::path& staging, std::int64_t ranks, const std::atomic<bool>& given_up) {
  constexpr std::chrono::milliseconds kPause{5};
  std::vector<FileRecord> files;
  for (std::int64_t rank = 1; rank < ranks;) {
    std::error_code error;
    const fs::path done = mark(staging, "done", rank);
    if (fs::exists(done, error)) {
      const std::vector<FileRecord> of_rank = parse_records(read_text_file(done));
      files.insert(files.end(), of_rank.begin(), of_rank.end());
      fs::remove(done, error);
      ++rank;
      continue;
    }
    if (const fs::path failure = mark(staging, "failed", rank); fs::exists(failure, error)) {
      throw failed(staging, rank, read_text_file(failure));
    }
    if (given_up.load()) {
      throw failed(staging, rank, "the run ended before this rank had written its files");
    }
    std::this_thread::sleep_for(kPause);
  }
  return files;
}

} // namespace tieshard
