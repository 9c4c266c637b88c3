#include "python/src/part_reader.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "tieshard/core/io/init_slice.h"
#include "tieshard/core/io/mapped_range.h"
#include "tieshard/core/io/reader.h"
#include "tieshard/core/io/shard_memory.h"

namespace tieshard::python {
namespace {

std::uint64_t item_bytes(DType dtype) {
  return static_cast<std::uint64_t>(bits(dtype)) / 8;
}

/// The element at `place` of a box's memory, as an index into the whole parameter.
Shape whole_index(const Box& box, std::int64_t place) {
  Shape index(box.size.size());
  for (std::size_t dim = box.size.size(); dim-- > 0;) {
    index[dim] = box.offset[dim] + place % box.size[dim];
    place /= box.size[dim];
  }
  return index;
}

class PartReader {
 public:
  PartReader(const ModelSource& source, const std::vector<Part>& parts, const PartReadOptions& options)
      : source_(source), parts_(parts), options_(options) {
    report_.memory.resize(parts.size());
  }

  PartReadReport run() {
    std::vector<std::size_t> wider;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const BoxReads reads = box_reads(source_, parts_[i].parameter, parts_[i].box);
      if (parts_[i].box.numel() > 0 && reads.filled.size != parts_[i].box.size) {
        wider.push_back(i);
      } else {
        give_memory(i, reads);
        take_part(i, reads);
      }
    }
    require_unchanged();
    read_wanted();
    for (const std::size_t i : wider) {
      read_wider(i);
    }
    require_unchanged();
    return std::move(report_);
  }

 private:
  struct Wanted {
    std::size_t part;
    std::int64_t place;
    SliceRead read;
    ReadTarget target;
  };

  void give_memory(std::size_t i, const BoxReads& reads) {
    const Part& part = parts_[i];
    const std::uint64_t bytes = static_cast<std::uint64_t>(part.box.numel()) * item_bytes(part.dtype);
    if (part.target != nullptr || bytes == 0) {
      return;
    }
    PartMemory& memory = report_.memory[i];
    if (options_.map && bytes >= options_.smallest_mapped && reads.reads.size() == 1) {
      const SliceRead& read = reads.reads.front().read;
      const std::uint64_t first = read.offset + read.range.first;
      const bool straight = read.encoding == Encoding::kPlain && read.range.contiguous() &&
                            read.stored_dtype == part.dtype && first % item_bytes(part.dtype) == 0;
      std::shared_ptr<MappedRange> mapping =
          straight ? MappedRange::map(source_.checkpoint().files()[read.file].file(), first, bytes) : nullptr;
      if (mapping != nullptr) {
        memory = {.data = mapping->data(), .memory = mapping, .mapped = true};
        mappings_.resize(parts_.size());
        mappings_[i] = std::move(mapping);
        report_.bytes_mapped += bytes;
        return;
      }
    }
    memory.memory = allocator_.take(bytes);
    memory.data = static_cast<std::byte*>(memory.memory.get());
  }

  std::byte* target_of(std::size_t i) const {
    return parts_[i].target != nullptr ? parts_[i].target : report_.memory[i].data;
  }

  InitSlice init_of(const Part& part, const BoxReads& reads) const {
    const ShardedParameter& parameter = source_.plan().parameters()[part.parameter];
    InitSlice init{.fqn = parameter.fqn,
                   .rule = source_.sources().of_parameter[part.parameter].init,
                   .shape = parameter.shape,
                   .dim = reads.dim};
    if (reads.dim >= 0) {
      const auto dim = static_cast<std::size_t>(reads.dim);
      init.chunk = {.offset = reads.filled.offset[dim], .size = reads.filled.size[dim]};
    }
    return init;
  }

  bool is_stored(const Part& part) const {
    return source_.sources().of_parameter[part.parameter].values != nullptr;
  }

  void take_part(std::size_t i, const BoxReads& reads) {
    const Part& part = parts_[i];
    if (part.box.numel() == 0) {
      return;
    }
    if (!is_stored(part)) {
      fill_slice(init_of(part, reads), target_of(i), part.dtype);
      return;
    }
    for (const BoxRead& each : reads.reads) {
      files_.insert(each.read.file);
      ReadTarget target{.data = target_of(i) + static_cast<std::uint64_t>(each.place) * item_bytes(part.dtype),
                        .dtype = part.dtype};
      if (report_.memory[i].mapped) {
        target.mapping = mappings_[i].get();
      }
      wanted_.push_back({.part = i, .place = each.place, .read = each.read, .target = target});
    }
  }

  void read_wanted() {
    std::ranges::sort(wanted_, [](const Wanted& a, const Wanted& b) {
      return std::tie(a.read.file, a.read.offset, a.read.range.first) <
             std::tie(b.read.file, b.read.offset, b.read.range.first);
    });
    std::vector<SliceRead> reads;
    std::vector<ReadTarget> targets;
    for (const Wanted& each : wanted_) {
      reads.push_back(each.read);
      targets.push_back(each.target);
    }
    const ReadReport report = read_slices(source_.checkpoint(), reads, targets, reader_options());
    report_.bytes_read += report.bytes_asked;
    for (const NotFinite& found : report.not_finite) {
      note_not_finite(found);
    }
  }

  void note_not_finite(NotFinite found) {
    const auto wanted = std::ranges::find_if(wanted_, [&](const Wanted& each) { return each.read.fqn == found.fqn; });
    if (wanted->read.encoding == Encoding::kPlain) { // its slices are rows, and the index is one of these
      const std::int64_t row = wanted->read.local_shape[1];
      found.index = whole_index(parts_[wanted->part].box, wanted->place + found.index[0] * row + found.index[1]);
    }
    report_.not_finite.push_back(std::move(found));
  }

  void read_wider(std::size_t i) {
    const Part& part = parts_[i];
    const BoxReads reads = box_reads(source_, part.parameter, part.box);
    std::vector<std::byte> wide(static_cast<std::size_t>(reads.filled.numel()) * item_bytes(part.dtype));
    if (is_stored(part)) {
      const ReadTarget target{.data = wide.data(), .dtype = part.dtype};
      const ReadReport report = read_slices(
          source_.checkpoint(), std::span(&reads.reads.front().read, 1), std::span(&target, 1), reader_options());
      report_.bytes_read += report.bytes_asked;
      std::ranges::copy(report.not_finite, std::back_inserter(report_.not_finite));
    } else {
      fill_slice(init_of(part, reads), wide.data(), part.dtype);
    }
    give_memory(i, BoxReads{});
    copy_box(wide.data(), reads.filled, target_of(i), part.box, item_bytes(part.dtype));
  }

  ReaderOptions reader_options() const {
    ReaderOptions reader{
        .threads = options_.threads, .buffer_bytes = options_.buffer_bytes, .check_values = options_.check_values};
    if (options_.on_chunk) {
      reader.on_progress = [this](std::uint64_t) { options_.on_chunk(); };
    }
    return reader;
  }

  void require_unchanged() const {
    for (const std::size_t file : files_) {
      source_.checkpoint().files()[file].file().require_unchanged();
    }
  }

  const ModelSource& source_;
  const std::vector<Part>& parts_;
  const PartReadOptions& options_;
  ShardMemory allocator_;
  PartReadReport report_;
  std::vector<std::shared_ptr<MappedRange>> mappings_;
  std::vector<Wanted> wanted_;
  std::set<std::size_t> files_;
};

} // namespace

PartReadReport read_parts(const ModelSource& source, const std::vector<Part>& parts, const PartReadOptions& options) {
  return PartReader(source, parts, options).run();
}

} // namespace tieshard::python
