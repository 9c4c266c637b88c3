// tieshard/runtime/models/grouped_linear.h
//
// One product for each group of rows with a matrix of its own, of matrices that are stacked in one parameter.
//
// Flow:   experts -> [this] -> linear_kernel
// Source: Gale et al., "MegaBlocks" (grouped products of a mixture of experts). Autograd's own way, a select for each
//         group, makes a gradient of all matrices' size for each of them.
//
// Shape suffixes: M rows, E groups, I in, O out.

#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tieshard {

/// Rows of x [M, I], the first counts[0] of which belong to group 0 and so on, times weight [E, I, O] of their group,
/// plus its bias [E, O] -> [M, O]. A group without rows gets a gradient of zeros. Differentiated once.
/// @throws UsageError wrong-state from backward(create_graph=true)
at::Tensor grouped_linear(const at::Tensor& x_MI,
                          const at::Tensor& weight_EIO,
                          const at::Tensor& bias_EO,
                          const std::vector<std::int64_t>& counts);

} // namespace tieshard
