#include "tieshard/core/doctor/value_check.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "tieshard/core/base/units.h"
#include "tieshard/core/doctor/value_budget.h"
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

/// Of the first `wanted` bytes of tensor `index` the pieces that are stored; elements that a hole's edge cuts are taken
/// whole. Pre: wanted is a multiple of the element
void cut(const File& file,
         const StoredTensor& tensor,
         std::uint64_t wanted,
         std::size_t index,
         std::uint64_t limit,
         std::vector<Piece>& out) {
  const auto element = static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
  const std::uint64_t tensor_end = tensor.offset + wanted;
  std::uint64_t done = 0;
  while (done < wanted) {
    const std::optional<FileExtent> stored = file.next_stored(tensor.offset + done);
    if (!stored || stored->begin >= tensor_end) {
      return;
    }
    std::uint64_t first = std::max(done, (stored->begin - tensor.offset) / element * element);
    const std::uint64_t last = std::min(stored->end, tensor_end) - tensor.offset;
    for (; first < last; first += limit) {
      out.push_back({.tensor = index, .first = first, .bytes = std::min(limit, wanted - first)});
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

/// A byte that is not 0, of a range that is compared with itself one byte on.
bool any_bit(const std::vector<std::byte>& bytes) {
  return !bytes.empty() &&
         (bytes[0] != std::byte{0} || std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) != 0);
}

/// What was found in each tensor: the smallest index of a value that is not finite, and whether a bit is set.
class Scan {
 public:
  /// @param wanted  of each tensor, its first bytes to look at
  Scan(const Checkpoint& checkpoint,
       const std::vector<CheckedTensor>& tensors,
       const std::vector<std::uint64_t>& wanted,
       std::uint64_t piece_bytes)
      : checkpoint_(checkpoint), tensors_(tensors), bad_(tensors.size()), any_bit_(tensors.size()) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      cut(file_of(*tensors[i].stored), *tensors[i].stored, wanted[i], i, piece_bytes, pieces_);
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
  /// Of what was looked at of `tensor`.
  bool only_zeros(std::size_t tensor) const {
    return !any_bit_[tensor];
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
    if (!any_bit_[piece.tensor] && any_bit(buffers.stored)) {
      any_bit_[piece.tensor] = true;
    }
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
  std::vector<std::atomic<bool>> any_bit_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;
  std::mutex mutex_;
};

/// Each tensor in order of its place; nothing of a tensor beyond its part of the budget.
std::vector<std::uint64_t> wanted_bytes(const std::vector<CheckedTensor>& tensors,
                                        const std::optional<std::uint64_t>& budget) {
  std::vector<BudgetedTensor> sizes;
  std::uint64_t all = 0;
  for (const CheckedTensor& tensor : tensors) {
    sizes.push_back({.bytes = tensor.stored->bytes,
                     .element = static_cast<std::uint64_t>(bits(tensor.stored->dtype)) / 8,
                     .first = tensor.first || tensor.stored->shape.size() <= 1});
    all += tensor.stored->bytes;
  }
  return bytes_to_read(sizes, budget.value_or(all));
}

/// Where a tensor lies, for people.
std::string place_of(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  return concat(checkpoint.file_name(tensor), ": ", tensor.stored_name);
}

/// A bias of zeros is as it was made; so is that of experts, `down_proj_bias`.
bool may_be_zero(const StoredTensor& tensor) {
  return tensor.name.ends_with("bias");
}

Diagnostic all_zero_finding(const Checkpoint& checkpoint, const std::vector<const StoredTensor*>& tensors) {
  std::vector<std::string> names;
  bool hole = true; // none of them was ever written
  for (const StoredTensor* tensor : tensors) {
    names.push_back(tensor->stored_name);
    const auto stored = checkpoint.files()[tensor->file].file().next_stored(tensor->offset);
    hole = hole && (!stored || stored->begin >= tensor->offset + tensor->bytes);
  }
  return {.level = Level::kWarning,
          .code = Code::kAllZero,
          .what = "a weight holds nothing but zeros",
          .where = place_of(checkpoint, *tensors.front()),
          .why = concat("expected values, got zeros in ",
                        format_names(names),
                        hole ? "; the file has a hole there: nothing was ever written" : ""),
          .fix = "complete the download or write the checkpoint again; where zeros are meant, there is nothing to do"};
}

} // namespace

ValueCheckCount check_values(const Checkpoint& checkpoint,
                             std::vector<CheckedTensor> tensors,
                             const ValueCheckOptions& options,
                             FindingList& findings) {
  std::erase_if(tensors, [](const CheckedTensor& tensor) {
    return tensor.stored->bytes == 0 || !is_loadable_float(tensor.read_as);
  });
  const auto place = [](const CheckedTensor& tensor) { return std::tie(tensor.stored->file, tensor.stored->offset); };
  std::ranges::sort(tensors, {}, place);
  const std::vector<std::uint64_t> wanted = wanted_bytes(tensors, options.budget);
  Scan scan(checkpoint, tensors, wanted, options.buffer_bytes);
  scan.run(options.threads);
  std::vector<NotFinite> found;
  std::vector<const StoredTensor*> zeros;
  ValueCheckCount count;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor& tensor = *tensors[i].stored;
    if (std::optional<NotFinite> bad = scan.bad()[i]) {
      bad->place = place_of(checkpoint, tensor);
      found.push_back(*std::move(bad));
    }
    if (wanted[i] == tensor.bytes && scan.only_zeros(i) && !may_be_zero(tensor)) {
      zeros.push_back(&tensor);
    }
    count.looked_at += wanted[i];
    count.not_read += tensor.bytes - wanted[i];
  }
  if (!found.empty()) {
    findings.add(not_finite_finding(found));
  }
  if (!zeros.empty()) {
    findings.add(all_zero_finding(checkpoint, zeros));
  }
  return count;
}

} // namespace tieshard
