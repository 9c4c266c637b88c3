#include <span>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/checkpoint/companion_files.h"
#include "tieshard/core/checkpoint/safetensors_index.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/checkpoint/stored_weights.h"
#include "tieshard/core/io/overflow.h"

#include "python/src/bindings.h"
#include "python/src/export_file_writer.h"

namespace tieshard::python {
namespace {

/// Name, dtype and shape of a tensor that will be stored.
using StoredRow = std::tuple<std::string, std::string, Shape>;

Existing existing_of(bool replace) {
  return replace ? Existing::kReplace : Existing::kRefuse;
}

/// The weights files of an export, laid out before a byte is written. Equal on every rank.
class ExportLayout {
 public:
  ExportLayout(const std::vector<StoredRow>& rows, std::uint64_t max_shard_bytes) {
    std::vector<std::vector<TensorSpec>> parts(1);
    std::uint64_t filled = 0;
    for (const auto& [name, dtype, shape] : rows) {
      TensorSpec tensor{.name = name, .dtype = dtype_from(dtype), .shape = shape};
      const std::uint64_t bytes = checked_bytes(tensor.shape, tensor.dtype).value();
      if (filled > 0 && filled + bytes > max_shard_bytes) {
        parts.emplace_back();
        filled = 0;
      }
      parts.back().push_back(std::move(tensor));
      filled += bytes;
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      names_.push_back(weights_file_name(i, parts.size()));
      layouts_.push_back(layout_safetensors(std::move(parts[i]), {{"format", "pt"}}));
    }
  }

  const std::vector<std::string>& files() const {
    return names_;
  }

  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const SafetensorsLayout& layout : layouts_) {
      sum += layout.file_bytes;
    }
    return sum;
  }

  /// By tensor: index of its file, first byte there.
  std::map<std::string, std::pair<std::size_t, std::uint64_t>> places() const {
    std::map<std::string, std::pair<std::size_t, std::uint64_t>> places;
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      for (const auto& [tensor, offset] : layouts_[i].offsets) {
        places.emplace(tensor, std::pair(i, offset));
      }
    }
    return places;
  }

  std::filesystem::path stage(const std::filesystem::path& directory,
                              bool replace,
                              const std::map<std::string, std::string>& texts,
                              const std::filesystem::path& source) const {
    require_new_name(directory);
    const std::filesystem::path staging = stage_directory(directory, existing_of(replace));
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      const File created = File::create(staging / names_[i], layouts_[i].file_bytes);
      created.write_at(0, std::as_bytes(std::span(layouts_[i].prefix)));
    }
    if (!source.empty()) {
      copy_companion_files(source, staging);
    }
    for (const auto& [name, text] : texts) {
      write_text_file(staging / name, text);
    }
    if (layouts_.size() > 1) {
      write_text_file(staging / kWeightsIndex, index());
    }
    return staging;
  }

  /// What a loader finds in the staging directory is this layout. @throws PeerError export-mismatch
  void publish(const std::filesystem::path& directory, bool replace) const {
    const std::filesystem::path staging = staging_of(directory);
    const StoredWeights stored = open_stored_weights(staging, {});
    std::size_t tensors = 0;
    for (const SafetensorsLayout& layout : layouts_) {
      tensors += layout.header.tensors.size();
    }
    if (stored.tensors.size() != tensors) {
      throw PeerError({.code = Code::kExportMismatch,
                       .what = "an export does not read back as written",
                       .where = staging.string(),
                       .why = concat("expected ", tensors, " tensors, got ", stored.tensors.size()),
                       .fix = "check the disk; nothing was published"});
    }
    replace ? replace_directory(directory) : publish_directory(directory);
  }

 private:
  std::string index() const {
    std::map<std::string, std::string> weight_map;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      for (const TensorEntry& tensor : layouts_[i].header.tensors) {
        weight_map[tensor.name] = names_[i];
        total += tensor.end - tensor.begin;
      }
    }
    return safetensors_index_text(weight_map, total);
  }

  std::vector<std::string> names_;
  std::vector<SafetensorsLayout> layouts_;
};

void bind_layout(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<ExportLayout>(module, "ExportLayout", "The files of an export. Used by tieshard.export_hf.")
      .def(nb::init<const std::vector<StoredRow>&, std::uint64_t>(),
           nb::arg("tensors"),
           nb::arg("max_shard_bytes"),
           "Of tensors (name, dtype, shape), in the order in which they fill the files.")
      .def_prop_ro("files", &ExportLayout::files, "Their names.")
      .def_prop_ro("nbytes", &ExportLayout::bytes, "Bytes of all files.")
      .def("places",
           &ExportLayout::places,
           nb::sig("def places(self) -> dict[str, tuple[int, int]]"),
           "By tensor: index of its file, and its first byte there.")
      .def("stage",
           &ExportLayout::stage,
           nb::arg("directory"),
           nb::kw_only(),
           nb::arg("replace"),
           nb::arg("texts"),
           nb::arg("source"),
           Release(),
           "Makes the staging directory: each file at its full size, small files. Raises InputError output-exists.")
      .def("publish",
           &ExportLayout::publish,
           nb::arg("directory"),
           nb::kw_only(),
           nb::arg("replace"),
           Release(),
           "Opens the staged files as a loader does, and gives the directory its name.");
}

} // namespace

void bind_exporting(nb::module_& module) {
  bind_layout(module);
  nb::class_<ExportFileWriter>(module, "ExportFileWriter", "One rank's part in a file. Used by tieshard.export_hf.")
      .def(nb::init<const std::filesystem::path&>(), nb::arg("path"))
      .def(
          "write",
          [](ExportFileWriter& self,
             const std::string& name,
             std::uint64_t offset,
             const std::string& dtype,
             const std::pair<Shape, Shape>& stored,
             std::uintptr_t address,
             const std::string& held_dtype,
             const std::pair<Shape, Shape>& held) {
            self.write({.name = name,
                        .box = {.offsets = stored.first, .shape = stored.second},
                        .offset = offset,
                        .dtype = dtype_from(dtype)},
                       reinterpret_cast<const std::byte*>(address), // NOLINT: torch hands its memory over so
                       dtype_from(held_dtype),
                       {.offsets = held.first, .shape = held.second});
          },
          nb::arg("name"),
          nb::arg("offset"),
          nb::arg("dtype"),
          nb::arg("stored"),
          nb::arg("address"),
          nb::arg("held_dtype"),
          nb::arg("held"),
          nb::call_guard<nb::gil_scoped_release>(),
          nb::sig("def write(self, name: str, offset: int, dtype: str, stored: tuple[list[int], list[int]], address: "
                  "int, held_dtype: str, held: tuple[list[int], list[int]]) -> None"),
          "Writes what a part of a parameter (offset and size, row-major at an address) has of a stored tensor "
          "(another "
          "part of it, from a byte of the file on).")
      .def("finish",
           &ExportFileWriter::finish,
           nb::call_guard<nb::gil_scoped_release>(),
           "Reads back and syncs what was written. By tensor, the number of values that became infinite.");
  module.def(
      "overflow_finding",
      [](const std::map<std::string, std::int64_t>& overflowed, const std::string& where) {
        return overflow_finding(Level::kWarning, overflowed, where);
      },
      nb::arg("overflowed"),
      nb::arg("where"),
      "The warning not-finite of an export.");
}

} // namespace tieshard::python
