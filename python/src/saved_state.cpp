#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "tieshard/core/base/file.h"
#include "tieshard/core/state/box_reader.h"
#include "tieshard/core/state/find_checkpoint.h"
#include "tieshard/core/state/recorded_state.h"
#include "tieshard/core/state/trainer_state.h"

#include "python/src/bindings.h"

namespace tieshard::python {
namespace {

/// Name, address of memory for the part, offset and size of the part.
using ReadRow = std::tuple<std::string, std::uintptr_t, Shape, Shape>;

/// A complete training checkpoint, opened: headers only.
class SavedState {
 public:
  explicit SavedState(const std::filesystem::path& directory)
      : manifest_(open_manifest(directory, Verify::kSizes)), files_(ShardedFiles::open(directory)) {
    const std::filesystem::path trainer = directory / TrainerState::kFileName;
    trainer_ = parse_trainer_state(read_text_file(trainer), trainer.string());
    require_as_recorded(files_, manifest_);
  }

  SavedState(const SavedState&) = delete;
  SavedState& operator=(const SavedState&) = delete;

  std::string manifest() const {
    return to_json(manifest_);
  }

  std::string trainer() const {
    return to_json(trainer_);
  }

  /// As the format spells it. @throws UsageError unknown-parameter
  std::string dtype_of(const std::string& tensor) const {
    return std::string(name(stored(tensor).dtype));
  }

  void read(const std::vector<ReadRow>& rows) const {
    BoxReader reader(files_);
    for (const auto& [tensor, address, offset, size] : rows) {
      reader.read(stored(tensor),
                  {.offsets = offset, .shape = size},
                  reinterpret_cast<std::byte*>(address)); // NOLINT: torch hands its memory over so
    }
  }

 private:
  const ShardedTensor& stored(const std::string& tensor) const {
    if (const ShardedTensor* const found = files_.find(tensor)) {
      return *found;
    }
    throw UsageError({.code = Code::kUnknownParameter,
                      .what = "a name that no parameter has",
                      .where = tensor,
                      .why = concat("expected one of the tensors of ", files_.directory().string()),
                      .fix = "ask for a name that the manifest has"});
  }

  Manifest manifest_;
  TrainerState trainer_;
  ShardedFiles files_;
};

} // namespace

void bind_saved_state(nb::module_& module) {
  module.def(
      "find_checkpoint",
      [](const std::filesystem::path& path, bool verify) {
        FoundCheckpoint found;
        {
          const nb::gil_scoped_release release;
          found = find_checkpoint(path, verify ? Verify::kHashes : Verify::kSizes);
        }
        return std::make_tuple(found.directory, found.findings);
      },
      nb::arg("path"),
      nb::arg("verify") = false,
      "The training checkpoint to go on from, and warnings of newer ones that were passed over. verify: hashes too. "
      "Raises InputError no-checkpoint, checkpoint-incomplete, manifest-malformed.");
  nb::class_<SavedState>(module, "SavedState", "A training checkpoint, opened. Used by tieshard.resume.")
      .def(nb::init<const std::filesystem::path&>(),
           nb::arg("directory"),
           nb::call_guard<nb::gil_scoped_release>(),
           "Raises InputError checkpoint-incomplete, manifest-malformed, saves-mixed.")
      .def_prop_ro("manifest", &SavedState::manifest, "manifest.json.")
      .def_prop_ro("trainer", &SavedState::trainer, "trainer.json.")
      .def("dtype_of", &SavedState::dtype_of, nb::arg("tensor"), "The stored dtype, e.g. \"BF16\".")
      .def("read",
           &SavedState::read,
           nb::arg("parts"),
           nb::call_guard<nb::gil_scoped_release>(),
           "Reads parts (name, address, offset, size) in their stored dtype, whatever blocks hold them.");
}

} // namespace tieshard::python
