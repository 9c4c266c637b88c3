#include "tieshard/runtime/mesh/shm_rendezvous.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr const char* kUnwilling = "unwilling";

/// The first thing that keeps the ranks from sharing memory, by what all have said; the same on every rank.
std::optional<std::string> obstacle(const RollCall& calls, const std::vector<std::string>& hosts) {
  if (calls.size() > kMostShmRanks) {
    return concat(calls.size(), " ranks are more than the ", kMostShmRanks, " that share memory");
  }
  for (std::size_t place = 0; place < hosts.size(); ++place) {
    const std::string rank = concat("rank ", calls.ranks()[place]);
    if (hosts[place] == kUnwilling) {
      return concat(rank, " was told to use gloo");
    }
    if (place == 0) {
      continue;
    }
    const std::string why = difference(HostIdentity::from_text(hosts[0]), HostIdentity::from_text(hosts[place]));
    if (!why.empty()) {
      return concat(rank, " is ", why, " than rank ", calls.ranks()[0]);
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

/// What the first rank that could not do its part says of it.
std::optional<std::string> first_failure(const RollCall& calls, const std::vector<std::string>& reports) {
  for (std::size_t place = 0; place < reports.size(); ++place) {
    if (failed(reports[place])) {
      return concat("rank ", calls.ranks()[place], ", ", reports[place].substr(1));
    }
  }
  return std::nullopt;
}

/// Not read_text_file: files of /proc say that they have no bytes.
std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  return std::filesystem::read_symlink(path).string();
}

} // namespace

HostIdentity HostIdentity::own() {
  try {
    return {.kernel = first_line_of("/proc/sys/kernel/random/boot_id"),
            .processes = link_target("/proc/self/ns/pid"),
            .network = link_target("/proc/self/ns/net")};
  } catch (const std::exception&) { // no /proc, or little of it
    return {};
  }
}

std::string HostIdentity::to_text() const {
  return concat(kernel, " ", processes, " ", network);
}

HostIdentity HostIdentity::from_text(const std::string& text) {
  HostIdentity identity;
  std::istringstream(text) >> identity.kernel >> identity.processes >> identity.network;
  return identity;
}

std::string difference(const HostIdentity& mine, const HostIdentity& theirs) {
  if (mine.kernel != theirs.kernel || mine.kernel.empty()) {
    return "on another host";
  }
  if (mine.processes != theirs.processes || mine.processes.empty()) {
    return "in another container (namespace of process ids)";
  }
  if (mine.network != theirs.network || mine.network.empty()) {
    return "in another network namespace";
  }
  return {};
}

ShmMeeting meet_over_shm(RollCall& calls, bool wanted) {
  const std::vector<std::string> hosts = calls.all("host", wanted ? HostIdentity::own().to_text() : kUnwilling);
  if (const auto reason = obstacle(calls, hosts)) {
    return {.group = nullptr, .why_not = *reason};
  }
  std::shared_ptr<SharedMemory> memory;
  const std::string made = calls.place() != 0 ? "" : attempted([&] {
    memory = make_shm({.ranks = static_cast<std::uint32_t>(calls.size())});
    return memory->address().to_text();
  });
  const std::string address = calls.all("memory", made).front();
  if (failed(address)) {
    return {.group = nullptr, .why_not = address.substr(1)};
  }
  std::unique_ptr<ShmGroup> group;
  const std::vector<std::string> reports =
      calls.all("joined", attempted([&]() -> std::string {
                  if (calls.place() != 0) {
                    memory = SharedMemory::open(SharedMemoryAddress::from_text(address));
                  }
                  group = std::make_unique<ShmGroup>(
                      memory, static_cast<std::uint32_t>(calls.place()), calls.timeout(), calls.ranks());
                  return {};
                }));
  if (const auto reason = first_failure(calls, reports)) {
    return {.group = nullptr, .why_not = *reason};
  }
  memory->close_descriptor(); // all have it mapped
  group->meet();
  return {.group = std::move(group), .why_not = {}};
}

} // namespace tieshard
