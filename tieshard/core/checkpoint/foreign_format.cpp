#include "tieshard/core/checkpoint/foreign_format.h"

#include <algorithm>
#include <cstddef>

namespace tieshard {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kConvert = "convert it to safetensors, for example with save_pretrained of transformers";
constexpr std::string_view kUnpack = "unpack it, and name the directory with the safetensors files in it";
constexpr std::string_view kDownload = "download the file again, logged in where the model asks for it";

struct Magic {
  std::size_t offset;
  std::string_view bytes;
  ForeignFormat format;
};

constexpr Magic kMagics[] = {
    {0, "PK\x03\x04"sv, {"a zip archive (a PyTorch checkpoint, or .npz)", kConvert}},
    {0, "\x80\x02"sv, {"a Python pickle (an old PyTorch checkpoint)", kConvert}},
    {0, "\x80\x03"sv, {"a Python pickle", kConvert}},
    {0, "\x80\x04"sv, {"a Python pickle", kConvert}},
    {0, "\x80\x05"sv, {"a Python pickle", kConvert}},
    {0, "version https://git-lfs"sv, {"a Git LFS pointer instead of the file", "run git lfs install and git lfs pull"}},
    {0, "GGUF"sv, {"a GGUF file", kConvert}},
    {0, "\x89HDF\r\n\x1a\n"sv, {"an HDF5 file", kConvert}},
    {0, "\x93NUMPY"sv, {"a NumPy array file", kConvert}},
    {0, "\x1f\x8b"sv, {"a gzip file", kUnpack}},
    {0, "\x28\xb5\x2f\xfd"sv, {"a Zstandard file", kUnpack}},
    {0,
     "\xfd"
     "7zXZ"sv,
     {"an xz file", kUnpack}},
    {0, "BZh"sv, {"a bzip2 file", kUnpack}},
    {257, "ustar"sv, {"a tar archive", kUnpack}},
    {0, "{"sv, {"JSON text", "check that the file is not an index or an error message under a weights file's name"}},
};

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool looks_like_html(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{"<!doctype", "<html", "<head", "<?xml"},
      [text](std::string_view tag) { return std::ranges::equal(text.substr(0, tag.size()), tag, {}, lower); });
}

} // namespace

std::optional<ForeignFormat> recognise_foreign_format(std::string_view first_bytes) {
  for (const Magic& magic : kMagics) {
    if (first_bytes.size() > magic.offset && first_bytes.substr(magic.offset).starts_with(magic.bytes)) {
      return magic.format;
    }
  }
  if (looks_like_html(first_bytes)) {
    return ForeignFormat{"an HTML page (a login or error page)", kDownload};
  }
  return std::nullopt;
}

} // namespace tieshard
