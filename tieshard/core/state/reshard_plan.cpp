#include "tieshard/core/state/reshard_plan.h"

#include <algorithm>
#include <set>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr std::int64_t kMostRanks = 99'999; ///< what five digits of a file's name can count

/// Names and ties, so that --dim may name an alias.
class Asked {
 public:
  Asked(const ShardedFiles& files, const ParameterNames& names, const Manifest* manifest, const ReshardOptions& options)
      : options_(options) {
    std::map<std::string, std::string> canonical;
    if (manifest != nullptr) {
      for (const TieRecord& tie : manifest->ties) {
        canonical.emplace(tie.alias, tie.canonical);
        tied_.insert(tie.canonical);
      }
    }
    for (const auto& [name, dim] : options.dims) {
      const auto alias = canonical.find(name);
      const std::string& parameter = alias == canonical.end() ? name : alias->second;
      const bool known = manifest != nullptr ? manifest->find(parameter) != nullptr
                                             : files.find(name) != nullptr && !names.is_optimizer_state(name);
      if (!known) {
        throw UsageError(
            {.code = Code::kUnknownParameter,
             .what = "a shard dimension is asked for a name that no parameter has",
             .where = name,
             .why = concat("expected a parameter of ", files.directory().string(), ", got another name"),
             .fix = "write the parameter's full dotted name; what an optimizer keeps for it goes with it"});
      }
      if (const auto [entry, added] = dims_.emplace(parameter, dim); !added && entry->second != dim) {
        throw UsageError({.code = Code::kBadShardDim,
                          .what = "two shard dimensions are asked for one parameter",
                          .where = concat(name, ", which is ", parameter),
                          .why = concat("expected one dimension, got ", entry->second, " and ", dim),
                          .fix = "ask for one dimension, under one of the names"});
      }
    }
  }

  /// @param before  the dimension that it is on
  int dim_of(const std::string& parameter, const Shape& shape, int before) const {
    const int rank = static_cast<int>(shape.size());
    const bool tied = tied_.contains(parameter);
    const auto asked = dims_.find(parameter);
    if (asked != dims_.end()) {
      return checked(parameter, shape, asked->second, tied);
    }
    if (rank == 0) {
      return -1;
    }
    if (!options_.shard_dim) {
      return before;
    }
    return tied || *options_.shard_dim == ShardDimPolicy::kLast ? rank - 1 : 0;
  }

 private:
  static int checked(const std::string& parameter, const Shape& shape, int asked, bool tied) {
    const int rank = static_cast<int>(shape.size());
    const int dim = asked < 0 ? asked + rank : asked;
    if (dim < 0 || dim >= rank) {
      throw UsageError({.code = Code::kBadShardDim,
                        .what = "a shard dimension that the parameter does not have",
                        .where = parameter,
                        .why = concat("expected a dimension of ", to_string(shape), ", got ", asked),
                        .fix = rank == 0 ? "leave a 0-dim parameter whole"
                                         : concat("ask for a dimension from ", -rank, " to ", rank - 1)});
    }
    if (tied && dim != rank - 1) {
      throw UsageError({.code = Code::kTiedWeightOnVocab,
                        .what = "a tied weight is asked onto another dimension than its last",
                        .where = parameter,
                        .why = concat("expected dimension ", rank - 1, " of ", to_string(shape), ", got ", asked),
                        .fix = "leave the dimension of a tied weight to the plan, or ask for its last one"});
    }
    return dim;
  }

  const ReshardOptions& options_;
  std::set<std::string> tied_;
  std::map<std::string, int> dims_;
};

} // namespace

std::vector<ReshardedTensor> plan_reshard(const ShardedFiles& files,
                                          const ParameterNames& names,
                                          Manifest* manifest,
                                          const ReshardOptions& options) {
  if (options.ranks < 1 || options.ranks > kMostRanks) {
    throw UsageError({.code = Code::kBadRankCount,
                      .what = "a number of ranks that cannot be",
                      .where = "reshard",
                      .why = concat("expected 1 to ", kMostRanks, " ranks, got ", options.ranks),
                      .fix = "give the number of processes that will run"});
  }
  const Asked asked(files, names, manifest, options);
  std::map<std::string, int, std::less<>> recorded;
  if (manifest != nullptr) {
    for (ParameterRecord& parameter : manifest->parameters) {
      parameter.dim = asked.dim_of(parameter.fqn, parameter.shape, parameter.dim);
      recorded.emplace(parameter.fqn, parameter.dim);
    }
  }
  const bool any_cut = std::ranges::any_of(files.tensors(), [](const ShardedTensor& t) { return t.blocks.size() > 1; });
  std::vector<ReshardedTensor> tensors;
  tensors.reserve(files.tensors().size());
  for (const ShardedTensor& tensor : files.tensors()) {
    const std::string& parameter = names.parameter_of(tensor.name);
    const int last = static_cast<int>(tensor.shape.size()) - 1;
    const bool whole = any_cut && tensor.blocks.size() <= 1;
    int dim = tensor.cut >= 0 || whole ? tensor.cut : last;
    if (const auto found = recorded.find(parameter); found != recorded.end()) {
      dim = std::min(found->second, last); // a moment may be one number
    } else if (parameter == tensor.name || files.find(parameter)->shape == tensor.shape) {
      dim = asked.dim_of(parameter, tensor.shape, dim);
    }
    tensors.push_back({.tensor = &tensor, .dim = bits(tensor.dtype) % 8 == 0 ? dim : -1});
  }
  return tensors;
}

} // namespace tieshard
