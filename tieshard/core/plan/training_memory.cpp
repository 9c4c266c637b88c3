#include "tieshard/core/plan/training_memory.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace tieshard {
namespace {

/// A tensor's own bytes and the allocator's note on it.
constexpr double kNoteBytes = 128;

/// Bytes as double: those of an absurd step would wrap as integers, and the others are exact.
struct Pools {
  double heap = 0;
  double mapped = 0;

  /// `count` tensors of `bytes` each.
  void add(double bytes, double count = 1) {
    const bool large = bytes + kNoteBytes >= static_cast<double>(kLargeTensorBytes);
    (large ? mapped : heap) += bytes * count;
  }
  Pools& operator+=(const Pools& other) {
    heap += other.heap;
    mapped += other.mapped;
    return *this;
  }
};

/// The terms whose tensors come and go, at one moment.
struct Moment {
  Pools moments{};
  Pools gradients{};
  Pools whole_parameters{};
  Pools whole_gradients{};
  Pools activations{};
  Pools loss{};

  double total(double Pools::* pool) const {
    return moments.*pool + gradients.*pool + whole_parameters.*pool + whole_gradients.*pool + activations.*pool +
           loss.*pool;
  }
};

double bytes_each(DType dtype) {
  return bits(dtype) / 8.0;
}

/// What a step does, told as the moments at which memory can be fullest.
class Step {
 public:
  Step(const ShardPlan& plan, const ActivationSizes& sizes, const TrainingStep& step)
      : plan_(plan),
        sizes_(sizes),
        step_(step),
        element_(bytes_each(step.compute_dtype)),
        tokens_(static_cast<double>(step.sequence) * static_cast<double>(step.batch)) {
    double largest = -1;
    for (std::size_t unit = 1; unit < plan.units().size(); ++unit) {
      double numel = 0;
      for (const std::size_t index : plan.units()[unit].parameters) {
        numel += whole_numel(plan.parameters()[index]);
      }
      if (numel > largest) {
        largest = numel;
        largest_unit_ = unit;
      }
    }
  }

  std::array<Moment, 5> moments() const {
    return {at_the_loss(), after_the_loss(), as_backward_begins(), after_the_layers(), as_the_root_is_reduced()};
  }

  double shards() const {
    double bytes = 0;
    for (const ShardedParameter& parameter : plan_.parameters()) {
      bytes += shard_bytes(parameter);
    }
    return bytes;
  }

 private:
  /// All activations are there, what the head's gradient is made of, and one piece of logits.
  Moment at_the_loss() const {
    Moment moment = throughout();
    add_kept_units(moment);
    add_casts(moment);
    add_activations(moment.activations);
    add_head_in_the_making(moment.whole_gradients);
    add_loss(moment.loss);
    return moment;
  }

  /// The pieces have been gone through, and the head's gradient is put together.
  Moment after_the_loss() const {
    Moment moment = throughout();
    add_kept_units(moment);
    add_activations(moment.activations);
    if (keeps_slopes()) {
      add_head_in_the_making(moment.whole_gradients);
    }
    moment.whole_gradients.add(head_bytes());
    return moment;
  }

  /// All activations are there, and what the backward of the last layer takes besides.
  Moment as_backward_begins() const {
    Moment moment = throughout();
    add_kept_units(moment);
    add_activations(moment.activations);
    for (const std::int64_t elements : sizes_.backward) {
      moment.activations.add(static_cast<double>(elements) * tokens_ * element_);
    }
    moment.whole_gradients.add(head_bytes());
    add_largest_unit(moment.whole_gradients);
    return moment;
  }

  /// The activations are gone, and every layer has its gradient.
  Moment after_the_layers() const {
    Moment moment = throughout();
    add_layer_gradients(moment);
    moment.whole_gradients.add(head_bytes());
    if (!alone()) { // else the whole one is the shard's
      add_largest_unit(moment.whole_parameters);
      add_largest_unit(moment.whole_gradients);
    }
    return moment;
  }

  /// The root's gradients are whole, that of a tied embedding added into the head's, and become those of its shards.
  /// One rank frees the whole parameters first.
  Moment as_the_root_is_reduced() const {
    Moment moment = throughout();
    add_layer_gradients(moment);
    add_whole(moment.whole_gradients, 0);
    if (alone()) {
      return moment;
    }
    if (plan_.ranks() == 1) {
      moment.whole_parameters = {};
    }
    for (const std::size_t index : plan_.units().front().parameters) {
      moment.gradients.add(shard_bytes(plan_.parameters()[index]));
    }
    return moment;
  }

  /// AdamW's moments, and the root's whole parameters.
  Moment throughout() const {
    Moment moment;
    for (const ShardedParameter& parameter : plan_.parameters()) {
      moment.moments.add(shard_numel(parameter) * std::max(4.0, bytes_each(parameter.dtype)), 2); // float32 at least
    }
    if (!alone()) {
      add_whole(moment.whole_parameters, 0);
    }
    return moment;
  }

  /// Units other than the root that are whole at the end of the forward.
  void add_kept_units(Moment& moment) const {
    if (alone()) {
      return;
    }
    for (std::size_t unit = 1; unit < plan_.units().size(); ++unit) {
      if (!step_.reshard_after_forward || unit == largest_unit_) {
        add_whole(moment.whole_parameters, unit);
      }
    }
  }

  /// A unit's shards in the compute dtype, made to be gathered.
  void add_casts(Moment& moment) const {
    if (largest_unit_ == 0) {
      return;
    }
    for (const std::size_t index : plan_.units()[largest_unit_].parameters) {
      const ShardedParameter& parameter = plan_.parameters()[index];
      if (parameter.dtype != step_.compute_dtype) {
        moment.whole_parameters.add(shard_numel(parameter) * element_);
      }
    }
  }

  void add_layer_gradients(Moment& moment) const {
    for (const ShardedParameter& parameter : plan_.parameters()) {
      if (parameter.unit != 0) {
        moment.gradients.add(shard_bytes(parameter));
      }
    }
  }

  void add_whole(Pools& pools, std::size_t unit) const {
    for (const std::size_t index : plan_.units()[unit].parameters) {
      pools.add(whole_numel(plan_.parameters()[index]) * element_);
    }
  }

  /// Of units other than the root; nothing where it is the only one.
  void add_largest_unit(Pools& pools) const {
    if (largest_unit_ != 0) {
      add_whole(pools, largest_unit_);
    }
  }

  void add_activations(Pools& pools) const {
    const auto layers = static_cast<double>(sizes_.layers);
    for (const std::int64_t elements : sizes_.kept) {
      pools.add(static_cast<double>(elements) * tokens_ * element_, layers);
    }
    pools.add(static_cast<double>(sizes_.kept_float32) * tokens_ * 4, layers);
    // the last norm's input and output, and the gradient that the loss makes of the latter; of several sequences the
    // rows with a target are copied too
    pools.add(static_cast<double>(sizes_.hidden) * tokens_ * element_, step_.batch > 1 ? 4 : 3);
  }

  bool narrow() const {
    return element_ < 4;
  }

  /// Rows of logits: the last token of a sequence predicts nothing.
  std::int64_t rows() const {
    return (step_.sequence - 1) * step_.batch;
  }

  /// Whether the loss of a narrow dtype keeps the slopes of all rows, rather than sums in float32.
  bool keeps_slopes() const {
    return narrow() && rows() * 2 <= sizes_.hidden * 4;
  }

  void add_head_in_the_making(Pools& pools) const {
    const auto vocab = static_cast<double>(sizes_.vocab);
    if (keeps_slopes()) {
      pools.add(static_cast<double>(rows()) * vocab * element_);
    } else if (narrow()) {
      pools.heap += 4 * vocab * static_cast<double>(sizes_.hidden); // in slices
    } else {
      pools.add(head_bytes());
    }
  }

  /// Logits in the compute dtype, in float32, and their softmax.
  void add_loss(Pools& pools) const {
    const auto vocab = static_cast<double>(sizes_.vocab);
    const auto fitting = static_cast<std::int64_t>(static_cast<double>(kLogitsPieceBytes) / (4 * vocab));
    const std::int64_t most = std::max<std::int64_t>(1, fitting);
    const std::int64_t pieces = std::max<std::int64_t>(1, (rows() + most - 1) / most);
    const double logits = static_cast<double>((rows() + pieces - 1) / pieces) * vocab;
    pools.add(logits * element_);
    pools.add(logits * 4, step_.compute_dtype == DType::kF32 ? 1 : 2);
  }

  double head_bytes() const {
    return static_cast<double>(sizes_.vocab) * static_cast<double>(sizes_.hidden) * element_;
  }

  /// True where a rank computes with the shards themselves.
  bool alone() const {
    return plan_.ranks() == 1 && std::ranges::all_of(plan_.parameters(), [this](const ShardedParameter& parameter) {
             return parameter.dtype == step_.compute_dtype;
           });
  }

  static double whole_numel(const ShardedParameter& parameter) {
    return static_cast<double>(numel(parameter.shape));
  }
  double shard_numel(const ShardedParameter& parameter) const {
    return static_cast<double>(numel(plan_.local_shape(parameter, 0)));
  }
  double shard_bytes(const ShardedParameter& parameter) const {
    return shard_numel(parameter) * bytes_each(parameter.dtype);
  }

  const ShardPlan& plan_;
  const ActivationSizes& sizes_;
  const TrainingStep& step_;
  double element_; ///< bytes, of the compute dtype
  double tokens_;  ///< of a rank in a step
  std::size_t largest_unit_ = 0;
};

std::uint64_t to_bytes(double bytes) {
  constexpr double kLargest = 9.2e18;
  return static_cast<std::uint64_t>(std::min(bytes, kLargest));
}

} // namespace

std::uint64_t TrainingMemory::total() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t term :
       {process, shards, moments, gradients, whole_parameters, whole_gradients, activations, loss, holes}) {
    sum = term > UINT64_MAX - sum ? UINT64_MAX : sum + term;
  }
  return sum;
}

TrainingMemory predict_training_memory(const ShardPlan& plan, const ActivationSizes& sizes, const TrainingStep& step) {
  const Step model(plan, sizes, step);
  const std::array<Moment, 5> moments = model.moments();
  const auto fullest = [&moments](double Pools::* pool) {
    return *std::ranges::max_element(moments, {}, [pool](const Moment& moment) { return moment.total(pool); });
  };
  const Moment heap = fullest(&Pools::heap);
  const Moment mapped = fullest(&Pools::mapped);
  const auto term = [&](Pools Moment::* which) { return to_bytes((heap.*which).heap + (mapped.*which).mapped); };
  return {.process = kProcessBytes,
          .shards = to_bytes(model.shards()),
          .moments = term(&Moment::moments),
          .gradients = term(&Moment::gradients),
          .whole_parameters = term(&Moment::whole_parameters),
          .whole_gradients = term(&Moment::whole_gradients),
          .activations = term(&Moment::activations),
          .loss = term(&Moment::loss),
          .holes = to_bytes(heap.total(&Pools::heap) * kHoles)};
}

} // namespace tieshard
