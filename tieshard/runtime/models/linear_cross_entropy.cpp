#include "tieshard/runtime/models/linear_cross_entropy.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "tieshard/runtime/models/first_derivative.h"
#include "tieshard/runtime/models/linear_kernel.h"

namespace tieshard {
namespace {

/// Gives out the gradients that the forward pass made. Those of a graph that is not kept leave with the first backward,
/// so that the accumulation can take them instead of copying.
class LinearCrossEntropyBackward : public torch::autograd::Node {
 public:
  /// @param kept  the gradients of the inputs, in the order of `edges`; undefined where none is wanted
  LinearCrossEntropyBackward(torch::autograd::edge_list&& edges, std::vector<at::Tensor> kept)
      : Node(std::move(edges)), kept_(std::move(kept)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    refuse_second_derivative("linear_cross_entropy_sum");
    torch::autograd::variable_list given(kept_.size());
    if (!gradients.front().defined()) {
      return given;
    }
    const double factor = gradients.front().item<double>();
    const bool last = !torch::autograd::get_current_graph_task_keep_graph();
    std::ranges::transform(kept_, given.begin(), [&](at::Tensor& kept) { return give(kept, factor, last); });
    return given;
  }

  std::string name() const override {
    return "LinearCrossEntropyBackward";
  }

  void release_variables() override {
    for (at::Tensor& kept : kept_) {
      kept.reset();
    }
  }

 private:
  static at::Tensor give(at::Tensor& kept, double factor, bool last) {
    if (!kept.defined()) {
      return {};
    }
    at::Tensor given = last ? std::exchange(kept, at::Tensor()) : kept.clone();
    return factor == 1.0 ? given : given.mul_(factor);
  }

  std::vector<at::Tensor> kept_;
};

/// The sum over pieces of slope^T x [V, H], by slices of the vocabulary: a slice stays in the cache while it is made,
/// and what is made for it is small enough for a heap to use again.
///
/// Of a narrow weight nothing may be rounded between the pieces: of few rows the slopes are kept and multiplied at the
/// end, which takes R V narrow numbers; of more rows the slices are float32, V H of them.
class WeightGradient {
 public:
  /// @param rows  R, of all pieces
  WeightGradient(const at::Tensor& weight_VH, std::int64_t rows)
      : shape_(weight_VH.sizes().vec()), options_(weight_VH.options()) {
    const bool narrow = at::isReducedFloatingType(weight_VH.scalar_type());
    if (narrow && rows * 2 <= shape_[1] * 4) {
      slopes_ = at::empty({rows, shape_[0]}, options_);
      return;
    }
    whole_ = narrow ? at::Tensor() : at::zeros_like(weight_VH);
    over_slices([&](std::int64_t begin, std::int64_t count) {
      slices_.push_back(whole_.defined() ? whole_.narrow(0, begin, count)
                                         : at::zeros({count, shape_[1]}, options_.dtype(at::kFloat)));
    });
  }

  /// Adds one piece of rows. @param first  its first row among all
  void add(const at::Tensor& slope_RV, const at::Tensor& x_RH, std::int64_t first) {
    if (slopes_.defined()) {
      slopes_.narrow(0, first, slope_RV.size(0)).copy_(slope_RV);
      return;
    }
    std::int64_t begin = 0;
    for (at::Tensor& slice : slices_) {
      slice.add_(matmul_transposed(slope_RV.narrow(1, begin, slice.size(0)).t(), x_RH.t()));
      begin += slice.size(0);
    }
  }

  /// [V, H] in the weight's dtype; nothing is left here. @param x_RH  of all pieces
  at::Tensor take(const at::Tensor& x_RH) {
    if (!whole_.defined()) {
      whole_ = at::empty(shape_, options_);
      std::size_t index = 0;
      over_slices([&](std::int64_t begin, std::int64_t count) {
        whole_.narrow(0, begin, count)
            .copy_(slopes_.defined() ? matmul_transposed(slopes_.narrow(1, begin, count).t(), x_RH.t())
                                     : std::exchange(slices_[index++], at::Tensor()));
      });
    }
    slices_.clear();
    slopes_.reset();
    return std::exchange(whole_, at::Tensor());
  }

 private:
  static constexpr std::int64_t kSliceBytes = std::int64_t{8} << 20;

  template <typename Visit>
  void over_slices(const Visit& visit) const {
    const std::int64_t row_bytes = 4 * std::max<std::int64_t>(1, shape_[1]);
    const std::int64_t rows = std::max<std::int64_t>(1, kSliceBytes / row_bytes);
    for (std::int64_t begin = 0; begin < shape_[0]; begin += rows) {
      visit(begin, std::min(rows, shape_[0] - begin));
    }
  }

  std::vector<std::int64_t> shape_;
  at::TensorOptions options_;
  at::Tensor whole_; ///< what the slices are cut from; undefined for a narrow weight
  std::vector<at::Tensor> slices_;
  at::Tensor slopes_; ///< [R, V], undefined where slices are added up
};

/// What one call works on: rows with a target only.
struct Work {
  at::Tensor x_RH;
  at::Tensor weight_VH;
  at::Tensor targets_R;
  double scale = 1.0;
  double softcap = 0.0;
  AddedLogits added{};
  at::Tensor x_gradient{};                   ///< [R, H], undefined when not wanted
  WeightGradient* weight_gradient = nullptr; ///< null when not wanted
  AddedLogits added_gradient{};              ///< each undefined when not wanted

  bool wants_gradient() const {
    return x_gradient.defined() || weight_gradient != nullptr || added_gradient.u_RK.defined() ||
           added_gradient.weight_VK.defined();
  }
};

std::int64_t rows_in_piece(std::int64_t rows, std::int64_t vocab) {
  const std::int64_t most = std::max<std::int64_t>(1, kLogitsBytes / (vocab * std::int64_t{sizeof(float)}));
  const std::int64_t pieces = std::max<std::int64_t>(1, (rows + most - 1) / most);
  return std::max<std::int64_t>(1, (rows + pieces - 1) / pieces);
}

/// Adds the gradients of rows [begin, begin + rows): `log_probabilities` [rows, V] float32 is used up.
/// @param tanh  of logits / cap, where they are capped
void add_gradients(
    Work& work, at::Tensor log_probabilities, const at::Tensor& tanh, std::int64_t begin, std::int64_t rows) {
  const at::Tensor targets = work.targets_R.narrow(0, begin, rows).unsqueeze(1);
  at::Tensor slope = log_probabilities.exp_();
  slope.scatter_add_(1, targets, at::full({rows, 1}, -1.0, slope.options()));
  slope = slope.mul_(work.scale);
  if (tanh.defined()) {
    slope.mul_(1.0 - tanh.to(at::kFloat).square_());
  }
  if (work.added_gradient.u_RK.defined()) {
    const at::Tensor here = slope.to(work.added.u_RK.scalar_type());
    work.added_gradient.u_RK.narrow(0, begin, rows).copy_(matmul_transposed(here, work.added.weight_VK.t()));
  }
  if (work.added_gradient.weight_VK.defined()) {
    const at::Tensor here = slope.to(work.added.u_RK.scalar_type());
    work.added_gradient.weight_VK.add_(matmul_transposed(here.t(), work.added.u_RK.narrow(0, begin, rows).t()));
  }
  slope = slope.to(work.x_RH.scalar_type());
  if (work.x_gradient.defined()) {
    work.x_gradient.narrow(0, begin, rows).copy_(matmul_transposed(slope, work.weight_VH.t()));
  }
  if (work.weight_gradient != nullptr) {
    work.weight_gradient->add(slope, work.x_RH.narrow(0, begin, rows), begin);
  }
}

/// The loss of all rows, and their gradients.
double run(Work& work) {
  const std::int64_t rows = work.x_RH.size(0);
  const std::int64_t piece = rows_in_piece(rows, work.weight_VH.size(0));
  double sum = 0;
  for (std::int64_t begin = 0; begin < rows; begin += piece) {
    const std::int64_t count = std::min(piece, rows - begin);
    at::Tensor logits = matmul_transposed(work.x_RH.narrow(0, begin, count), work.weight_VH);
    if (work.added.u_RK.defined()) {
      logits = logits + matmul_transposed(work.added.u_RK.narrow(0, begin, count), work.added.weight_VK);
    }
    at::Tensor tanh;
    if (work.softcap > 0) {
      tanh = at::tanh(logits / work.softcap);
      logits = tanh * work.softcap;
    }
    at::Tensor log_probabilities = at::log_softmax(std::exchange(logits, at::Tensor()), 1, at::kFloat);
    const at::Tensor targets = work.targets_R.narrow(0, begin, count).unsqueeze(1);
    sum -= log_probabilities.gather(1, targets).sum(at::kDouble).item<double>();
    if (work.wants_gradient()) {
      add_gradients(work, std::move(log_probabilities), tanh, begin, count);
    }
  }
  return sum * work.scale;
}

bool wants_gradient(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
}

/// [R, H] of all rows, from those of the rows with a target.
at::Tensor spread(const at::Tensor& part, const at::Tensor& chosen, std::int64_t rows) {
  if (!part.defined() || part.size(0) == rows) {
    return part;
  }
  return at::zeros({rows, part.size(1)}, part.options()).index_copy_(0, chosen, part);
}

/// The rows of `tensor` that have a target; undefined stays so.
at::Tensor rows_of(const at::Tensor& tensor, const at::Tensor& chosen) {
  const bool all = !tensor.defined() || chosen.size(0) == tensor.size(0);
  return all ? (tensor.defined() ? tensor.detach() : tensor) : tensor.detach().index_select(0, chosen);
}

} // namespace

at::Tensor linear_cross_entropy_sum(const at::Tensor& x_RH,
                                    const at::Tensor& weight_VH,
                                    const at::Tensor& targets_R,
                                    const LinearCrossEntropyOptions& options) {
  const AddedLogits& added = options.added;
  const auto edges = torch::autograd::collect_next_edges(x_RH, weight_VH, added.u_RK, added.weight_VK);
  at::Tensor loss;
  std::vector<at::Tensor> gradients;
  bool wants_any = false;
  {
    const bool x_wants = wants_gradient(x_RH);
    const bool weight_wants = wants_gradient(weight_VH);
    const bool u_wants = wants_gradient(added.u_RK);
    const bool added_weight_wants = wants_gradient(added.weight_VK);
    const at::NoGradGuard no_grad;
    const std::int64_t rows = x_RH.size(0);
    const at::Tensor chosen = (targets_R != options.ignored).nonzero().squeeze(1);
    Work work{
        .x_RH = rows_of(x_RH, chosen),
        .weight_VH = weight_VH.detach(),
        .targets_R = rows_of(targets_R, chosen),
        .scale = options.scale,
        .softcap = options.softcap,
        .added = {rows_of(added.u_RK, chosen), added.weight_VK.defined() ? added.weight_VK.detach() : added.weight_VK}};
    std::optional<WeightGradient> weight_gradient;
    if (weight_wants) {
      work.weight_gradient = &weight_gradient.emplace(weight_VH.detach(), work.x_RH.size(0));
    }
    if (x_wants) {
      work.x_gradient = at::empty_like(work.x_RH);
    }
    if (u_wants) {
      work.added_gradient.u_RK = at::empty_like(work.added.u_RK);
    }
    if (added_weight_wants) {
      work.added_gradient.weight_VK = at::zeros(work.added.weight_VK.sizes(), work.added.u_RK.options());
    }
    wants_any = work.wants_gradient();
    loss = at::full({}, run(work), x_RH.options().dtype(at::kFloat));
    gradients = {spread(work.x_gradient, chosen, rows),
                 weight_gradient ? weight_gradient->take(work.x_RH) : at::Tensor(),
                 spread(work.added_gradient.u_RK, chosen, rows),
                 work.added_gradient.weight_VK};
  }
  if (wants_any) {
    torch::autograd::set_history(
        loss, c10::make_intrusive<LinearCrossEntropyBackward>(torch::autograd::edge_list(edges), std::move(gradients)));
  }
  return loss;
}

} // namespace tieshard
