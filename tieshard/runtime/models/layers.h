// tieshard/runtime/models/layers.h
//
// Layers that several families share. Their parameters are left without values (on `device`, meta by default): values
// come from a checkpoint. Names are the Hugging Face ones.
//
// Flow:   models/decoder.h, gpt2.h, t5.h -> [this]
// Source: transformers 5.24 modeling_llama.py (LlamaRMSNorm), modeling_gemma.py.
//
// Shape suffixes: B batch, T sequence, H hidden, V vocab.

#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tieshard/core/families/decoder_config.h"
#include "tieshard/runtime/models/low_rank_update.h"
#include "tieshard/runtime/models/shared_embedding.h"

namespace tieshard {

/// y = x W^T (+ b), W [out, in]; plus `update` where there is one.
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(std::int64_t in, std::int64_t out, bool with_bias, const at::TensorOptions& options);

  /// Shares `tied` [out, in] instead of a weight of its own: one tensor under two names.
  explicit LinearImpl(const at::Tensor& tied);

  at::Tensor forward(const at::Tensor& x) const;

  /// Of the whole weight, also while it is sharded.
  std::int64_t in_features() const noexcept {
    return in_;
  }
  std::int64_t out_features() const noexcept {
    return out_;
  }

  at::Tensor weight;
  at::Tensor bias; ///< undefined without one
  std::optional<LowRankUpdate> update{};

 private:
  std::int64_t in_;
  std::int64_t out_;
};
TORCH_MODULE(Linear);

/// Rows of W [V, H] by token id; plus `update`, whose input is the token's one-hot row. The row `padding_idx` gets no
/// gradient from here.
class EmbeddingImpl : public torch::nn::Module {
 public:
  /// @param shared  the weight has another use, which makes a whole gradient: this one's rows are added into that
  ///                (shared_embedding.h)
  EmbeddingImpl(std::int64_t count,
                std::int64_t size,
                std::optional<std::int64_t> padding_idx,
                const at::TensorOptions& options,
                bool shared = false);

  /// ids int64 [B, T] -> [B, T, H]
  at::Tensor forward(const at::Tensor& ids) const;

  /// V and H of the whole weight, also while it is sharded.
  std::int64_t count() const noexcept {
    return count_;
  }
  std::int64_t size() const noexcept {
    return size_;
  }

  at::Tensor weight;
  std::optional<LowRankUpdate> update{};

 private:
  std::int64_t count_;
  std::int64_t size_;
  std::int64_t padding_idx_;
  std::optional<SharedEmbedding> shared_;
};
TORCH_MODULE(Embedding);

/// x / sqrt(mean(x^2) + eps) over the last dim, in float32, times the weight (rms_norm of lean_functions.h).
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(std::int64_t size, double eps, const at::TensorOptions& options, NormScale scale = NormScale::kWeight);
  at::Tensor forward(const at::Tensor& x) const;

  at::Tensor weight;

 private:
  double eps_;
  NormScale scale_;
};
TORCH_MODULE(RmsNorm);

} // namespace tieshard
