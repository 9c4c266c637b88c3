#include "tieshard/runtime/mesh/device_mesh.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/mesh/process_group.h"

namespace tieshard {

DeviceMesh DeviceMesh::from_environment(std::chrono::milliseconds timeout) {
  return connect(read_rank_environment(), timeout);
}

DeviceMesh DeviceMesh::connect(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  DeviceMesh mesh;
  mesh.environment_ = environment;
  if (environment.world_size > 1) {
    Connection connection = connect_ranks(environment, timeout);
    mesh.backend_ = std::move(connection.backend);
    mesh.backend_note_ = std::move(connection.note);
    barrier(mesh); // a rank that left now would close its connections while another still makes them
  }
  return mesh;
}

std::string DeviceMesh::backend_name() const {
  return backend_ == nullptr ? "none" : backend_->getBackendName();
}

std::string DeviceMesh::where() const {
  return concat("rank ", rank(), "/", size());
}

} // namespace tieshard
