#include "tieshard/runtime/state/export_writer.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <span>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/plan/strided_range.h"
#include "tieshard/core/state/checked_writer.h"
#include "tieshard/runtime/mesh/all_to_all.h"
#include "tieshard/runtime/state/export_windows.h"
#include "tieshard/runtime/state/shard_bytes.h"

namespace tieshard {
namespace {

/// Converted, or copied, at once.
constexpr std::uint64_t kPieceBytes = kWindowBytes;

/// Calls action(offset in the file, bytes) for pieces of the range, in order.
void over_pieces(const StridedRange& range, const std::function<void(std::uint64_t, std::uint64_t)>& action) {
  for (std::uint64_t row = 0; row < range.rows; ++row) {
    for (std::uint64_t at = 0; at < range.row_bytes; at += kPieceBytes) {
      action(range.first + row * range.stride + at, std::min(kPieceBytes, range.row_bytes - at));
    }
  }
}

StridedRange contiguous(std::uint64_t offset, std::uint64_t bytes) {
  return {.first = offset, .rows = 1, .row_bytes = bytes, .stride = bytes};
}

/// One rank's part of one file.
class PartWriter {
 public:
  PartWriter(const FsdpState& state, const std::filesystem::path& staging, const ExportFile& file)
      : state_(state),
        mesh_(state.mesh()),
        file_(file),
        planned_(export_windows(file, state.plan())),
        shards_(state),
        purpose_(CollectivePurpose::named(concat("export: rows of ", file.name))) {
    attempt([&] { target_.emplace(staging / file.name); });
  }

  WrittenPart write() {
    const auto ranks = static_cast<std::size_t>(mesh_.size());
    for (std::size_t step = 0; step < planned_.of_rank(); ++step) {
      exchange(step);
    }
    for (const TensorEntry* const tensor : planned_.by_slices) {
      attempt([&] { write_slice_of(*tensor); });
    }
    for (std::size_t i = rank(); i < planned_.copied.size(); i += ranks) {
      attempt([&] { copy(*planned_.copied[i]); });
    }
    attempt([&] { target_->finish(); });
    written_.overflowed = shards_.overflowed();
    return std::move(written_);
  }

 private:
  std::size_t rank() const {
    return static_cast<std::size_t>(mesh_.rank());
  }

  /// Runs `work`, unless something failed before.
  void attempt(const std::function<void()>& work) {
    if (written_.failure != nullptr) {
      return;
    }
    try {
      work();
    } catch (...) {
      written_.failure = std::current_exception();
    }
  }

  /// One window for each rank: every rank gives the others their rows, and writes its own window.
  void exchange(std::size_t step) {
    std::vector<Part> sent(static_cast<std::size_t>(mesh_.size()));
    std::vector<Part> received(sent.size());
    std::uint64_t most = 0;
    std::uint64_t converted = 0;
    for (std::int64_t owner = 0; owner < mesh_.size(); ++owner) {
      if (const ExportWindow* const window = planned_.window(owner, step)) {
        most = std::max(most, bytes_held(*window, state_.plan(), 0));
        converted += bytes_to_convert(*window);
      }
    }
    std::span<std::byte> room = room_for(converted, converted_);
    for (std::int64_t owner = 0; owner < mesh_.size(); ++owner) {
      if (const ExportWindow* const window = planned_.window(owner, step)) {
        sent[static_cast<std::size_t>(owner)] = rows_of_this_rank(*window, room);
      }
    }
    const ExportWindow* const own = planned_.window(mesh_.rank(), step);
    if (own != nullptr) {
      room_for(own->bytes, window_);
      for (std::size_t giver = 0; giver < received.size(); ++giver) {
        received[giver] = places_of(*own, static_cast<std::int64_t>(giver));
      }
    }
    all_to_all(mesh_, received, sent, most, purpose_);
    if (own != nullptr) {
      attempt([&] { target_->write(own->offset, std::span(window_).first(own->bytes)); });
    }
  }

  /// What this rank holds of a window, as it is stored: where the shards lie, or converted, in the front of `room`.
  Part rows_of_this_rank(const ExportWindow& window, std::span<std::byte>& room) {
    Part part;
    for (const WindowPiece& piece : window.pieces) {
      const std::uint64_t bytes = bytes_here(piece);
      if (bytes == 0) {
        continue;
      }
      std::span<std::byte> run = in_place(piece) ? std::span<std::byte>() : room.first(bytes);
      room = room.subspan(run.size());
      const std::uint64_t elements = bytes / (static_cast<std::uint64_t>(bits(piece.stored)) / 8);
      const auto take = [&] {
        run = shards_.run(shards_.parameter(piece.parameter->fqn),
                          piece.first_row * (elements / piece.rows),
                          elements,
                          piece.stored,
                          run);
      };
      in_place(piece) ? take() : attempt(take); // also after a failure the others get as many bytes as they wait for
      part.push_back({.data = run.data(), .rows = 1, .row_bytes = bytes, .stride = bytes});
    }
    return part;
  }

  std::uint64_t bytes_here(const WindowPiece& piece) const {
    const auto indices = static_cast<std::uint64_t>(state_.plan().range(*piece.parameter, mesh_.rank()).size);
    return piece.rows * indices * piece.cut.index_bytes;
  }

  std::uint64_t bytes_to_convert(const ExportWindow& window) const {
    std::uint64_t sum = 0;
    for (const WindowPiece& piece : window.pieces) {
      sum += in_place(piece) ? 0 : bytes_here(piece);
    }
    return sum;
  }

  bool in_place(const WindowPiece& piece) const {
    return shards_.in_place(shards_.parameter(piece.parameter->fqn), piece.stored);
  }

  /// `memory`, made larger where it has less than `bytes`: what is there twice is not cleared twice.
  static std::span<std::byte> room_for(std::uint64_t bytes, std::vector<std::byte>& memory) {
    if (memory.size() < bytes) {
      memory.resize(bytes);
    }
    return memory;
  }

  /// Where in window_ the rows lie that rank `giver` holds.
  Part places_of(const ExportWindow& window, std::int64_t giver) {
    Part part;
    for (const WindowPiece& piece : window.pieces) {
      const ChunkRange range = state_.plan().range(*piece.parameter, giver);
      if (range.size > 0) {
        part.push_back(
            {.data = window_.data() + piece.at + static_cast<std::uint64_t>(range.offset) * piece.cut.index_bytes,
             .rows = piece.rows,
             .row_bytes = static_cast<std::uint64_t>(range.size) * piece.cut.index_bytes,
             .stride = piece.cut.row_bytes});
      }
    }
    return part;
  }

  /// This rank's part of a tensor, which lies in the file as its rows, or runs of them.
  void write_slice_of(const TensorEntry& tensor) {
    const FsdpParam& parameter = shards_.parameter(tensor.name);
    if ((parameter.replicated() && rank() != 0) || parameter.shard().numel() == 0) {
      return;
    }
    StridedRange range = strided_range(
        tensor.shape, tensor.dtype, parameter.spec().dim, state_.plan().range(parameter.spec(), mesh_.rank()));
    range.first += file_.layout.offset_of(tensor.name);
    const std::uint64_t element = static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
    room_for(kPieceBytes, window_);
    std::uint64_t done = 0;
    over_pieces(range, [&](std::uint64_t offset, std::uint64_t bytes) {
      target_->write(offset, shards_.run(parameter, done / element, bytes / element, tensor.dtype, window_));
      done += bytes;
    });
  }

  void copy(const TensorEntry& tensor) {
    const CopiedTensor& stored = file_.copied.at(tensor.name);
    const File source = File::open_for_reading(stored.file);
    const StridedRange range = contiguous(file_.layout.offset_of(tensor.name), tensor.end - tensor.begin);
    room_for(kPieceBytes, window_);
    over_pieces(range, [&](std::uint64_t offset, std::uint64_t bytes) {
      const std::span<std::byte> piece = std::span(window_).first(bytes);
      source.read_at(stored.offset + (offset - range.first), piece);
      target_->write(offset, piece);
    });
  }

  const FsdpState& state_;
  const DeviceMesh& mesh_;
  const ExportFile& file_;
  ExportWindows planned_;
  ShardBytes shards_;
  CollectivePurpose purpose_;
  std::optional<CheckedWriter> target_;
  std::vector<std::byte> window_;
  std::vector<std::byte> converted_;
  WrittenPart written_;
};

} // namespace

WrittenPart write_export_file(const FsdpState& state, const std::filesystem::path& staging, const ExportFile& file) {
  return PartWriter(state, staging, file).write();
}

} // namespace tieshard
