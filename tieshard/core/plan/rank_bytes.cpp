#include "tieshard/core/plan/rank_bytes.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "tieshard/core/families/expert_names.h"

namespace tieshard {
namespace {

/// A figure of each rank, given by its steps: what is added at a rank holds for all that follow. Sums wrap as unsigned
/// numbers do, so that a step down is a sum too.
class Steps {
 public:
  explicit Steps(std::int64_t ranks) : steps_(static_cast<std::size_t>(ranks) + 1) {}

  void add(const ChunkRun& run, std::uint64_t value) {
    steps_[static_cast<std::size_t>(run.first)] += value;
    steps_[static_cast<std::size_t>(run.first + run.count)] -= value;
  }

  /// The figures of all ranks.
  std::vector<std::uint64_t> values() const {
    std::vector<std::uint64_t> values(steps_.size() - 1);
    std::partial_sum(steps_.begin(), steps_.end() - 1, values.begin());
    return values;
  }

 private:
  std::vector<std::uint64_t> steps_;
};

std::uint64_t bytes_of(std::uint64_t elements, std::int64_t bits_each) {
  const auto each = static_cast<std::uint64_t>(bits_each);
  return elements / 8 * each + elements % 8 * each / 8;
}

std::int64_t stored_bits(const WeightSource& source) {
  return source.encoding == Encoding::kMxfp4 ? 4 : bits(source.values->dtype);
}

/// Elements of a parameter for each index of its sharded dimension.
std::uint64_t elements_per_index(const ShardedParameter& parameter) {
  std::uint64_t elements = 1;
  for (std::size_t dim = 0; dim < parameter.shape.size(); ++dim) {
    elements *= static_cast<int>(dim) == parameter.dim ? 1 : static_cast<std::uint64_t>(parameter.shape[dim]);
  }
  return elements;
}

std::uint64_t scale_bytes(const WeightSource& source) {
  return source.scales == nullptr ? 0 : source.scales->bytes;
}

/// The last rank that holds a part of `parameter`; -1 when none does.
std::int64_t last_holder(const ShardPlan& plan, const ShardedParameter& parameter) {
  if (numel(parameter.shape) == 0) {
    return -1;
  }
  const std::vector<ChunkRun> runs = plan.runs(parameter);
  const ChunkRun& last = runs.back().size == 0 ? runs[runs.size() - 2] : runs.back();
  return last.first + last.count - 1;
}

} // namespace

std::vector<RankBytes> rank_bytes(const ShardPlan& plan, const WeightSources& sources) {
  Steps elements(plan.ranks());
  Steps memory(plan.ranks());
  Steps read(plan.ranks());
  Steps init(plan.ranks());
  Steps experts(plan.ranks());
  std::vector<bool> begins_group(static_cast<std::size_t>(plan.ranks()), false);
  for (std::size_t i = 0; i < plan.parameters().size(); ++i) {
    const ShardedParameter& parameter = plan.parameters()[i];
    const WeightSource& source = sources.of_parameter[i];
    const std::uint64_t each = elements_per_index(parameter);
    const bool is_expert = is_expert_weight(parameter.fqn);
    for (const ChunkRun& run : plan.runs(parameter)) {
      const std::uint64_t count = each * static_cast<std::uint64_t>(run.size);
      const std::uint64_t in_memory = bytes_of(count, bits(parameter.dtype));
      elements.add(run, count);
      memory.add(run, in_memory);
      experts.add(run, is_expert ? in_memory : 0);
      if (source.values == nullptr) {
        init.add(run, in_memory);
      } else if (count > 0) {
        read.add(run, bytes_of(count, stored_bits(source)) + scale_bytes(source));
      }
      begins_group[static_cast<std::size_t>(run.first)] = true;
    }
  }
  std::vector<RankBytes> groups;
  const auto [of_elements, of_memory, of_read, of_init, of_experts] =
      std::tuple(elements.values(), memory.values(), read.values(), init.values(), experts.values());
  for (std::size_t rank = 0; rank < begins_group.size(); ++rank) {
    if (rank == 0 || begins_group[rank]) {
      groups.push_back({.first = static_cast<std::int64_t>(rank),
                        .elements = static_cast<std::int64_t>(of_elements[rank]),
                        .memory_bytes = of_memory[rank],
                        .read_bytes = of_read[rank],
                        .init_bytes = of_init[rank],
                        .expert_bytes = of_experts[rank]});
    }
    groups.back().last = static_cast<std::int64_t>(rank);
  }
  return groups;
}

std::vector<HostBytes> host_bytes(const ShardPlan& plan, const WeightSources& sources, std::int64_t ranks_per_host) {
  // Parts of one tensor do not meet, so a host reads their sum; what several ranks read whole, it reads once.
  Steps parts(plan.ranks());
  const std::int64_t hosts = plan.ranks() / ranks_per_host + (plan.ranks() % ranks_per_host != 0 ? 1 : 0);
  Steps whole(hosts);
  for (std::size_t i = 0; i < plan.parameters().size(); ++i) {
    const ShardedParameter& parameter = plan.parameters()[i];
    const WeightSource& source = sources.of_parameter[i];
    const std::int64_t last = last_holder(plan, parameter);
    if (source.values == nullptr || last < 0) {
      continue;
    }
    const std::uint64_t each = elements_per_index(parameter);
    if (parameter.dim < 0) {
      whole.add({.count = hosts}, bytes_of(each, stored_bits(source)));
    } else {
      for (const ChunkRun& run : plan.runs(parameter)) {
        parts.add(run, bytes_of(each * static_cast<std::uint64_t>(run.size), stored_bits(source)));
      }
    }
    whole.add({.count = last / ranks_per_host + 1}, scale_bytes(source));
  }
  std::vector<HostBytes> groups;
  const std::vector<std::uint64_t> of_parts = parts.values();
  const std::vector<std::uint64_t> of_whole = whole.values();
  for (std::int64_t host = 0; host < hosts; ++host) {
    const std::int64_t first = host * ranks_per_host;
    const std::int64_t ranks = std::min(ranks_per_host, plan.ranks() - first);
    const auto begin = of_parts.begin() + first;
    const std::uint64_t bytes = std::accumulate(begin, begin + ranks, of_whole[static_cast<std::size_t>(host)]);
    if (groups.empty() || groups.back().read_bytes != bytes || groups.back().ranks != ranks) {
      groups.push_back({.first = host, .ranks = ranks, .read_bytes = bytes});
    }
    groups.back().last = host;
  }
  return groups;
}

} // namespace tieshard
