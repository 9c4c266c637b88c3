// tieshard/runtime/mesh/device_mesh.h
//
// The ranks that share one copy of the model, and this process's place among them.
//
// Flow:   process_group -> [this] -> load, fsdp, optim, state, train
// Source: torch.distributed.device_mesh.DeviceMesh. One axis (dp_shard), or two (dp_replicate x dp_shard).

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

#include "tieshard/runtime/mesh/rank_environment.h"

namespace c10d {
class Backend;
}

namespace tieshard {

/// A named direction of the mesh ("axis" is for meshes, "dim" for tensors).
struct MeshAxis {
  std::string name;
  std::int64_t size = 1;
};

/// Sizes of the two axes of a mesh for HSDP. Rank = replica * shards + shard, so that ranks of one host shard.
struct MeshGrid {
  std::int64_t replicas = 1; ///< dp_replicate: copies of the model
  std::int64_t shards = 1;   ///< dp_shard: ranks that share one copy
};

/// Copyable handle; copies share the connection. The connection closes with the last copy.
class DeviceMesh {
 public:
  /// One rank, no connection.
  DeviceMesh() = default;

  /// Reads the launcher's variables and connects, over shared memory where all ranks are on one host and otherwise over
  /// Gloo (TIESHARD_BACKEND=shm|gloo|auto). On GPUs (TIESHARD_DEVICE=cuda) their tensors go over NCCL, and everything
  /// else as without. Every rank must call it.
  /// @param timeout  bound of every later wait for another rank
  /// @throws InputError bad-environment, device-unavailable; PeerError rendezvous-failed, peer-failed
  static DeviceMesh from_environment(std::chrono::milliseconds timeout = std::chrono::minutes(10));

  /// Connects the ranks of `environment`. Every rank must call it, with the same device and grid.
  static DeviceMesh connect(const RankEnvironment& environment, std::chrono::milliseconds timeout);

  /// The same as a grid, whose axes have connections of their own.
  /// @throws InputError bad-environment when the grid has not as many places as there are ranks
  static DeviceMesh connect(const RankEnvironment& environment, std::chrono::milliseconds timeout, MeshGrid grid);
  static DeviceMesh from_environment(std::chrono::milliseconds timeout, MeshGrid grid);

  /// The ranks that differ from this one in that axis only, as a mesh of one axis: "dp_shard" or "dp_replicate". A mesh
  /// that is no grid is its own dp_shard, and has one rank in dp_replicate. @throws UsageError wrong-state
  DeviceMesh axis(std::string_view name) const;

  /// The `count` neighbouring ranks of this one, as a mesh of one axis. Every rank of the whole mesh must call it
  /// alike. Pre: one axis, whose size is a multiple of `count`. @throws PeerError rendezvous-failed
  DeviceMesh split(std::int64_t count) const;

  std::int64_t rank() const noexcept {
    return environment_.rank;
  }
  std::int64_t size() const noexcept {
    return environment_.world_size;
  }
  /// Where this rank's model and its tokens lie: cpu, or cuda:LOCAL_RANK.
  at::Device device() const noexcept {
    return device_;
  }
  /// The same ranks, whose model lies on `device`, with a connection of the caller's own for it: any c10d backend of
  /// these ranks, of another accelerator's for example. Pre: one axis.
  DeviceMesh on_device(at::Device device, std::shared_ptr<c10d::Backend> backend) const;

  /// The axis that this mesh is, "world" for a grid.
  std::string axis_name() const {
    return two_axes_ == nullptr ? axis_ : "world";
  }
  /// Outermost first.
  std::vector<MeshAxis> axes() const;

  /// "rank 1/4", for Diagnostics: among all ranks, whatever axis this is.
  std::string where() const;

  /// "shm", "gloo", or "none" on one rank.
  std::string backend_name() const;
  /// Why the ranks do not share memory; empty where they do, and on one rank.
  const std::string& backend_note() const noexcept {
    return backend_note_;
  }

  /// The connection of tensors on `device`; null on one rank. @throws UsageError wrong-state when that is neither the
  /// host nor the mesh's device
  const std::shared_ptr<c10d::Backend>& backend(at::Device device = c10::kCPU) const;

 private:
  struct World; // all ranks, and where they meet to form groups

  /// @param ranks  of the part, as numbers among all ranks; this one's is among them
  DeviceMesh part(const std::string& axis, const std::string& group, const std::vector<std::int64_t>& ranks) const;

  static DeviceMesh connect_all(const RankEnvironment& environment,
                                std::chrono::milliseconds timeout,
                                const std::string& shape);
  void choose_device(const std::string& shape);
  void connect_device(const std::string& group);

  RankEnvironment environment_;            ///< rank and world_size are those of this handle
  std::shared_ptr<c10d::Backend> backend_; ///< of the host's tensors
  at::Device device_ = c10::kCPU;
  std::shared_ptr<c10d::Backend> device_backend_; ///< of the device's, where that is not the host
  std::string backend_note_;
  std::string axis_ = "dp_shard";
  std::shared_ptr<World> world_;                            ///< null on one rank
  std::shared_ptr<const std::vector<DeviceMesh>> two_axes_; ///< dp_replicate, dp_shard; null for one axis
};

} // namespace tieshard
