#include "tieshard/runtime/fsdp/shard_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard {
namespace {

[[noreturn]] void refuse(std::string what, std::string where, std::string why, std::string fix) {
  throw UsageError({.code = Code::kWrongState,
                    .what = std::move(what),
                    .where = std::move(where),
                    .why = std::move(why),
                    .fix = std::move(fix)});
}

void require_divisor(const ReshardAfterForward& asked, const std::string& where, std::int64_t ranks) {
  const auto* const count = std::get_if<std::int64_t>(&asked);
  if (count != nullptr && (*count < 1 || ranks % *count != 0)) {
    throw UsageError({.code = Code::kBadRankCount,
                      .what = "reshard_after_forward is asked for a number that does not divide the ranks",
                      .where = where,
                      .why = concat("expected a divisor of ", ranks, ", got ", *count),
                      .fix = "give the number of ranks on one host, or true, or false"});
  }
}

void require_floating(const MixedPrecisionPolicy& policy, const std::string& where) {
  for (const auto& [name, dtype] : {std::pair{"param_dtype", policy.param_dtype},
                                    {"reduce_dtype", policy.reduce_dtype},
                                    {"output_dtype", policy.output_dtype}}) {
    if (dtype && !c10::isFloatingType(*dtype)) {
      refuse("a dtype is asked for that parameters and gradients cannot have",
             concat(where, ", mp_policy.", name),
             concat("expected a floating point dtype, got ", c10::toString(*dtype)),
             "give float32, bfloat16 or float64");
    }
  }
}

struct Bytes {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool contiguous = false;
  std::string fqn;
};

Bytes bytes_of(const NamedTensor& named) {
  std::int64_t last = 0; // of the element that lies highest
  for (std::int64_t dim = 0; dim < named.tensor.dim(); ++dim) {
    last += (named.tensor.size(dim) - 1) * named.tensor.stride(dim);
  }
  const auto* const begin = static_cast<const std::byte*>(named.tensor.const_data_ptr());
  return {begin,
          begin + (last + 1) * static_cast<std::int64_t>(named.tensor.element_size()),
          named.tensor.is_contiguous(),
          named.fqn};
}

/// Of two that begin at different places only contiguous ones surely share bytes: columns of one matrix do not.
bool share(const Bytes& lower, const Bytes& higher) {
  return lower.begin == higher.begin || (higher.begin < lower.end && lower.contiguous && higher.contiguous);
}

} // namespace

void require_new(const std::vector<UnitModule>& units) {
  std::unordered_set<const torch::nn::Module*> seen;
  for (const UnitModule& unit : units) {
    bool fresh = unit.module != nullptr && seen.insert(unit.module).second;
    for (const torch::nn::Module* other : unit.with) {
      fresh = fresh && other != nullptr && seen.insert(other).second;
    }
    if (!fresh) {
      throw UsageError({.code = Code::kWrongState,
                        .what = "a unit is empty or given twice",
                        .where = unit.name,
                        .fix = "give each module once"});
    }
  }
  if (units.empty()) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "fully_shard was given no unit",
                      .fix = "give the root module first, then the modules inside it that are to be units"});
  }
}

void require_units(const std::vector<UnitModule>& units, const FullyShardOptions& options) {
  for (const auto& [name, special] : options.per_unit) {
    if (std::ranges::find(units, name, &UnitModule::name) == units.end()) {
      throw UsageError({.code = Code::kUnknownUnit,
                        .what = "a unit is asked for that the module does not have",
                        .where = concat("per_unit, \"", name, "\""),
                        .fix = "write the name of one of the units (FsdpState::groups() lists them)"});
    }
  }
}

void require_options(const FullyShardOptions& options, const DeviceMesh& mesh) {
  const std::int64_t ranks = mesh.axis("dp_shard").size();
  require_divisor(options.reshard_after_forward, mesh.where(), ranks);
  require_floating(options.mp_policy, mesh.where());
  for (const auto& [name, special] : options.per_unit) {
    const std::string where = concat(mesh.where(), ", per_unit, \"", name, "\"");
    if (special.mp_policy) {
      require_floating(*special.mp_policy, where);
    }
    if (special.reshard_after_forward) {
      require_divisor(*special.reshard_after_forward, where, ranks);
    }
    const bool frees = special.reshard_after_forward.value_or(false) != ReshardAfterForward(false);
    if (name.empty() && (frees || special.activation_checkpointing.value_or(false))) {
      refuse("an option is asked for that the root unit does not have",
             where,
             "the root stays whole between forward and backward, which comes first to it, and is not checkpointed",
             "give the option to units inside the module");
    }
  }
  const double factor = options.gradient_divide_factor.value_or(1.0);
  if (!std::isfinite(factor) || factor == 0.0) {
    refuse("gradients are to be divided by a number that they cannot be divided by",
           concat(mesh.where(), ", gradient_divide_factor"),
           concat("expected a finite number other than 0, got ", factor),
           "give 1 for the sum over ranks, or leave it out for the mean");
  }
  for (const auto& [name, count] :
       {std::pair{"forward_prefetch", options.forward_prefetch}, {"backward_prefetch", options.backward_prefetch}}) {
    if (count < 0) {
      refuse("a negative number of units is to be gathered ahead",
             concat(mesh.where(), ", ", name),
             concat("expected 0 or more, got ", count),
             "give 0 for none");
    }
  }
}

void require_device(const std::string& fqn, const at::Tensor& parameter, const DeviceMesh& mesh) {
  if (mesh.size() > 1 && !parameter.is_meta() && parameter.device() != mesh.device()) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a module lies on another device than its mesh",
                      .where = concat(mesh.where(), ", ", fqn),
                      .why = concat("expected ", mesh.device().str(), ", got ", parameter.device().str()),
                      .fix = "call module.to(mesh.device()) before fully_shard(), or load_shards(), which puts the "
                             "parameters there"});
  }
}

void require_own_memory(const torch::nn::Module& module) {
  std::vector<Bytes> all;
  for (const NamedTensor& named : unique_parameters(module)) {
    if (!named.tensor.is_meta() && named.tensor.has_storage() && named.tensor.numel() > 0) {
      all.push_back(bytes_of(named));
    }
  }
  std::ranges::stable_sort(all, {}, &Bytes::begin);
  for (std::size_t index = 1; index < all.size(); ++index) {
    if (share(all[index - 1], all[index])) {
      throw UsageError(
          {.code = Code::kTieNotShared,
           .what = "two parameters are two tensors over the same memory",
           .where = concat(all[index - 1].fqn, " and ", all[index].fqn),
           .why = "a tie is one tensor under two names; two tensors are cut apart, and each is trained alone",
           .fix = "register one tensor under both names (register_parameter(name, other->weight)), or give "
                  "each memory of its own (clone())"});
    }
  }
}

} // namespace tieshard
