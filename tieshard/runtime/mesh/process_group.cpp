#include "tieshard/runtime/mesh/process_group.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/c10d_log.h"
#include "tieshard/runtime/mesh/deadline_store.h"
#include "tieshard/runtime/mesh/roll_call.h"
#include "tieshard/runtime/mesh/shm_backend.h"

namespace tieshard {
namespace {

/// TCPStore ends its own attempts to connect at about the timeout, in better words; but not where a host takes the
/// connection and then does not answer.
constexpr std::chrono::milliseconds kConnectMargin{1000};

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
  // By the name of this host it would listen at whatever that resolves to, mostly 127.0.1.1 on Debian.
  const auto address = local_address_towards(environment.master_addr, environment.master_port);
  if (address && !is_loopback(*address)) {
    return c10d::ProcessGroupGloo::createDeviceForHostname(*address);
  }
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

/// @param port  of the store; 0 chooses a free one, for a server. Set to what it is
c10::intrusive_ptr<c10d::Store> open_store(const RankEnvironment& environment,
                                           std::chrono::milliseconds timeout,
                                           int& port,
                                           bool is_server) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = is_server;
  options.numWorkers = environment.world_size;
  options.waitWorkers = false;
  options.timeout = timeout;
  const auto made_port = std::make_shared<std::atomic<int>>(port); // the thread that makes the store may outlive us
  try {
    auto store = c10::make_intrusive<DeadlineStore>(
        [made_port, address = environment.master_addr, options]() -> c10::intrusive_ptr<c10d::Store> {
          auto made = c10::make_intrusive<c10d::TCPStore>(address, options);
          *made_port = made->getPort();
          return made;
        },
        timeout + kConnectMargin);
    port = *made_port;
    store->setTimeout(timeout);
    return store;
  } catch (const std::exception& error) {
    if (is_server) {
      throw;
    }
    throw std::runtime_error(concat("waited up to ",
                                    static_cast<double>(timeout.count()) / 1000,
                                    " s for ",
                                    environment.agent_store ? "the launcher" : "rank 0",
                                    ", which keeps the store where the ranks meet: ",
                                    error.what()));
  }
}

c10::intrusive_ptr<c10d::Store> connect_store(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  const bool is_server = environment.rank == 0 && !environment.agent_store;
  int port = environment.master_port;
  return c10::make_intrusive<c10d::PrefixStore>("tieshard/" + environment.attempt,
                                                open_store(environment, timeout, port, is_server));
}

std::shared_ptr<c10d::Backend> connect_gloo(const RankEnvironment& environment,
                                            const c10::intrusive_ptr<c10d::Store>& store,
                                            RollCall& calls) {
  calls.all("gloo"); // a rank that was told to share memory or fail has left by now
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  calls.together("connected", [&] {
    const auto options = c10d::ProcessGroupGloo::Options::create(calls.timeout());
    options->devices.push_back(make_device(environment));
    group = c10::make_intrusive<c10d::ProcessGroupGloo>(
        store, static_cast<int>(calls.place()), static_cast<int>(calls.size()), options);
  });
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

/// Connects the ranks of a group, of which this one is `environment.rank`.
Connection connect(const RankEnvironment& environment, const c10::intrusive_ptr<c10d::Store>& store, RollCall calls) {
  ShmConnection shm = connect_shm(calls, environment.backend != BackendChoice::kGloo);
  if (shm.backend != nullptr) {
    // The store's host may leave only when nobody reads it any more; and this wait finds ranks that do not run.
    shm.backend->barrier()->wait();
    return {.backend = std::move(shm.backend), .note = {}};
  }
  if (environment.backend == BackendChoice::kShm) {
    calls.abandon(
        concat("rank ", environment.rank, " was told to share memory (TIESHARD_BACKEND), and cannot: ", shm.why_not));
    throw InputError({.code = Code::kBadEnvironment,
                      .what = "the ranks cannot share memory as TIESHARD_BACKEND asks",
                      .where = where(environment),
                      .why = shm.why_not,
                      .fix = "unset TIESHARD_BACKEND: then Gloo is used where memory cannot be shared"});
  }
  return {.backend = connect_gloo(environment, store, calls), .note = std::move(shm.why_not)};
}

/// The reason alone of our own errors; the first line of others.
std::string reason(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) {
    return own->diagnostic().why;
  }
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

template <typename Connect>
auto or_rendezvous_failed(const RankEnvironment& environment, const Connect& connect_them) {
  const QuietC10d quiet; // what it throws is said below
  try {
    return connect_them();
  } catch (const InputError&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError({.code = Code::kRendezvousFailed,
                     .what = "the ranks did not find each other",
                     .where = where(environment),
                     .why = reason(error),
                     .fix = "check that every rank was started with the same MASTER_ADDR and MASTER_PORT, that the "
                            "port is free on rank "
                            "0's host and reachable from the others (GLOO_SOCKET_IFNAME names the interface)"});
  }
}

} // namespace

std::optional<std::string> local_address_towards(const std::string& target, int port) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(target.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, ::freeaddrinfo);
  for (const addrinfo* candidate = found; candidate != nullptr; candidate = candidate->ai_next) {
    const int socket = ::socket(candidate->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    char text[NI_MAXHOST];
    const bool known =
        socket >= 0 && ::connect(socket, candidate->ai_addr, candidate->ai_addrlen) == 0 &&
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(
            reinterpret_cast<const sockaddr*>(&own), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0;
    if (socket >= 0) {
      ::close(socket); // nothing was sent: connecting a datagram socket only chooses the way
    }
    if (known) {
      return text;
    }
  }
  return std::nullopt;
}

Connection connect_ranks(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  return or_rendezvous_failed(environment, [&] {
    const auto store = connect_store(environment, timeout);
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(environment.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return connect(
        environment, store, RollCall(*store, static_cast<std::size_t>(environment.rank), std::move(ranks), timeout));
  });
}

MeetingPoint host_meeting_point(const RankEnvironment& environment, std::chrono::milliseconds timeout, int& port) {
  return or_rendezvous_failed(environment, [&]() -> MeetingPoint {
    port = 0;
    const auto store = open_store(environment, timeout, port, /*is_server=*/true);
    return {environment, timeout, shared(store)};
  });
}

MeetingPoint find_meeting_point(const RankEnvironment& environment, std::chrono::milliseconds timeout, int port) {
  return or_rendezvous_failed(environment, [&]() -> MeetingPoint {
    int found = port;
    return {environment, timeout, shared(open_store(environment, timeout, found, /*is_server=*/false))};
  });
}

Connection connect_group(const MeetingPoint& point,
                         const std::string& name,
                         std::size_t place,
                         const std::vector<std::int64_t>& ranks) {
  return or_rendezvous_failed(point.environment, [&] {
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>(name, c10::intrusive_ptr<c10d::Store>::reclaim_copy(point.store.get()));
    return connect(point.environment, store, RollCall(*store, place, ranks, point.timeout));
  });
}

} // namespace tieshard
