#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "tieshard/core/io/mapped_guard.h"

#include "python/src/bindings.h"
#include "python/src/memory_block.h"
#include "python/src/save_directory.h"

namespace tieshard::python {
namespace {

/// A file of a checkpoint, as its manifest lists it.
nb::dict as_dict(const FileRecord& record) {
  nb::dict file;
  file["name"] = record.name;
  file["bytes"] = record.bytes;
  file["xxh128"] = record.xxh128;
  return file;
}

void bind_save_directory(nb::module_& module) {
  nb::class_<SaveDirectory>(module, "SaveDirectory", "Rank 0's part in a save. Used by tieshard.save.")
      .def(nb::init<const std::filesystem::path&, std::int64_t>(),
           nb::arg("directory"),
           nb::arg("step"),
           "Locks the directory of checkpoints until release(). Raises InputError directory-in-use.")
      .def("stage",
           &SaveDirectory::stage,
           nb::arg("bytes"),
           nb::call_guard<nb::gil_scoped_release>(),
           "An empty directory to write into. Raises PeerError disk-full.")
      .def(
          "publish",
          [](const SaveDirectory& self,
             const std::string& manifest,
             const std::string& trainer,
             const std::map<std::string, std::string>& texts,
             const std::filesystem::path& source,
             std::int64_t keep) { return self.publish({manifest, trainer, texts, source}, keep); },
          nb::arg("manifest"),
          nb::arg("trainer"),
          nb::kw_only(),
          nb::arg("texts"),
          nb::arg("source"),
          nb::arg("keep"),
          nb::call_guard<nb::gil_scoped_release>(),
          "Writes what stands beside the shard files, renames the directory to its name, and removes old ones. What "
          "was set aside is returned.")
      .def("discard",
           &SaveDirectory::discard,
           nb::call_guard<nb::gil_scoped_release>(),
           "Removes what is staged. Never raises.")
      .def("release", &SaveDirectory::release, "Gives the lock back.");
}

} // namespace

std::vector<BlockInMemory> blocks_from(const std::vector<MemoryRow>& rows) {
  std::vector<BlockInMemory> blocks;
  blocks.reserve(rows.size());
  for (const auto& [name, address, dtype, whole, offset, size] : rows) {
    blocks.push_back(
        {.block = {.name = name, .dtype = dtype_from(dtype), .whole = whole, .box = {.offsets = offset, .shape = size}},
         .data = reinterpret_cast<const std::byte*>(address)}); // NOLINT: torch hands its memory over so
  }
  return blocks;
}

void bind_saving(nb::module_& module) {
  bind_save_directory(module);
  module.def(
      "shard_file_bytes",
      [](const std::vector<MemoryRow>& blocks, const std::string& id) {
        return shard_file_bytes(blocks_from(blocks), id);
      },
      nb::arg("blocks"),
      nb::arg("id"),
      "Bytes that the file of these blocks (name, address, dtype, whole shape, offset, size) will take.");
  module.def(
      "write_shard_file",
      [](const std::filesystem::path& directory,
         std::int64_t rank,
         int part,
         int parts,
         const std::vector<MemoryRow>& rows,
         const std::string& id) {
        const std::vector<BlockInMemory> blocks = blocks_from(rows);
        FileRecord record;
        {
          const nb::gil_scoped_release release;
          record = write_shard_file(directory, shard_file_name(rank, part, parts), blocks, id);
          require_mappings_intact(); // zeros in place of weights would be saved as such
        }
        return as_dict(record);
      },
      nb::arg("directory"),
      nb::arg("rank"),
      nb::arg("part"),
      nb::arg("parts"),
      nb::arg("blocks"),
      nb::arg("id"),
      nb::sig("def write_shard_file(directory: str | os.PathLike, rank: int, part: int, parts: int, blocks: "
              "Sequence[tuple[str, int, str, Sequence[int], Sequence[int], Sequence[int]]], id: str) -> dict[str, "
              "object]"),
      "Writes and syncs one file of a rank, and gives its record for the manifest.");
}

} // namespace tieshard::python
