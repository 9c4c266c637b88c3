#include "tieshard/core/doctor/checkpoint_diff.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

namespace tieshard {
namespace {

/// The tensor that gives `name` its bytes; null when the model has none.
const StoredTensor* stored_for(const ResolvedModel& model, const std::string& name) {
  const StoredTensor* own = model.checkpoint.find(name);
  return own != nullptr ? own : model.ties.source(model.checkpoint, model.ties.canonical(name));
}

/// Both sides of one name.
struct Pair {
  std::string name;
  const StoredTensor* first = nullptr;
  const StoredTensor* second = nullptr;
};

std::string text_of(const StoredTensor* tensor) {
  return tensor == nullptr ? "absent" : concat(name(tensor->dtype), " ", to_string(tensor->shape));
}

/// Elements of a tensor that a thread compares in one go.
struct Piece {
  std::size_t pair = 0;
  std::uint64_t begin = 0; ///< element
  std::uint64_t count = 0;
};

/// Bytes of `count` elements; packed dtypes are counted in bytes.
std::uint64_t bytes_of(const StoredTensor& tensor, std::uint64_t count) {
  const auto width = static_cast<std::uint64_t>(bits(tensor.dtype));
  return width < 8 ? count : count * width / 8;
}

std::uint64_t elements_of(const StoredTensor& tensor) {
  return bits(tensor.dtype) < 8 ? tensor.bytes : static_cast<std::uint64_t>(numel(tensor.shape));
}

/// Whether bytes of zeros are the same value in both; in F8_E8M0 they are no zero.
bool zeros_are_equal(DType first, DType second) {
  return first == second || (first != DType::kF8E8M0 && second != DType::kF8E8M0);
}

/// Whether only holes of sparse files lie there, which read as zeros.
bool is_hole(const File& file, std::uint64_t offset, std::uint64_t bytes) {
  const std::optional<FileExtent> stored = file.next_stored(offset);
  return !stored || stored->begin >= offset + bytes;
}

bool is_same_place(const File& first, std::uint64_t first_offset, const File& second, std::uint64_t second_offset) {
  return first.identity().inode != 0 && first.identity() == second.identity() && first_offset == second_offset;
}

class Comparison {
 public:
  Comparison(const ResolvedModel& first, const ResolvedModel& second, const std::vector<Pair>& pairs)
      : first_(first), second_(second), pairs_(pairs), found_(pairs.size()) {}

  void run(const std::vector<std::size_t>& compared, const DiffOptions& options) {
    for (const std::size_t index : compared) {
      const Pair& pair = pairs_[index];
      const std::uint64_t width = std::max(bytes_of(*pair.first, 1), bytes_of(*pair.second, 1));
      const std::uint64_t limit = std::max<std::uint64_t>(1, options.buffer_bytes / 2 / width);
      const std::uint64_t all = elements_of(*pair.first);
      for (std::uint64_t begin = 0; begin < all; begin += limit) {
        pieces_.push_back({.pair = index, .begin = begin, .count = std::min(limit, all - begin)});
      }
    }
    std::vector<std::thread> others;
    for (int i = 1; i < options.threads && static_cast<std::size_t>(i) < pieces_.size(); ++i) {
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

  const std::optional<TensorDifference>& found(std::size_t pair) const {
    return found_[pair];
  }

 private:
  void work() {
    try {
      std::vector<std::byte> first;
      std::vector<std::byte> second;
      for (std::size_t i = next_++; i < pieces_.size() && !failed_; i = next_++) {
        const Piece& piece = pieces_[i];
        const Pair& pair = pairs_[piece.pair];
        if (is_known_equal(pair, piece)) {
          continue;
        }
        read(first_, *pair.first, piece, first);
        read(second_, *pair.second, piece, second);
        if (const auto difference = compare_elements(first, pair.first->dtype, second, pair.second->dtype)) {
          const std::lock_guard lock(mutex_);
          std::optional<TensorDifference>& sum = found_[piece.pair];
          sum = sum ? sum : TensorDifference();
          add(*sum, *difference, piece.begin);
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = failure_ ? failure_ : std::current_exception();
      failed_ = true;
    }
  }

  static const File& file_of(const ResolvedModel& model, const StoredTensor& tensor) {
    return model.checkpoint.files()[tensor.file].file();
  }

  /// One place of one file, or a hole against a hole: nothing of it has to be read.
  bool is_known_equal(const Pair& pair, const Piece& piece) const {
    const File& one = file_of(first_, *pair.first);
    const File& other = file_of(second_, *pair.second);
    const std::uint64_t begin = pair.first->offset + bytes_of(*pair.first, piece.begin);
    const std::uint64_t other_begin = pair.second->offset + bytes_of(*pair.second, piece.begin);
    if (pair.first->dtype == pair.second->dtype && is_same_place(one, begin, other, other_begin)) {
      return true;
    }
    return zeros_are_equal(pair.first->dtype, pair.second->dtype) &&
           is_hole(one, begin, bytes_of(*pair.first, piece.count)) &&
           is_hole(other, other_begin, bytes_of(*pair.second, piece.count));
  }

  static void read(const ResolvedModel& model,
                   const StoredTensor& tensor,
                   const Piece& piece,
                   std::vector<std::byte>& out) {
    out.resize(bytes_of(tensor, piece.count));
    file_of(model, tensor).read_at(tensor.offset + bytes_of(tensor, piece.begin), out);
  }

  const ResolvedModel& first_;
  const ResolvedModel& second_;
  const std::vector<Pair>& pairs_;
  std::vector<Piece> pieces_;
  std::vector<std::optional<TensorDifference>> found_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;
  std::mutex mutex_;
};

/// Every name that either side stores.
std::vector<Pair> pairs_of(const ResolvedModel& first, const ResolvedModel& second) {
  std::set<std::string> names;
  for (const ResolvedModel* model : {&first, &second}) {
    for (const StoredTensor& tensor : model->checkpoint.tensors()) {
      names.insert(tensor.name);
    }
  }
  std::vector<Pair> pairs;
  for (const std::string& name : names) {
    pairs.push_back({.name = name, .first = stored_for(first, name), .second = stored_for(second, name)});
  }
  return pairs;
}

/// Keys that say who wrote a file, how and when, and not what the model is.
bool is_about_the_file(const std::string& key) {
  static const std::set<std::string> kKeys{
      "_name_or_path", "_commit_hash", "transformers_version", "torch_dtype", "dtype", "use_cache"};
  return kKeys.contains(key);
}

/// Keys that both configs have with different values: one that stands in one of them alone may be the default that the
/// other one means. Nothing where one side has no config: it is a weights file by itself.
std::vector<std::string> config_keys(const HfConfig& first, const HfConfig& second) {
  if (!first.json().is_object() || !second.json().is_object() || first.json().empty() || second.json().empty()) {
    return {};
  }
  std::set<std::string> keys;
  for (const auto* config : {&first.json(), &second.json()}) {
    for (const auto& [key, value] : config->items()) {
      if (!is_about_the_file(key)) {
        keys.insert(key);
      }
    }
  }
  std::vector<std::string> different;
  for (const std::string& key : keys) {
    if (first.json().contains(key) && second.json().contains(key) && first.json()[key] != second.json()[key]) {
      different.push_back(key);
    }
  }
  return different;
}

} // namespace

CheckpointDiff compare_checkpoints(const ResolvedModel& first,
                                   const ResolvedModel& second,
                                   const DiffOptions& options) {
  const std::vector<Pair> pairs = pairs_of(first, second);
  CheckpointDiff diff{.tensors = pairs.size(), .values = options.values};
  diff.config = config_keys(first.checkpoint.config(), second.checkpoint.config());
  std::vector<std::size_t> compared;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Pair& pair = pairs[i];
    const bool both = pair.first != nullptr && pair.second != nullptr;
    if (both && (first.checkpoint.find(pair.name) == nullptr || second.checkpoint.find(pair.name) == nullptr)) {
      diff.tied.push_back(pair.name);
    }
    if (both && options.values && pair.first->shape == pair.second->shape &&
        comparable(pair.first->dtype, pair.second->dtype)) {
      compared.push_back(i);
      diff.bytes += pair.first->bytes;
    }
  }
  Comparison comparison(first, second, pairs);
  comparison.run(compared, options);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Pair& pair = pairs[i];
    const std::string one = text_of(pair.first);
    const std::string other = text_of(pair.second);
    const std::optional<TensorDifference>& elements = comparison.found(i);
    if (one == other && !elements) {
      ++diff.equal;
      continue;
    }
    const bool looked_at = std::ranges::binary_search(compared, i);
    diff.differences.push_back({.name = pair.name,
                                .first = one,
                                .second = other,
                                .same_values = looked_at && !elements,
                                .compared = looked_at,
                                .elements = elements});
  }
  return diff;
}

} // namespace tieshard
