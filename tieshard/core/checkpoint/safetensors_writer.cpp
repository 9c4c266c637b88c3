#include "tieshard/core/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/staged_file.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

constexpr std::size_t kHeaderAlignment = 8;

[[noreturn]] void fail(Code code, const char* what, const std::string& tensor, std::string why, const char* fix) {
  throw UsageError({.code = code, .what = what, .where = format_name(tensor), .why = std::move(why), .fix = fix});
}

std::uint64_t checked_size(const TensorSpec& tensor) {
  if (std::ranges::any_of(tensor.shape, [](std::int64_t size) { return size < 0; })) {
    fail(Code::kBadShape,
         "a shape holds something else than non-negative integers",
         tensor.name,
         concat("expected sizes of at least 0, got ", to_string(tensor.shape)),
         "pass the shape of a real tensor");
  }
  const std::optional<std::int64_t> count = checked_numel(tensor.shape);
  if (count && *count % 8 * bits(tensor.dtype) % 8 != 0) {
    fail(Code::kSizeMismatch,
         "packed elements of a tensor do not fill whole bytes",
         tensor.name,
         concat("expected a multiple of 8 bits, got ", name(tensor.dtype), " ", to_string(tensor.shape)),
         "pad the last dimension");
  }
  const std::optional<std::uint64_t> bytes = checked_bytes(tensor.shape, tensor.dtype);
  if (!bytes) {
    fail(Code::kSizeOverflow,
         "the size of a tensor does not fit in 63 bits",
         tensor.name,
         concat("expected fewer than 2^63 bytes, got ", name(tensor.dtype), " ", to_string(tensor.shape)),
         "pass the shape of a real tensor");
  }
  return *bytes;
}

void check_names(const std::vector<TensorSpec>& sorted_by_name) {
  for (std::size_t i = 0; i < sorted_by_name.size(); ++i) {
    const std::string& tensor = sorted_by_name[i].name;
    if (tensor == "__metadata__") {
      fail(Code::kBadEntry,
           "a tensor has the name that the format keeps for its metadata",
           tensor,
           "expected another name, got __metadata__",
           "rename the tensor");
    }
    if (i > 0 && tensor == sorted_by_name[i - 1].name) {
      fail(Code::kDuplicateTensorName,
           "a file was asked to hold a name twice",
           tensor,
           "expected each name once, got it twice",
           "leave the aliases of a tied weight out");
    }
  }
}

/// `value` as JSON text, for names that go into the header.
std::string quoted(const std::string& value) {
  try {
    return nlohmann::json(value).dump();
  } catch (const nlohmann::json::type_error&) {
    fail(Code::kJsonNotUtf8,
         "a name or a metadata string is not UTF-8",
         value,
         "expected UTF-8, got other bytes",
         "pass the text as UTF-8");
  }
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    text += concat(text.empty() ? "" : ",", part);
  }
  return text;
}

std::string header_text(const SafetensorsHeader& header) {
  std::vector<std::string> members;
  if (!header.metadata.empty()) {
    std::vector<std::string> strings;
    for (const auto& [key, value] : header.metadata) {
      strings.push_back(concat(quoted(key), ":", quoted(value)));
    }
    members.push_back(concat("\"__metadata__\":{", joined(strings), "}"));
  }
  for (const TensorEntry& entry : header.tensors) {
    std::vector<std::string> sizes;
    for (const std::int64_t size : entry.shape) {
      sizes.push_back(std::to_string(size));
    }
    members.push_back(concat(quoted(entry.name),
                             ":{\"dtype\":\"",
                             name(entry.dtype),
                             "\",\"shape\":[",
                             joined(sizes),
                             "],\"data_offsets\":[",
                             entry.begin,
                             ",",
                             entry.end,
                             "]}"));
  }
  std::string text = concat("{", joined(members), "}");
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  return text;
}

std::string length_bytes(std::uint64_t length) {
  std::string bytes(8, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(length & 0xFFU);
    length >>= 8;
  }
  return bytes;
}

} // namespace

std::uint64_t SafetensorsLayout::offset_of(const std::string& tensor) const {
  const auto found = offsets.find(tensor);
  if (found == offsets.end()) {
    throw InternalError(
        {.code = Code::kBug,
         .what = "a tensor is not in the file that it is written to",
         .where = format_name(tensor),
         .why = concat("expected one of the ", offsets.size(), " tensors of the layout, got another name"),
         .fix = "report this with the command that led to it"});
  }
  return found->second;
}

SafetensorsLayout layout_safetensors(std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  std::ranges::sort(tensors, {}, &TensorSpec::name);
  check_names(tensors);
  std::ranges::stable_sort(tensors, std::ranges::greater(), &TensorSpec::dtype);

  SafetensorsLayout layout;
  layout.header.metadata = metadata;
  std::uint64_t end = 0;
  for (TensorSpec& tensor : tensors) {
    const std::uint64_t begin = end;
    const std::uint64_t bytes = checked_size(tensor);
    // Half of what a file can hold leaves room for the header, whose size is not known yet.
    constexpr std::uint64_t kMaxDataBytes = std::numeric_limits<std::int64_t>::max() / 2;
    if (bytes > kMaxDataBytes - begin) {
      fail(Code::kSizeOverflow,
           "the tensors of a file do not fit in 63 bits",
           tensor.name,
           concat("expected at most ", kMaxDataBytes, " bytes in all, got ", begin, " + ", bytes),
           "pass the shapes of real tensors");
    }
    end = begin + bytes;
    layout.header.tensors.push_back({.name = std::move(tensor.name),
                                     .dtype = tensor.dtype,
                                     .shape = std::move(tensor.shape),
                                     .begin = begin,
                                     .end = end});
  }
  const std::string text = header_text(layout.header);
  layout.prefix = length_bytes(text.size()) + text;
  layout.header.data_start = layout.prefix.size();
  layout.file_bytes = layout.header.data_start + end;
  for (const TensorEntry& entry : layout.header.tensors) {
    layout.offsets.emplace(entry.name, layout.header.data_start + entry.begin);
  }
  return layout;
}

void write_safetensors(const std::filesystem::path& path,
                       const SafetensorsLayout& layout,
                       const std::function<std::span<const std::byte>(const TensorEntry&)>& data) {
  StagedFile staged = StagedFile::create(path, layout.file_bytes);
  staged.file().write_at(0, std::as_bytes(std::span(layout.prefix)));
  for (const TensorEntry& entry : layout.header.tensors) {
    const std::span<const std::byte> bytes = data(entry);
    if (bytes.size() != entry.end - entry.begin) {
      fail(Code::kSizeMismatch,
           "a tensor was given with the wrong number of bytes",
           entry.name,
           concat("expected ",
                  entry.end - entry.begin,
                  " bytes for ",
                  name(entry.dtype),
                  " ",
                  to_string(entry.shape),
                  ", got ",
                  bytes.size()),
           "pass the whole tensor, row-major, in the dtype of the layout");
    }
    staged.file().write_at(layout.header.data_start + entry.begin, bytes);
  }
  staged.publish();
}

} // namespace tieshard
