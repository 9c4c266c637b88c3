#include "tieshard/runtime/optim/update_queue.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

/// Elements that a thread takes at a time.
constexpr std::int64_t kPiece = std::int64_t{1} << 18;

template <typename Elements>
void update_by(const UpdateRule& rule, const Elements& elements) {
  std::visit([&](const auto& chosen) { update(chosen, elements); }, rule);
}

/// Elements [begin, begin + count) of arrays that begin at `elements`.
template <typename Elements>
Elements part_of(Elements elements, std::int64_t begin, std::int64_t count) {
  elements.parameter += begin;
  elements.gradient += begin;
  for (float*& moment : elements.moments) {
    moment = moment == nullptr ? nullptr : moment + begin;
  }
  if constexpr (requires { elements.master; }) {
    elements.master = elements.master == nullptr ? nullptr : elements.master + begin;
  }
  elements.count = static_cast<std::size_t>(count);
  return elements;
}

template <typename Elements>
void set_moments(Elements& elements, const std::vector<at::Tensor>& moments) {
  for (std::size_t index = 0; index < moments.size(); ++index) {
    elements.moments[index] = moments[index].mutable_data_ptr<float>();
  }
}

/// The same, rounded at random: run by run, since an element's random bits hang on its place in the whole parameter.
void apply_at_random(const UpdateRule& rule,
                     const BFloat16Elements& elements,
                     const ElementPlacement& placement,
                     std::uint64_t key,
                     std::int64_t begin,
                     std::int64_t count) {
  const std::int64_t end = begin + count;
  while (begin < end) {
    const std::int64_t row = begin / placement.run;
    const std::int64_t column = begin % placement.run;
    const std::int64_t length = std::min(end - begin, placement.run - column);
    BFloat16Elements run = part_of(elements, begin, length);
    run.rounding = {.key = key,
                    .index = static_cast<std::uint64_t>(placement.offset + row * placement.stride + column)};
    update_by(rule, run);
    begin += length;
  }
}

} // namespace

at::ScalarType moment_dtype(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kBFloat16 ? at::kFloat : parameter.scalar_type();
}

at::Tensor as_moment(const at::Tensor& moment, const at::Tensor& parameter) {
  return moment.defined() ? moment.to(moment_dtype(parameter)) : moment;
}

at::Tensor widened(const at::Tensor& parameter, Bf16State& state, const Bf16Options& options) {
  if (options.update == Bf16Update::kStochasticRounding) {
    throw UsageError({.code = Code::kDeviceUnavailable,
                      .what = "stochastic rounding is asked for on a device that has none",
                      .where = parameter.device().str(),
                      .why = "expected parameters in host memory",
                      .fix = "choose master weights, or keep the shards on the host (OffloadPolicy::to_host)"});
  }
  if (options.update != Bf16Update::kMasterWeights) {
    return parameter.detach().to(at::kFloat);
  }
  if (!state.master_weight.defined()) {
    state.master_weight = parameter.detach().to(at::kFloat);
  }
  return state.master_weight;
}

void step_widened(const at::Tensor& parameter,
                  Bf16State& state,
                  const Bf16Options& options,
                  const std::function<void(at::Tensor parameter, const at::Tensor& gradient)>& work) {
  if (parameter.scalar_type() != at::kBFloat16) {
    return work(parameter, parameter.grad());
  }
  const at::Tensor stepped = widened(parameter, state, options);
  work(stepped, parameter.grad().to(at::kFloat));
  at::Tensor target = parameter;
  target.copy_(stepped);
}

bool UpdateQueue::takes(const at::Tensor& parameter) {
  const at::ScalarType dtype = parameter.scalar_type();
  return parameter.device().is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16);
}

at::Tensor UpdateQueue::contiguous(const at::Tensor& tensor) {
  at::Tensor result = tensor.detach().contiguous();
  if (result.const_data_ptr() != tensor.const_data_ptr()) {
    copied_back_.emplace_back(tensor.detach(), result);
  }
  kept_.push_back(result);
  return result;
}

void UpdateQueue::add(const UpdateRule& rule, const StepTensors& given, Bf16State& state, std::uint64_t slot) {
  TORCH_CHECK(!given.gradient.is_sparse(), "a sparse gradient cannot be stepped");
  if (given.parameter.numel() == 0) {
    return;
  }
  StepTensors tensors{.parameter = contiguous(given.parameter), .gradient = given.gradient.contiguous(), .moments = {}};
  kept_.push_back(tensors.gradient);
  for (const at::Tensor& moment : given.moments) {
    tensors.moments.push_back(contiguous(moment));
  }
  given.parameter.unsafeGetTensorImpl()->bump_version();
  if (tensors.parameter.scalar_type() == at::kFloat) {
    return add_float32(rule, tensors);
  }
  const auto placed = options_.placements.find(given.parameter.unsafeGetTensorImpl());
  const std::int64_t numel = given.parameter.numel();
  add_bfloat16(rule,
               tensors,
               state,
               placed != options_.placements.end()
                   ? placed->second
                   : ElementPlacement{.key = slot, .run = numel, .stride = numel, .offset = 0});
}

void UpdateQueue::add_float32(const UpdateRule& rule, const StepTensors& tensors) {
  Float32Elements elements{.parameter = tensors.parameter.mutable_data_ptr<float>(),
                           .gradient = tensors.gradient.const_data_ptr<float>()};
  set_moments(elements, tensors.moments);
  entries_.push_back(
      {.update = [=](std::int64_t begin, std::int64_t count) { update_by(rule, part_of(elements, begin, count)); },
       .numel = tensors.parameter.numel()});
}

void UpdateQueue::add_bfloat16(const UpdateRule& rule,
                               const StepTensors& tensors,
                               Bf16State& state,
                               const ElementPlacement& placement) {
  BFloat16Elements elements{
      .parameter = reinterpret_cast<std::uint16_t*>(tensors.parameter.mutable_data_ptr<at::BFloat16>()),
      .gradient = reinterpret_cast<const std::uint16_t*>(tensors.gradient.const_data_ptr<at::BFloat16>())};
  set_moments(elements, tensors.moments);
  Entry entry{.update = {}, .numel = tensors.parameter.numel()};
  if (options_.update == Bf16Update::kStochasticRounding) {
    const auto step = static_cast<std::uint64_t>(++state.rounded_steps);
    const std::uint64_t key = mix(mix(options_.seed, placement.key), step);
    entry.update = [=](std::int64_t begin, std::int64_t count) {
      apply_at_random(rule, elements, placement, key, begin, count);
    };
  } else {
    if (options_.update == Bf16Update::kMasterWeights) {
      if (!state.master_weight.defined()) {
        state.master_weight = tensors.parameter.to(at::kFloat);
      }
      elements.master = contiguous(state.master_weight).mutable_data_ptr<float>();
    }
    entry.update = [=](std::int64_t begin, std::int64_t count) { update_by(rule, part_of(elements, begin, count)); };
  }
  entries_.push_back(std::move(entry));
}

void UpdateQueue::run() {
  std::int64_t numel = 0;
  for (const Entry& entry : entries_) {
    numel += entry.numel;
  }
  const auto threads = static_cast<int>(std::clamp<std::int64_t>(numel / kPiece, 1, at::get_num_threads()));
  if (threads == 1) {
    for (const Entry& entry : entries_) {
      entry.update(0, entry.numel);
    }
  } else {
    run_on_threads(threads);
  }
  for (auto& [original, copy] : copied_back_) {
    original.copy_(copy);
  }
  entries_.clear();
  copied_back_.clear();
  kept_.clear();
}

void UpdateQueue::run_on_threads(int threads) {
  struct Piece {
    const Entry* entry;
    std::int64_t begin;
    std::int64_t count;
  };
  std::vector<Piece> pieces;
  for (const Entry& entry : entries_) {
    for (std::int64_t begin = 0; begin < entry.numel; begin += kPiece) {
      pieces.push_back({&entry, begin, std::min(kPiece, entry.numel - begin)});
    }
  }
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t index = next++; index < pieces.size(); index = next++) {
      pieces[index].entry->update(pieces[index].begin, pieces[index].count);
    }
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) {
    others.emplace_back(work);
  }
  work();
}

} // namespace tieshard
