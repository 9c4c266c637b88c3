#include "tieshard/core/checkpoint/open_files.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace tieshard {
namespace {

/// What became of one file: opened, refused, or not looked at because an earlier one was refused.
struct Outcome {
  std::optional<SafetensorsFile> file{};
  std::exception_ptr refusal{};
};

} // namespace

std::vector<SafetensorsFile> open_files(const std::vector<std::filesystem::path>& paths,
                                        const SafetensorsLimits& limits) {
  std::vector<Outcome> outcomes(paths.size());
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> refused = false;
  const auto work = [&] {
    // Files are taken in order, and those taken are looked at: all that lie before a refused one are among them.
    while (!refused) {
      const std::size_t i = next++;
      if (i >= paths.size()) {
        break;
      }
      try {
        outcomes[i].file = SafetensorsFile::open(paths[i], limits);
      } catch (...) {
        outcomes[i].refusal = std::current_exception();
        refused = true;
      }
    }
  };
  const std::size_t threads = std::min<std::size_t>(std::max(1U, std::thread::hardware_concurrency()), paths.size());
  std::vector<std::jthread> others;
  try {
    while (others.size() + 1 < threads) {
      others.emplace_back(work);
    }
  } catch (const std::system_error&) { // no more threads are to be had: those that are do the work
  }
  work();
  others.clear();

  std::vector<SafetensorsFile> files;
  files.reserve(paths.size());
  for (Outcome& outcome : outcomes) {
    if (outcome.refusal) {
      std::rethrow_exception(outcome.refusal);
    }
    files.push_back(*std::move(outcome.file));
  }
  return files;
}

} // namespace tieshard
