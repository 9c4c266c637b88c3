// tieshard/runtime/mesh/device_mesh.h
//
// The ranks that share one copy of the model, and this process's place among them.
//
// Flow:   process_group -> [this] -> load, fsdp, optim, state, train
// Source: torch.distributed.device_mesh.DeviceMesh. One axis (dp_shard) so far.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

/// Copyable handle; copies share the connection. The connection closes with the last copy.
class DeviceMesh {
 public:
  /// One rank, no connection.
  DeviceMesh() = default;

  /// Reads the launcher's variables and connects, over shared memory where all ranks are on one host and otherwise over
  /// Gloo (TIESHARD_BACKEND=shm|gloo|auto). Every rank must call it.
  /// @param timeout  bound of every later wait for another rank
  /// @throws InputError bad-environment; PeerError rendezvous-failed
  static DeviceMesh from_environment(std::chrono::milliseconds timeout = std::chrono::minutes(10));

  /// Connects the ranks of `environment`. Every rank must call it.
  static DeviceMesh connect(const RankEnvironment& environment, std::chrono::milliseconds timeout);

  std::int64_t rank() const noexcept {
    return environment_.rank;
  }
  std::int64_t size() const noexcept {
    return environment_.world_size;
  }
  std::int64_t local_rank() const noexcept {
    return environment_.local_rank;
  }
  std::vector<MeshAxis> axes() const {
    return {{"dp_shard", size()}};
  }
  /// "rank 1/4", for Diagnostics.
  std::string where() const;

  /// "shm", "gloo", or "none" on one rank.
  std::string backend_name() const;
  /// Why the ranks do not share memory; empty where they do, and on one rank.
  const std::string& backend_note() const noexcept {
    return backend_note_;
  }

  /// The connection; null on one rank.
  const std::shared_ptr<c10d::Backend>& backend() const noexcept {
    return backend_;
  }

 private:
  RankEnvironment environment_;
  std::shared_ptr<c10d::Backend> backend_;
  std::string backend_note_;
};

} // namespace tieshard
