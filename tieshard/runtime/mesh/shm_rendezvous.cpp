#include "tieshard/runtime/mesh/shm_rendezvous.h"

#include <filesystem>
#include <functional>
#include <optional>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"

namespace tieshard {
namespace {

constexpr const char* kUnwilling = "unwilling";
constexpr const char* kGood = "good";

void put(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
}

/// Waits until another rank has put it.
std::string take(c10d::Store& store, const std::string& key) {
  const std::vector<std::uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

std::string key_of(const char* name, int rank) {
  return concat("shm/", name, "/", rank);
}

/// On rank 0: the first thing that keeps the ranks from sharing memory, from what all have said of their hosts.
std::optional<std::string> obstacle(c10d::Store& store, int size) {
  if (static_cast<std::uint32_t>(size) > kMostShmRanks) {
    return concat(size, " ranks are more than the ", kMostShmRanks, " that share memory");
  }
  const std::string mine = take(store, key_of("host", 0));
  for (int rank = 0; rank < size; ++rank) {
    const std::string theirs = take(store, key_of("host", rank));
    if (theirs == kUnwilling) {
      return concat("rank ", rank, " was told to use gloo");
    }
    if (theirs != mine) {
      return concat("rank ", rank, " is on another host than rank 0, or in another container");
    }
  }
  return std::nullopt;
}

/// Runs `attempt` and returns its text, or what it threw as a text that `failed` knows.
std::string attempted(const std::function<std::string()>& attempt) {
  try {
    return attempt();
  } catch (const Error& error) {
    return concat("!", error.diagnostic().where, ": ", error.diagnostic().why);
  }
}

bool failed(const std::string& text) {
  return text.starts_with('!');
}

/// On rank 0: what all ranks report of their part, as one text.
std::string outcome(c10d::Store& store, int size) {
  for (int rank = 0; rank < size; ++rank) {
    const std::string report = take(store, key_of("joined", rank));
    if (failed(report)) {
      return concat("!rank ", rank, ", ", report.substr(1));
    }
  }
  return kGood;
}

} // namespace

std::string host_identity() {
  try {
    return concat(read_text_file("/proc/sys/kernel/random/boot_id", 4096),
                  std::filesystem::read_symlink("/proc/self/ns/pid").string());
  } catch (const std::exception&) {                       // no /proc, or little of it
    return SharedMemory::create(64)->address().to_text(); // equal to none
  }
}

ShmMeeting meet_over_shm(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout, bool wanted) {
  put(store, key_of("host", rank), wanted ? host_identity() : kUnwilling);
  std::shared_ptr<SharedMemory> memory;
  if (rank == 0) {
    const std::optional<std::string> reason = obstacle(store, size);
    put(store, "shm/memory", reason ? "!" + *reason : attempted([&] {
          memory = make_shm({.ranks = static_cast<std::uint32_t>(size)});
          return memory->address().to_text();
        }));
  }
  const std::string address = take(store, "shm/memory");
  if (failed(address)) {
    return {.group = nullptr, .why_not = address.substr(1)};
  }
  std::unique_ptr<ShmGroup> group;
  put(store, key_of("joined", rank), attempted([&]() -> std::string {
        if (rank != 0) {
          memory = SharedMemory::open(SharedMemoryAddress::from_text(address));
        }
        group = std::make_unique<ShmGroup>(memory, static_cast<std::uint32_t>(rank), timeout);
        return kGood;
      }));
  if (rank == 0) {
    put(store, "shm/outcome", outcome(store, size));
  }
  const std::string verdict = take(store, "shm/outcome");
  if (failed(verdict)) {
    return {.group = nullptr, .why_not = verdict.substr(1)};
  }
  if (rank == 0) {
    memory->close_descriptor(); // all have it mapped
  }
  group->meet();
  return {.group = std::move(group), .why_not = {}};
}

} // namespace tieshard
