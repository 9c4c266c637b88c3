#include "tieshard/core/doctor/value_check.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "tieshard/core/io/convert.h"
#include "tieshard/core/io/finite.h"
#include "tieshard/core/io/not_finite.h"

namespace tieshard {
namespace {

/// Stored bytes of one tensor that a thread looks at in one go.
struct Piece {
  std::size_t tensor = 0;
  std::uint64_t first = 0; ///< byte within the tensor, at the beginning of an element
  std::uint64_t bytes = 0;
};

/// The pieces of tensor `index` that are stored; elements that a hole's edge cuts are taken whole.
void cut(
    const File& file, const StoredTensor& tensor, std::size_t index, std::uint64_t limit, std::vector<Piece>& out) {
  const auto element = static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
  const std::uint64_t tensor_end = tensor.offset + tensor.bytes;
  std::uint64_t done = 0;
  while (done < tensor.bytes) {
    const std::optional<FileExtent> stored = file.next_stored(tensor.offset + done);
    if (!stored || stored->begin >= tensor_end) {
      return;
    }
    std::uint64_t first = std::max(done, (stored->begin - tensor.offset) / element * element);
    const std::uint64_t last = std::min(stored->end, tensor_end) - tensor.offset;
    for (; first < last; first += limit) {
      out.push_back({.tensor = index, .first = first, .bytes = std::min(limit, tensor.bytes - first)});
      out.back().bytes = std::min(out.back().bytes, (last - first + element - 1) / element * element);
    }
    done = (last + element - 1) / element * element;
  }
}

/// What a thread holds.
struct Buffers {
  std::vector<std::byte> stored;
  std::vector<std::byte> loaded;
};

/// What was found in each tensor: the smallest index of a value that is not finite.
class Scan {
 public:
  Scan(const Checkpoint& checkpoint, const std::vector<CheckedTensor>& tensors, std::uint64_t piece_bytes)
      : checkpoint_(checkpoint), tensors_(tensors), bad_(tensors.size()) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      cut(file_of(*tensors[i].stored), *tensors[i].stored, i, piece_bytes, pieces_);
    }
  }

  void run(int threads) {
    std::vector<std::thread> others;
    for (int i = 1; i < threads && static_cast<std::size_t>(i) < pieces_.size(); ++i) {
      others.emplace_back([this] { work(); });
    }
    work();
    for (std::thread& other : others) {
      other.join();
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

  const std::vector<std::optional<NotFinite>>& bad() const {
    return bad_;
  }

 private:
  const File& file_of(const StoredTensor& tensor) const {
    return checkpoint_.files()[tensor.file].file();
  }

  void work() {
    try {
      Buffers buffers;
      for (std::size_t i = next_++; i < pieces_.size() && !failed_; i = next_++) {
        look_at(pieces_[i], buffers);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = failure_ ? failure_ : std::current_exception();
      failed_ = true;
    }
  }

  void look_at(const Piece& piece, Buffers& buffers) {
    const CheckedTensor& tensor = tensors_[piece.tensor];
    buffers.stored.resize(piece.bytes);
    file_of(*tensor.stored).read_at(tensor.stored->offset + piece.first, buffers.stored);
    const std::size_t width = static_cast<std::size_t>(bits(tensor.read_as)) / 8;
    const std::size_t count = buffers.stored.size() / width;
    const std::byte* loaded = buffers.stored.data();
    if (tensor.loaded_as != tensor.read_as) {
      buffers.loaded.resize(count * static_cast<std::size_t>(bits(tensor.loaded_as)) / 8);
      convert(loaded, tensor.read_as, buffers.loaded.data(), tensor.loaded_as, count);
      loaded = buffers.loaded.data();
    }
    const std::size_t at = first_not_finite(loaded, tensor.loaded_as, count);
    if (at == count) {
      return;
    }
    const std::byte* const element = loaded + at * static_cast<std::size_t>(bits(tensor.loaded_as)) / 8;
    const StoredTensor& stored = *tensor.stored;
    NotFinite bad = not_finite_at(stored.name, element, tensor.loaded_as, piece.first / width + at, stored.shape);
    const std::lock_guard lock(mutex_);
    std::optional<NotFinite>& known = bad_[piece.tensor];
    if (!known || bad.index < known->index) { // of one shape: as the elements follow each other
      known = std::move(bad);
    }
  }

  const Checkpoint& checkpoint_;
  const std::vector<CheckedTensor>& tensors_;
  std::vector<Piece> pieces_;
  std::vector<std::optional<NotFinite>> bad_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;
  std::mutex mutex_;
};

} // namespace

void check_values(const Checkpoint& checkpoint,
                  std::vector<CheckedTensor> tensors,
                  const ValueCheckOptions& options,
                  FindingList& findings) {
  std::erase_if(tensors, [](const CheckedTensor& tensor) {
    return tensor.stored->bytes == 0 || !is_loadable_float(tensor.read_as);
  });
  const auto place = [](const CheckedTensor& tensor) { return std::tie(tensor.stored->file, tensor.stored->offset); };
  std::ranges::sort(tensors, {}, place);
  Scan scan(checkpoint, tensors, options.buffer_bytes);
  scan.run(options.threads);
  std::vector<NotFinite> found;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (std::optional<NotFinite> bad = scan.bad()[i]) {
      const StoredTensor& tensor = *tensors[i].stored;
      bad->place = concat(checkpoint.file_name(tensor), ": ", tensor.stored_name);
      found.push_back(*std::move(bad));
    }
  }
  if (!found.empty()) {
    findings.add(not_finite_finding(found));
  }
}

} // namespace tieshard
