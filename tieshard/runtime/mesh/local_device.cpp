#include "tieshard/runtime/mesh/local_device.h"

#include <string>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

[[noreturn]] void refuse(std::string where, std::string why, std::string fix) {
  throw InputError({.code = Code::kDeviceUnavailable,
                    .what = "a device is asked for that cannot be used",
                    .where = std::move(where),
                    .why = std::move(why),
                    .fix = std::move(fix)});
}

} // namespace

void require_device_in_build(DeviceChoice choice) {
  if (choice == DeviceChoice::kCuda && !c10::impl::hasDeviceGuardImpl(c10::kCUDA)) {
    refuse("cuda",
           "this program was built with a LibTorch without CUDA",
           "compute on the cpu (the default), or build against a CUDA wheel of torch: docs/devices.md");
  }
}

at::Device local_device(const RankEnvironment& environment) {
  if (environment.device == DeviceChoice::kCpu) {
    return c10::kCPU;
  }
  require_device_in_build(environment.device);
  const auto* const devices = c10::impl::getDeviceGuardImpl(c10::kCUDA);
  const auto count = static_cast<std::int64_t>(devices->deviceCount());
  if (environment.local_rank >= count) {
    refuse(
        concat("rank ", environment.rank, "/", environment.world_size, ", cuda:", environment.local_rank),
        concat("expected a GPU for each rank of this host, got ", count),
        "start at most as many ranks on a host as it has GPUs (CUDA_VISIBLE_DEVICES says which are seen), or compute "
        "on the cpu");
  }
  const at::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(environment.local_rank));
  devices->setDevice(device);
  return device;
}

} // namespace tieshard
