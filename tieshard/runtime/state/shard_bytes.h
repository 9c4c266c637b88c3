// tieshard/runtime/state/shard_bytes.h
//
// Elements of this rank's shards as an export stores them.
//
// Flow: fsdp_param -> [this] -> export_writer

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "tieshard/core/base/dtype.h"
#include "tieshard/runtime/fsdp/fsdp_state.h"

namespace tieshard {

class ShardBytes {
 public:
  explicit ShardBytes(const FsdpState& state);

  const FsdpParam& parameter(const std::string& fqn) const {
    return *by_name_.at(fqn);
  }

  /// True when run() gives memory of the shard itself, and needs no buffer.
  bool in_place(const FsdpParam& parameter, DType stored) const;

  /// `count` elements of the shard, row-major, from `first` on, as `stored`: in place, or in `buffer`, which has room
  /// for them. @throws UsageError not-convertible
  std::span<std::byte> run(
      const FsdpParam& parameter, std::uint64_t first, std::uint64_t count, DType stored, std::span<std::byte> buffer);

  /// Finite values that run() made infinite, by parameter.
  const std::map<std::string, std::int64_t>& overflowed() const noexcept {
    return overflowed_;
  }

 private:
  std::map<std::string, const FsdpParam*> by_name_;
  std::map<std::string, std::int64_t> overflowed_;
};

} // namespace tieshard
