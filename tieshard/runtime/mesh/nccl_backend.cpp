#include "tieshard/runtime/mesh/nccl_backend.h"

#include <exception>
#include <utility>

#include "tieshard/core/base/error.h"

#ifdef USE_C10D_NCCL // set for this file where LibTorch has NCCL and its headers were found
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace tieshard {
namespace {

std::string where(const MeetingPoint& point, const std::string& group, at::Device device) {
  return concat("rank ",
                point.environment.rank,
                "/",
                point.environment.world_size,
                ", ",
                device.str(),
                ", group ",
                group.empty() ? "of all ranks" : group);
}

} // namespace

#ifdef USE_C10D_NCCL

std::shared_ptr<c10d::Backend> connect_nccl(
    const MeetingPoint& point, const std::string& group, std::int64_t rank, std::int64_t size, at::Device device) {
  try {
    const auto store = c10::make_intrusive<c10d::PrefixStore>(
        "nccl/" + group, c10::intrusive_ptr<c10d::Store>::reclaim_copy(point.store.get()));
    const auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = point.timeout;
    auto connected =
        c10::make_intrusive<c10d::ProcessGroupNCCL>(store, static_cast<int>(rank), static_cast<int>(size), options);
    connected->eagerConnectSingleDevice(device); // else the first collective would find that a rank is missing
    c10d::ProcessGroupNCCL* const backend = connected.get();
    return {backend, [connected = std::move(connected)](c10d::Backend*) mutable {
              try {
                connected->shutdown();
              } catch (const std::exception&) {
                // A rank that is gone has been reported by now, and ends no connection together with this one.
              }
              connected.reset();
            }};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw PeerError({.code = Code::kRendezvousFailed,
                     .what = "the ranks did not find each other",
                     .where = where(point, group, device),
                     .why = concat("NCCL: ", text.substr(0, text.find('\n'))),
                     .fix =
                         "check that every rank has a GPU of its own and that NCCL's interface is reachable from the "
                         "other hosts (NCCL_SOCKET_IFNAME; NCCL_DEBUG=INFO says more)"});
  }
}

#else

std::shared_ptr<c10d::Backend> connect_nccl(const MeetingPoint& point,
                                            const std::string& group,
                                            std::int64_t /*rank*/,
                                            std::int64_t /*size*/,
                                            at::Device device) {
  throw InputError({.code = Code::kDeviceUnavailable,
                    .what = "a device is asked for that cannot be used",
                    .where = where(point, group, device),
                    .why = "this program was built without NCCL, over which ranks exchange tensors on GPUs",
                    .fix = "compute on the cpu, or build where CUDA's and NCCL's headers are found: docs/devices.md"});
}

#endif

} // namespace tieshard
