#include "tieshard/runtime/mesh/process_group.h"

#include <cstdlib>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tieshard/core/base/error.h"

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

c10::intrusive_ptr<c10d::Store> connect_store(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment.master_port);
  options.isServer = environment.rank == 0 && !environment.agent_store;
  options.numWorkers = environment.world_size;
  options.waitWorkers = false;
  options.timeout = timeout;
  auto store = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
  return c10::make_intrusive<c10d::PrefixStore>("tieshard/" + environment.attempt, store);
}

} // namespace

std::shared_ptr<c10d::Backend> connect_gloo(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  try {
    const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(make_device(environment));
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(connect_store(environment, timeout),
                                                             static_cast<int>(environment.rank),
                                                             static_cast<int>(environment.world_size),
                                                             options);
    c10d::Backend* backend = group.get();
    return {backend, [group = std::move(group)](c10d::Backend*) mutable { group.reset(); }};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw PeerError({.code = Code::kRendezvousFailed,
                     .what = "the ranks did not find each other",
                     .where = concat("rank ",
                                     environment.rank,
                                     "/",
                                     environment.world_size,
                                     ", ",
                                     environment.master_addr,
                                     ":",
                                     environment.master_port),
                     .why = concat("waited up to ", timeout.count() / 1000, " s: ", text.substr(0, text.find('\n'))),
                     .fix = "check that every rank was started with the same MASTER_ADDR and MASTER_PORT, that the "
                            "port is free on rank "
                            "0's host and reachable from the others (GLOO_SOCKET_IFNAME names the interface)"});
  }
}

} // namespace tieshard
