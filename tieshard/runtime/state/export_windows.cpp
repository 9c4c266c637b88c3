#include "tieshard/runtime/state/export_windows.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

namespace tieshard {
namespace {

/// Tensors one behind the other in the file whose rows are exchanged.
struct Run {
  std::uint64_t offset = 0;
  std::vector<WindowPiece> tensors; ///< all rows of each

  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const WindowPiece& tensor : tensors) {
      sum += tensor.rows * tensor.cut.row_bytes;
    }
    return sum;
  }
};

/// Cuts a run into windows of about the same size, between rows.
void cut_run(const Run& run, std::uint64_t most_bytes, std::vector<ExportWindow>& windows) {
  const std::uint64_t total = run.bytes();
  const std::uint64_t count = (total + most_bytes - 1) / most_bytes;
  const std::uint64_t wanted = std::min(most_bytes, (total + count - 1) / count);
  ExportWindow window;
  window.offset = run.offset;
  const auto close = [&] {
    const std::uint64_t end = window.offset + window.bytes;
    if (window.bytes > 0) {
      windows.push_back(std::exchange(window, {}));
    }
    window.offset = end;
  };
  for (const WindowPiece& tensor : run.tensors) {
    for (std::uint64_t row = 0; row < tensor.rows;) {
      const std::uint64_t room = wanted > window.bytes ? wanted - window.bytes : 0;
      const std::uint64_t fitting = room / tensor.cut.row_bytes;
      if (fitting == 0 && window.bytes > 0) {
        close();
        continue;
      }
      WindowPiece piece = tensor; // a single row may be longer than what is wanted, but not than the most
      piece.first_row = row;
      piece.rows = std::min(tensor.rows - row, std::max<std::uint64_t>(1, fitting));
      piece.at = window.bytes;
      window.bytes += piece.rows * piece.cut.row_bytes;
      row += piece.rows;
      window.pieces.push_back(std::move(piece));
    }
  }
  close();
}

} // namespace

CutRows cut_rows(const ShardedParameter& parameter, DType stored) {
  const auto dim = static_cast<std::size_t>(parameter.dim);
  const std::span<const std::int64_t> shape = parameter.shape;
  CutRows cut{.rows = 1, .index_bytes = static_cast<std::uint64_t>(bits(stored)) / 8};
  for (std::size_t i = 0; i < dim; ++i) {
    cut.rows *= static_cast<std::uint64_t>(shape[i]);
  }
  for (std::size_t i = dim + 1; i < shape.size(); ++i) {
    cut.index_bytes *= static_cast<std::uint64_t>(shape[i]);
  }
  cut.row_bytes = cut.index_bytes * static_cast<std::uint64_t>(shape[dim]);
  return cut;
}

ExportWindows export_windows(const ExportFile& file, const ShardPlan& plan, std::uint64_t most_bytes) {
  std::map<std::string, const ShardedParameter*> by_name;
  for (const ShardedParameter& parameter : plan.parameters()) {
    by_name.emplace(parameter.fqn, &parameter);
  }
  ExportWindows found;
  found.ranks = plan.ranks();
  Run run;
  for (const TensorEntry& tensor : file.layout.header.tensors) {
    if (tensor.begin == tensor.end) {
      continue;
    }
    const bool copied = file.copied.contains(tensor.name);
    const ShardedParameter* const parameter = copied ? nullptr : by_name.at(tensor.name);
    const CutRows cut = copied || parameter->dim < 0 ? CutRows{} : cut_rows(*parameter, tensor.dtype);
    if (plan.ranks() > 1 && cut.rows > 1 && cut.row_bytes <= most_bytes) {
      if (run.tensors.empty()) {
        run.offset = file.layout.offset_of(tensor.name);
      }
      run.tensors.push_back({.parameter = parameter, .cut = cut, .rows = cut.rows, .stored = tensor.dtype});
      continue;
    }
    (copied ? found.copied : found.by_slices).push_back(&tensor);
    if (!run.tensors.empty()) {
      cut_run(std::exchange(run, {}), most_bytes, found.windows);
    }
  }
  if (!run.tensors.empty()) {
    cut_run(run, most_bytes, found.windows);
  }
  return found;
}

std::uint64_t bytes_held(const ExportWindow& window, const ShardPlan& plan, std::int64_t rank) {
  std::uint64_t sum = 0;
  for (const WindowPiece& piece : window.pieces) {
    const auto indices = static_cast<std::uint64_t>(plan.range(*piece.parameter, rank).size);
    sum += piece.rows * indices * piece.cut.index_bytes;
  }
  return sum;
}

} // namespace tieshard
