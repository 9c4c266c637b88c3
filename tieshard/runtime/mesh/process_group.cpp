#include "tieshard/runtime/mesh/process_group.h"

#include <cstdlib>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/shm_backend.h"

namespace tieshard {
namespace {

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

std::shared_ptr<::gloo::transport::Device> make_device(const RankEnvironment& environment) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface != nullptr && *interface != '\0') {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (is_loopback(environment.master_addr)) {
    return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

c10::intrusive_ptr<c10d::TCPStore> open_store(const RankEnvironment& environment,
                                              std::chrono::milliseconds timeout,
                                              int port,
                                              bool is_server) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = is_server;
  options.numWorkers = environment.world_size;
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
}

c10::intrusive_ptr<c10d::Store> connect_store(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  const bool is_server = environment.rank == 0 && !environment.agent_store;
  return c10::make_intrusive<c10d::PrefixStore>("tieshard/" + environment.attempt,
                                                open_store(environment, timeout, environment.master_port, is_server));
}

std::shared_ptr<c10d::Backend> connect_gloo(const RankEnvironment& environment,
                                            const c10::intrusive_ptr<c10d::Store>& store,
                                            std::chrono::milliseconds timeout) {
  const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(make_device(environment));
  auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
      store, static_cast<int>(environment.rank), static_cast<int>(environment.world_size), options);
  c10d::Backend* backend = group.get();
  return {backend, [group = std::move(group)](c10d::Backend*) mutable { group.reset(); }};
}

std::string where(const RankEnvironment& environment) {
  return concat("rank ",
                environment.rank,
                "/",
                environment.world_size,
                ", ",
                environment.master_addr,
                ":",
                environment.master_port);
}

std::shared_ptr<c10d::Store> shared(c10::intrusive_ptr<c10d::Store> store) {
  c10d::Store* raw = store.get();
  return {raw, [store = std::move(store)](c10d::Store*) mutable { store.reset(); }};
}

/// Connects the ranks of a group, which `environment` has this one's number in.
Connection connect(const RankEnvironment& environment,
                   const c10::intrusive_ptr<c10d::Store>& store,
                   std::chrono::milliseconds timeout) {
  ShmConnection shm = connect_shm(*store,
                                  static_cast<int>(environment.rank),
                                  static_cast<int>(environment.world_size),
                                  timeout,
                                  environment.backend != BackendChoice::kGloo);
  if (shm.backend != nullptr) {
    // The store's host may leave only when nobody reads it any more; and this wait finds ranks that do not run.
    shm.backend->barrier()->wait();
    return {.backend = std::move(shm.backend), .note = {}};
  }
  if (environment.backend == BackendChoice::kShm) {
    throw InputError({.code = Code::kBadEnvironment,
                      .what = "the ranks cannot share memory as TIESHARD_BACKEND asks",
                      .where = where(environment),
                      .why = shm.why_not,
                      .fix = "unset TIESHARD_BACKEND: then Gloo is used where memory cannot be shared"});
  }
  return {.backend = connect_gloo(environment, store, timeout), .note = std::move(shm.why_not)};
}

template <typename Connect>
auto or_rendezvous_failed(const RankEnvironment& environment,
                          std::chrono::milliseconds timeout,
                          const Connect& connect_them) {
  try {
    return connect_them();
  } catch (const InputError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw PeerError({.code = Code::kRendezvousFailed,
                     .what = "the ranks did not find each other",
                     .where = where(environment),
                     .why = concat("waited up to ", timeout.count() / 1000, " s: ", text.substr(0, text.find('\n'))),
                     .fix = "check that every rank was started with the same MASTER_ADDR and MASTER_PORT, that the "
                            "port is free on rank "
                            "0's host and reachable from the others (GLOO_SOCKET_IFNAME names the interface)"});
  }
}

} // namespace

Connection connect_ranks(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  return or_rendezvous_failed(
      environment, timeout, [&] { return connect(environment, connect_store(environment, timeout), timeout); });
}

MeetingPoint host_meeting_point(const RankEnvironment& environment, std::chrono::milliseconds timeout, int& port) {
  return or_rendezvous_failed(environment, timeout, [&]() -> MeetingPoint {
    const auto store = open_store(environment, timeout, /*port=*/0, /*is_server=*/true);
    port = store->getPort();
    return {environment, timeout, shared(store)};
  });
}

MeetingPoint find_meeting_point(const RankEnvironment& environment, std::chrono::milliseconds timeout, int port) {
  return or_rendezvous_failed(environment, timeout, [&]() -> MeetingPoint {
    return {environment, timeout, shared(open_store(environment, timeout, port, /*is_server=*/false))};
  });
}

Connection connect_group(const MeetingPoint& point, const std::string& name, std::int64_t rank, std::int64_t size) {
  RankEnvironment environment = point.environment;
  environment.rank = rank;
  environment.world_size = size;
  return or_rendezvous_failed(environment, point.timeout, [&] {
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>(name, c10::intrusive_ptr<c10d::Store>::reclaim_copy(point.store.get()));
    return connect(environment, store, point.timeout);
  });
}

} // namespace tieshard
