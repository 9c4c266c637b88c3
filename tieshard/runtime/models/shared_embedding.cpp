#include "tieshard/runtime/models/shared_embedding.h"

#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace tieshard {

using torch::autograd::variable_list;

/// What the embedding's backward left for the leaf in one pass.
struct SharedEmbedding::Rows {
  struct Part {
    at::Tensor ids;    ///< [R], different ones
    at::Tensor values; ///< [R, H] in the weight's dtype
    std::int64_t vocab = 0;
  };

  void leave(Part part) {
    const int now = torch::autograd::get_current_graph_task_id();
    if (std::exchange(pass, now) != now) {
      parts.clear();
    }
    parts.push_back(std::move(part));
  }

  /// Those of the pass that runs.
  std::vector<Part> take() {
    const bool stale = pass != torch::autograd::get_current_graph_task_id();
    std::vector<Part> taken = std::exchange(parts, {});
    return stale ? std::vector<Part>() : taken;
  }

  int pass = -1; ///< as autograd numbers it
  std::vector<Part> parts;
};

namespace {

using Rows = SharedEmbedding::Rows;

/// Rows of equal ids added up; those of the padding token left out.
Rows::Part sum_of_equal(const at::Tensor& ids,
                        const at::Tensor& gradient,
                        std::int64_t padding_idx,
                        std::int64_t vocab) {
  const std::int64_t hidden = gradient.size(-1);
  const auto [different, place] = at::_unique(ids.reshape({-1}), /*sorted=*/true, /*return_inverse=*/true);
  at::Tensor values = at::zeros({different.size(0), hidden},
                                gradient.options().dtype(at::promote_types(gradient.scalar_type(), at::kFloat)));
  values.index_add_(0, place, gradient.reshape({-1, hidden}).to(values.scalar_type()));
  if (padding_idx >= 0) {
    values.masked_fill_((different == padding_idx).unsqueeze(1), 0);
  }
  return {.ids = different, .values = values.to(gradient.scalar_type()), .vocab = vocab};
}

class SharedEmbeddingBackward : public torch::autograd::Node {
 public:
  SharedEmbeddingBackward(torch::autograd::edge_list&& edges,
                          std::shared_ptr<Rows> rows,
                          const at::Tensor& ids,
                          std::int64_t padding_idx,
                          std::int64_t vocab)
      : Node(std::move(edges)), rows_(std::move(rows)), ids_(ids, false), padding_idx_(padding_idx), vocab_(vocab) {}

  variable_list apply(variable_list&& gradients) override {
    const at::Tensor gradient = std::exchange(gradients.front(), at::Tensor());
    if (!gradient.defined()) {
      return {at::Tensor()};
    }
    const at::Tensor ids = ids_.unpack();
    if (at::GradMode::is_enabled()) {
      return {at::embedding_dense_backward(gradient, ids, vocab_, padding_idx_, /*scale_grad_by_freq=*/false)};
    }
    rows_->leave(sum_of_equal(ids, gradient, padding_idx_, vocab_));
    return {at::Tensor()};
  }

  void release_variables() override {
    ids_.reset_data();
  }
  std::string name() const override {
    return "SharedEmbeddingBackward";
  }

 private:
  std::shared_ptr<Rows> rows_;
  torch::autograd::SavedVariable ids_;
  std::int64_t padding_idx_;
  std::int64_t vocab_;
};

class AddRows : public torch::autograd::FunctionPreHook {
 public:
  explicit AddRows(std::shared_ptr<Rows> rows) : rows_(std::move(rows)) {}

  variable_list operator()(const variable_list& gradients) override {
    at::Tensor sum = gradients.front();
    // `sum` and the list hold it; whoever else does may not see it change
    const bool ours = sum.defined() && sum.use_count() == 2 && sum.storage().use_count() == 1;
    bool owned = ours && sum.is_non_overlapping_and_dense();
    for (const Rows::Part& part : rows_->take()) {
      if (!owned) {
        sum = sum.defined() ? sum.clone() : at::zeros({part.vocab, part.values.size(1)}, part.values.options());
        owned = true;
      }
      sum.index_add_(0, part.ids, part.values);
    }
    return {sum};
  }

 private:
  std::shared_ptr<Rows> rows_;
};

} // namespace

SharedEmbedding::SharedEmbedding(const at::Tensor& weight) : rows_(std::make_shared<Rows>()) {
  torch::autograd::impl::add_hook(weight, std::make_unique<AddRows>(rows_));
}

at::Tensor SharedEmbedding::lookup(const at::Tensor& weight, const at::Tensor& ids, std::int64_t padding_idx) const {
  const bool wants_gradient = at::GradMode::is_enabled() && weight.requires_grad();
  auto edges = torch::autograd::collect_next_edges(weight);
  at::Tensor rows;
  {
    const at::NoGradGuard no_grad;
    rows = at::embedding(weight, ids, padding_idx);
  }
  if (wants_gradient) {
    torch::autograd::set_history(
        rows, c10::make_intrusive<SharedEmbeddingBackward>(std::move(edges), rows_, ids, padding_idx, weight.size(0)));
  }
  return rows;
}

} // namespace tieshard
