#include "tieshard/core/checkpoint/safetensors_file.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/foreign_format.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kLengthBytes = 8;

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

std::uint64_t big_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

std::string read_text(const File& file, std::uint64_t offset, std::uint64_t bytes) {
  std::string text(bytes, '\0');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

[[noreturn]] void fail(Code code, const char* what, const File& file, std::string why, std::string fix) {
  throw InputError(
      {.code = code, .what = what, .where = file.path().string(), .why = std::move(why), .fix = std::move(fix)});
}

/// The length of the header, when the file can be safetensors and the header fits in it.
std::uint64_t checked_header_length(const File& file, std::uint64_t size, const SafetensorsLimits& limits) {
  if (size == 0) {
    fail(Code::kFileEmpty,
         "a weights file has no bytes",
         file,
         "expected a safetensors file, got 0 bytes",
         "download or copy the file again");
  }
  const std::string first = read_text(file, 0, std::min<std::uint64_t>(size, kForeignFormatBytes));
  const bool has_length = size >= kLengthBytes;
  const std::uint64_t length = has_length ? little_endian(first) : 0;
  const std::uint64_t rest = has_length ? size - kLengthBytes : 0;
  const bool brace = rest > 0 && first[kLengthBytes] == '{';
  if (!brace || length > rest) {
    if (brace && big_endian(first) <= rest) {
      fail(Code::kBigEndian,
           "the header length is written big-endian",
           file,
           concat("expected the length as 8 little-endian bytes, got ",
                  length,
                  ", which is ",
                  big_endian(first),
                  " when read as big-endian"),
           "write the file again with a safetensors library");
    }
    if (const std::optional<ForeignFormat> format = brace ? std::nullopt : recognise_foreign_format(first)) {
      fail(Code::kNotSafetensors,
           "a weights file is of another format",
           file,
           concat("expected a safetensors file, got ", format->name),
           std::string(format->fix));
    }
    if (!has_length) {
      fail(Code::kTruncated,
           "a file ends before its tensors do",
           file,
           concat("expected 8 bytes of header length and a header, got ", size, " bytes in all"),
           "download or copy the file again; this copy is incomplete");
    }
    if (length > rest && rest > 0 && !brace) {
      fail(Code::kNotSafetensors,
           "a weights file is of another format",
           file,
           concat("expected a header length and '{' at byte 8, got a length of ",
                  length,
                  " in a file of ",
                  size,
                  " bytes, and byte ",
                  static_cast<unsigned>(static_cast<unsigned char>(first[kLengthBytes]))),
           "check where the file comes from; convert it to safetensors or download it again");
    }
  }
  if (length > rest) {
    fail(Code::kHeaderLongerThanFile,
         "safetensors header longer than its file",
         file,
         concat("expected a header of at most ",
                rest,
                " bytes in a file of ",
                size,
                " bytes, got a header length of ",
                length),
         "download or copy the file again; this copy is incomplete");
  }
  if (length > limits.max_header_bytes) {
    fail(Code::kHeaderTooLarge,
         "safetensors header longer than the limit",
         file,
         concat("expected at most ", limits.max_header_bytes, " bytes, got ", length),
         "raise the limit if you trust the file; it guards against files that ask for all memory");
  }
  return length;
}

} // namespace

SafetensorsFile::SafetensorsFile(File file, SafetensorsHeader header, std::uint64_t size)
    : file_(std::move(file)), header_(std::move(header)), size_(size), by_name_(header_.tensors.size()) {
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  std::ranges::sort(by_name_, {}, [this](std::size_t i) -> std::string_view { return header_.tensors[i].name; });
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path, const SafetensorsLimits& limits) {
  File file = File::open_for_reading(path);
  const std::uint64_t size = file.size();
  const std::uint64_t length = checked_header_length(file, size, limits);
  SafetensorsHeader header =
      parse_safetensors_header(read_text(file, kLengthBytes, length), size - kLengthBytes - length, path.string());
  return {std::move(file), std::move(header), size};
}

const TensorEntry* SafetensorsFile::find(std::string_view tensor) const {
  const auto name_of = [this](std::size_t i) -> std::string_view { return header_.tensors[i].name; };
  const auto found = std::ranges::lower_bound(by_name_, tensor, {}, name_of);
  return found == by_name_.end() || name_of(*found) != tensor ? nullptr : &header_.tensors[*found];
}

} // namespace tieshard
