#include "tieshard/cli/shard_files.h"

#include <array>
#include <cstdio>
#include <map>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"

namespace tieshard::cli {
namespace {

namespace fs = std::filesystem;

PeerError io_failed(const fs::path& path, const std::string& doing, const std::string& got) {
  return PeerError({.code = Code::kIoFailed,
                    .what = "the kernel refused a file operation",
                    .where = path.string(),
                    .why = concat("expected to ", doing, ", got: ", got),
                    .fix = "check the disk and the permissions of the directory, then try again"});
}

/// "rank-00000-of-00002.safetensors"
std::string file_of(std::int64_t rank, std::int64_t ranks) {
  std::array<char, 80> buffer{};
  std::snprintf(buffer.data(),
                buffer.size(),
                "rank-%05lld-of-%05lld.safetensors",
                static_cast<long long>(rank),
                static_cast<long long>(ranks));
  return buffer.data();
}

} // namespace

ShardDirectory::ShardDirectory(fs::path name) : name_(std::move(name)) {
  if (!name_.has_filename()) { // "shards/" is the directory "shards"
    name_ = name_.parent_path();
  }
  partial_ = name_.string() + ".partial";
  for (const fs::path& path : {name_, partial_}) {
    if (fs::exists(fs::symlink_status(path))) {
      throw InputError({.code = Code::kOutputExists,
                        .what = "the output directory holds something already",
                        .where = path.string(),
                        .why = "expected a name that is free, got a file or directory",
                        .fix = "name another directory, or remove the old one"});
    }
  }
  const fs::path parent = name_.has_parent_path() ? name_.parent_path() : fs::path(".");
  std::error_code failed;
  if (!fs::is_directory(parent, failed)) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a command line flag has a value that cannot be used",
                      .where = concat("--out ", name_.string()),
                      .why = concat("expected a name in a directory that is there, got no directory ", parent.string()),
                      .fix = "make the directory, or name one in another"});
  }
  if (!fs::create_directory(partial_, failed)) {
    throw io_failed(partial_, "make the directory", failed.message());
  }
}

ShardDirectory::~ShardDirectory() {
  if (!published_) {
    std::error_code ignored; // there is nobody left to tell
    fs::remove_all(partial_, ignored);
  }
}

void ShardDirectory::write(const LocalShards& loaded, const ShardPlan& plan, std::int64_t rank) const {
  std::vector<TensorSpec> specs;
  std::map<std::string_view, const LocalShard*> by_name;
  Json dims = Json::object();
  for (const LocalShard& shard : loaded.shards) {
    specs.push_back({.name = shard.fqn, .dtype = shard.dtype, .shape = shard.shape});
    by_name[shard.fqn] = &shard;
    dims[shard.fqn] = plan.find(shard.fqn)->dim;
  }
  const SafetensorsLayout layout = layout_safetensors(std::move(specs),
                                                      {{"format", "pt"},
                                                       {"rank", std::to_string(rank)},
                                                       {"ranks", std::to_string(plan.ranks())},
                                                       {"dims", dims.dump()}});
  write_safetensors(partial_ / file_of(rank, plan.ranks()), layout, [&](const TensorEntry& entry) {
    const LocalShard& shard = *by_name.at(entry.name);
    return std::span<const std::byte>(shard.data, shard.bytes);
  });
}

void ShardDirectory::publish() {
  sync_directory(partial_);
  std::error_code failed;
  fs::rename(partial_, name_, failed);
  if (failed) {
    throw io_failed(name_, "give the directory its name", failed.message());
  }
  published_ = true;
}

} // namespace tieshard::cli
