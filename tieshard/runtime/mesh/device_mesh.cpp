#include "tieshard/runtime/mesh/device_mesh.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/mesh/local_device.h"
#include "tieshard/runtime/mesh/nccl_backend.h"
#include "tieshard/runtime/mesh/process_group.h"
#include "tieshard/runtime/mesh/same_on_ranks.h"

namespace tieshard {
namespace {

/// `count` ranks from `first` on, each `step` after the last.
std::vector<std::int64_t> every(std::int64_t step, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t i = 0; i < count; ++i) {
    ranks.push_back(first + i * step);
  }
  return ranks;
}

/// What another rank says of its port.
int port_in(const std::string& text, const std::string& where) {
  int port = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port < 1 || port > 65535) {
    throw PeerError({.code = Code::kRendezvousFailed,
                     .what = "the ranks did not find each other",
                     .where = where,
                     .why = concat("expected the port of rank 0's meeting point, got \"", text, "\""),
                     .fix = "run one version of tieshard, with the same flags, on every rank"});
  }
  return port;
}

} // namespace

struct DeviceMesh::World {
  RankEnvironment environment;
  std::chrono::milliseconds timeout{};
  std::shared_ptr<c10d::Backend> backend;
  std::optional<MeetingPoint> meeting_point{}; ///< opened when the first group is formed
  std::int64_t splits = 0;

  /// Every rank must call it.
  const MeetingPoint& open() {
    if (!meeting_point) {
      int port = 0;
      if (environment.rank == 0) {
        meeting_point = host_meeting_point(environment, timeout, port);
      }
      DeviceMesh all;
      all.environment_ = environment;
      all.backend_ = backend;
      const std::string text =
          all_gather_text(all, std::to_string(port), CollectivePurpose::named("where groups meet")).front();
      if (environment.rank != 0) {
        meeting_point = find_meeting_point(environment, timeout, port_in(text, all.where()));
      }
    }
    return *meeting_point;
  }
};

DeviceMesh DeviceMesh::from_environment(std::chrono::milliseconds timeout) {
  return connect(read_rank_environment(), timeout);
}

DeviceMesh DeviceMesh::connect(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  return connect_all(environment, timeout, "one axis");
}

DeviceMesh DeviceMesh::connect_all(const RankEnvironment& environment,
                                   std::chrono::milliseconds timeout,
                                   const std::string& shape) {
  DeviceMesh mesh;
  mesh.environment_ = environment;
  if (environment.world_size > 1) {
    Connection connection = connect_ranks(environment, timeout);
    mesh.backend_ = std::move(connection.backend);
    mesh.backend_note_ = std::move(connection.note);
    // a rank that left now would close its connections while another still makes them
    barrier(mesh, CollectivePurpose::named("connecting"));
    mesh.world_ =
        std::make_shared<World>(World{.environment = environment, .timeout = timeout, .backend = mesh.backend_});
  }
  mesh.choose_device(shape);
  mesh.connect_device("");
  return mesh;
}

/// A rank without its device fails together with the others, and so do ranks that were told different things.
void DeviceMesh::choose_device(const std::string& shape) {
  if (size() == 1) {
    device_ = local_device(environment_);
    return;
  }
  agree(*this, "device", [&] { device_ = local_device(environment_); });
  require_equal_on_ranks(
      *this,
      "mesh",
      {{"--replicas (the mesh's grid)", shape},
       {"--device (TIESHARD_DEVICE)", c10::DeviceTypeName(device_.type(), /*lower_case=*/true)}},
      {.code = Code::kBadEnvironment,
       .what = "the ranks were told to form different meshes",
       .fix = "give every rank the same --replicas (the same grid), and the same --device (or TIESHARD_DEVICE)"});
}

DeviceMesh DeviceMesh::on_device(at::Device device, std::shared_ptr<c10d::Backend> backend) const {
  DeviceMesh mesh = *this;
  mesh.device_ = device;
  mesh.device_backend_ = std::move(backend);
  return mesh;
}

void DeviceMesh::connect_device(const std::string& group) {
  if (size() > 1 && !device_.is_cpu()) {
    device_backend_ = connect_nccl(world_->open(), group, rank(), size(), device_);
  }
}

const std::shared_ptr<c10d::Backend>& DeviceMesh::backend(at::Device device) const {
  if (size() == 1 || device.is_cpu()) {
    return backend_;
  }
  if (device_backend_ == nullptr || device != device_) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a tensor lies on a device that the ranks have no connection for",
                      .where = where(),
                      .why = concat("expected cpu or ", device_.str(), ", got ", device.str()),
                      .fix = "put the model on mesh.device(), and connect the mesh for that device "
                             "(RankEnvironment::device, TIESHARD_DEVICE)"});
  }
  return device_backend_;
}

std::string DeviceMesh::backend_name() const {
  return backend_ == nullptr ? "none" : backend_->getBackendName();
}

DeviceMesh DeviceMesh::from_environment(std::chrono::milliseconds timeout, MeshGrid grid) {
  return connect(read_rank_environment(), timeout, grid);
}

DeviceMesh DeviceMesh::connect(const RankEnvironment& environment, std::chrono::milliseconds timeout, MeshGrid grid) {
  const std::int64_t ranks = environment.world_size;
  if (grid.replicas < 1 || grid.shards < 1 || ranks % grid.shards != 0 || ranks / grid.shards != grid.replicas) {
    throw InputError({.code = Code::kBadEnvironment,
                      .what = "a mesh has another number of places than there are ranks",
                      .where = concat("rank ", environment.rank, "/", ranks),
                      .why = concat("expected ", ranks, " places, got ", grid.replicas, " x ", grid.shards),
                      .fix = "start replicas x shards ranks, or change one of the two"});
  }
  DeviceMesh mesh = connect_all(environment, timeout, concat(grid.replicas, " x ", grid.shards));
  if (mesh.world_ == nullptr) {
    return mesh;
  }
  const std::int64_t replica = environment.rank / grid.shards;
  const std::int64_t shard = environment.rank % grid.shards;
  mesh.two_axes_ = std::make_shared<const std::vector<DeviceMesh>>(std::vector<DeviceMesh>{
      mesh.part("dp_replicate", concat("replicate/", shard), every(grid.shards, shard, grid.replicas)),
      mesh.part("dp_shard", concat("shard/", replica), every(1, replica * grid.shards, grid.shards))});
  barrier(mesh, CollectivePurpose::named("connecting the axes"));
  return mesh;
}

DeviceMesh DeviceMesh::part(const std::string& axis,
                            const std::string& group,
                            const std::vector<std::int64_t>& ranks) const {
  const MeetingPoint& point = world_->open();
  const auto place = std::ranges::find(ranks, world_->environment.rank) - ranks.begin();
  DeviceMesh mesh;
  mesh.environment_ = environment_;
  mesh.environment_.rank = place;
  mesh.environment_.world_size = static_cast<std::int64_t>(ranks.size());
  mesh.axis_ = axis;
  mesh.world_ = world_;
  mesh.device_ = device_;
  if (ranks.size() > 1) {
    Connection connection = connect_group(point, group, static_cast<std::size_t>(place), ranks);
    mesh.backend_ = std::move(connection.backend);
    mesh.backend_note_ = std::move(connection.note);
    barrier(mesh, CollectivePurpose::named(concat("connecting ", group)));
    mesh.connect_device(group);
  }
  return mesh;
}

DeviceMesh DeviceMesh::axis(std::string_view name) const {
  const bool shard = name == "dp_shard";
  if (!shard && name != "dp_replicate") {
    throw UsageError({.code = Code::kWrongState,
                      .what = "an axis is asked for that no mesh has",
                      .where = concat(where(), ", ", name),
                      .fix = "ask for dp_replicate or dp_shard"});
  }
  if (two_axes_ != nullptr) {
    return (*two_axes_)[shard ? 1 : 0];
  }
  if (name == axis_) {
    return *this;
  }
  DeviceMesh alone;
  alone.axis_ = name;
  alone.world_ = world_;
  alone.device_ = device_;
  return alone;
}

DeviceMesh DeviceMesh::split(std::int64_t count) const {
  const std::int64_t place = rank() % count;
  const std::int64_t first = world_->environment.rank - place; // ranks of dp_shard are neighbours
  return part(axis_, concat("split/", world_->splits++, "/", first), every(1, first, count));
}

std::vector<MeshAxis> DeviceMesh::axes() const {
  if (two_axes_ == nullptr) {
    return {{axis_, size()}};
  }
  std::vector<MeshAxis> axes;
  for (const DeviceMesh& mesh : *two_axes_) {
    axes.push_back({mesh.axis_, mesh.size()});
  }
  return axes;
}

std::string DeviceMesh::where() const {
  const RankEnvironment& all = world_ == nullptr ? environment_ : world_->environment;
  return concat("rank ", all.rank, "/", all.world_size);
}

} // namespace tieshard
