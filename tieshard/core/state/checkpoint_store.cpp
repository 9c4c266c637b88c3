#include "tieshard/core/state/checkpoint_store.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <string_view>
#include <system_error>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::size_t kDigits = 9;
constexpr std::string_view kLatest = "latest";

/// Names that exist only while something is written or removed, and after a kill in the middle of that.
bool is_left_over(std::string_view name) {
  const bool hidden =
      name.starts_with(concat(".", kPrefix)) && (name.ends_with(".staging") || name.ends_with(".removed"));
  const bool temporary = name.starts_with(concat(kLatest, ".")) && name.ends_with(".tmp");
  return hidden || temporary;
}

[[noreturn]] void throw_failed(const fs::path& path, const std::string& doing, const std::error_code& error) {
  const bool full = error == std::errc::no_space_on_device;
  throw PeerError({.code = full ? Code::kDiskFull : Code::kIoFailed,
                   .what = "the directory of checkpoints could not be changed",
                   .where = path.string(),
                   .why = concat("expected to ", doing, ", got: ", error.message()),
                   .fix = "check the permissions of the directory and the free space of its disk; complete "
                          "checkpoints are as they were"});
}

/// A name that is free: "left-step-000000300", or with "-2", "-3" and so on behind.
fs::path free_name(const fs::path& directory, std::int64_t step) {
  const std::string plain = concat("left-", CheckpointStore::name_of(step));
  fs::path name = directory / plain;
  for (int again = 2; fs::exists(name); ++again) {
    name = directory / concat(plain, "-", again);
  }
  return name;
}

/// Where `directory` is, or the nearest above it that is there.
fs::path nearest_existing(const fs::path& directory) {
  std::error_code error;
  fs::path path = fs::absolute(directory, error);
  while (!fs::exists(path, error) && path.has_parent_path() && path != path.parent_path()) {
    path = path.parent_path();
  }
  return path;
}

void make_directories(const fs::path& directory) {
  std::error_code error;
  if (fs::create_directories(directory, error)) {
    const fs::path parent = directory.parent_path();
    sync_directory(parent.empty() ? fs::path(".") : parent);
  }
  if (error) {
    throw_failed(directory, "make the directory", error);
  }
}

} // namespace

std::string CheckpointStore::name_of(std::int64_t step) {
  const std::string digits = std::to_string(step);
  return concat(kPrefix, std::string(kDigits - std::min(kDigits, digits.size()), '0'), digits);
}

std::optional<std::int64_t> CheckpointStore::step_of(std::string_view name) {
  std::int64_t step = -1;
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kPrefix.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool is_name = error == std::errc() && name_of(step) == name;
  return is_name ? std::optional(step) : std::nullopt;
}

fs::path CheckpointStore::path_of(std::int64_t step) const {
  return directory_ / name_of(step);
}

fs::path CheckpointStore::staging_of(std::int64_t step) const {
  return tieshard::staging_of(path_of(step));
}

std::vector<std::int64_t> CheckpointStore::steps() const {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator entry(directory_, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::optional<std::int64_t> step = step_of(entry->path().filename().string());
    std::error_code ignored;
    if (step && entry->is_directory(ignored) && !entry->is_symlink(ignored)) {
      steps.push_back(*step);
    }
  }
  std::ranges::sort(steps, std::greater());
  return steps;
}

std::optional<std::string> CheckpointStore::latest() const {
  std::error_code error;
  if (!fs::exists(directory_ / kLatest, error)) {
    return std::nullopt;
  }
  std::string name = read_text_file(directory_ / kLatest);
  name = name.substr(0, name.find('\n'));
  return step_of(name) ? std::optional(name) : std::nullopt;
}

fs::path CheckpointStore::stage(std::int64_t step, std::uint64_t bytes) const {
  make_directories(directory_);
  for (const std::string& name : list_directory(directory_)) {
    if (is_left_over(name)) {
      std::error_code error;
      fs::remove_all(directory_ / name, error);
      if (error) {
        throw_failed(directory_ / name, "remove what an earlier job left", error);
      }
    }
  }
  require_free_space(directory_, bytes, "; or keep fewer checkpoints (--keep)");
  fs::path staging = staging_of(step);
  make_directories(staging);
  return staging;
}

std::vector<fs::path> CheckpointStore::publish(std::int64_t step) const {
  std::vector<fs::path> set_aside;
  for (const std::int64_t other : steps()) {
    if (other > step) {
      const fs::path name = free_name(directory_, other);
      std::error_code error;
      fs::rename(path_of(other), name, error);
      if (error) {
        throw_failed(path_of(other), concat("rename it to ", name.string()), error);
      }
      set_aside.push_back(name);
    }
  }
  replace_directory(path_of(step));
  write_text_file(directory_ / kLatest, name_of(step) + "\n");
  return set_aside;
}

void CheckpointStore::discard(std::int64_t step) const noexcept {
  std::error_code ignored;
  fs::remove_all(staging_of(step), ignored);
}

void CheckpointStore::prune(std::int64_t keep) const {
  const std::optional<std::string> named = latest();
  std::int64_t kept = 0;
  for (const std::int64_t step : steps()) {
    if (kept < std::max<std::int64_t>(keep, 1)) {
      ++kept;
    } else if (name_of(step) != named) {
      remove_directory(path_of(step));
    }
  }
}

void require_free_space(const fs::path& directory, std::uint64_t bytes, std::string_view remedy) {
  std::error_code error;
  const fs::path there = nearest_existing(directory);
  const fs::space_info space = fs::space(there, error);
  if (error) {
    throw_failed(there, "ask for the free space", error);
  }
  if (space.available < bytes) {
    throw PeerError({.code = Code::kDiskFull,
                     .what = "there is no room on the disk",
                     .where = directory.string(),
                     .why = concat("expected ",
                                   bytes,
                                   " free bytes (",
                                   format_bytes(bytes),
                                   "), got ",
                                   space.available,
                                   " (",
                                   format_bytes(space.available),
                                   "); nothing was written"),
                     .fix = concat("free space on that disk or write to another one", remedy)});
  }
}

} // namespace tieshard
