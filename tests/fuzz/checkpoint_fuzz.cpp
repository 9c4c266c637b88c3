// tests/fuzz/checkpoint_fuzz.cpp
//
// Checkpoint::open on a directory of arbitrary files: what it accepts can be read, each tensor inside its file.
// Input: the contents of the files of kNames, separated by the byte 0x1E; a file whose content is empty is left out.

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <unistd.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/checkpoint.h"

namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 4> kNames = {"model.safetensors.index.json",
                                               "model-00001-of-00002.safetensors",
                                               "model-00002-of-00002.safetensors",
                                               "model.safetensors"};

/// Made once a process and removed at its end.
class Directory {
 public:
  Directory() : path_(fs::temp_directory_path() / ("tieshard-fuzz-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
    std::ofstream(path_ / "config.json") << "{}";
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() {
    fs::remove_all(path_);
  }
  const fs::path& path() const {
    return path_;
  }

 private:
  fs::path path_;
};

void write_files(const fs::path& directory, std::string_view input) {
  for (const char* name : kNames) {
    const std::size_t end = std::min(input.find('\x1e'), input.size());
    if (end == 0) {
      fs::remove(directory / name);
    } else {
      std::ofstream(directory / name, std::ios::binary) << input.substr(0, end);
    }
    input.remove_prefix(std::min(end + 1, input.size()));
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Directory directory;
  write_files(directory.path(), {reinterpret_cast<const char*>(data), size});
  try {
    const tieshard::Checkpoint checkpoint = tieshard::Checkpoint::open(directory.path());
    for (const tieshard::StoredTensor& tensor : checkpoint.tensors()) {
      const tieshard::SafetensorsFile& file = checkpoint.files().at(tensor.file);
      if (tensor.offset + tensor.bytes > file.size() || checkpoint.find(tensor.name) != &tensor) {
        std::abort();
      }
    }
  } catch (const tieshard::InputError&) { // a refusal
  }
  return 0;
}
