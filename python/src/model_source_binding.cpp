#include <chrono>
#include <thread>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "python/src/bindings.h"
#include "python/src/part_reader.h"

namespace tieshard::python {
namespace {

/// Name, address of the memory (0: make some), dtype, offset and size of the box.
using PartRow = std::tuple<std::string, std::uintptr_t, std::string, Shape, Shape>;

void construct(ModelSource* self,
               const std::filesystem::path& directory,
               const std::vector<TableRow>& table,
               const std::map<std::string, std::string>& names,
               const std::vector<std::pair<std::string, std::string>>& declared,
               const std::map<std::string, std::string>& tie,
               const std::vector<std::string>& untie,
               const std::string& on_tie_conflict,
               bool rename,
               const std::map<std::string, std::string>& init) {
  const ModelSourceOptions options{
      .names = names,
      .declared = declared,
      .ties = {.explicit_ties = tie, .untied = untie, .on_conflict = conflict_from(on_tie_conflict)},
      .rename = rename,
      .inits = init};
  new (self) ModelSource(directory, table_from(table), options);
}

std::vector<Part> parts_from(const ModelSource& source, const std::vector<PartRow>& rows) {
  std::vector<Part> parts;
  for (const auto& [name, address, dtype, offset, size] : rows) {
    parts.push_back({.parameter = source.index_of(name),
                     .box = {.offset = offset, .size = size},
                     .dtype = dtype_from(dtype),
                     .target = reinterpret_cast<std::byte*>(address)}); // NOLINT: torch hands its memory over so
  }
  return parts;
}

/// Lets Ctrl-C end a read: asked on the thread that called, at most every 20 ms.
std::function<void()> interruptible() {
  using Clock = std::chrono::steady_clock;
  return [caller = std::this_thread::get_id(), last = Clock::now()]() mutable {
    if (std::this_thread::get_id() != caller || Clock::now() - last < std::chrono::milliseconds(20)) {
      return;
    }
    last = Clock::now();
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) {
      throw nb::python_error();
    }
  };
}

nb::object array_of(const Part& part, const PartMemory& memory) {
  if (memory.data == nullptr) {
    return nb::none();
  }
  std::vector<std::size_t> shape(part.box.size.begin(), part.box.size.end());
  const nb::capsule owner(new std::shared_ptr<void>(memory.memory),
                          [](void* held) noexcept { delete static_cast<std::shared_ptr<void>*>(held); });
  return nb::cast(
      nb::ndarray<nb::array_api>(memory.data, shape.size(), shape.data(), owner, nullptr, dlpack_dtype(part.dtype)));
}

nb::tuple read(const ModelSource& source,
               const std::vector<PartRow>& rows,
               int threads,
               std::uint64_t buffer_bytes,
               bool map,
               bool check_values) {
  const std::vector<Part> parts = parts_from(source, rows);
  PartReadReport report;
  {
    const nb::gil_scoped_release release;
    report = read_parts(source,
                        parts,
                        {.threads = threads,
                         .buffer_bytes = buffer_bytes,
                         .map = map,
                         .check_values = check_values,
                         .on_chunk = interruptible()});
  }
  nb::list arrays;
  nb::list mapped;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    arrays.append(array_of(parts[i], report.memory[i]));
    mapped.append(report.memory[i].mapped);
  }
  nb::dict account;
  account["bytes_read"] = report.bytes_read;
  account["bytes_mapped"] = report.bytes_mapped;
  account["mapped"] = mapped;
  account["not_finite"] = report.not_finite.empty() ? nb::none() : nb::cast(not_finite_finding(report.not_finite));
  return nb::make_tuple(arrays, account);
}

/// One dict for each canonical parameter: where its bytes come from.
nb::list entries(const ModelSource& source) {
  nb::list all;
  for (std::size_t i = 0; i < source.plan().parameters().size(); ++i) {
    const ShardedParameter& parameter = source.plan().parameters()[i];
    const WeightSource& from = source.sources().of_parameter[i];
    nb::dict entry;
    entry["name"] = parameter.fqn;
    entry["aliases"] = source.plan().ties().aliases(parameter.fqn);
    entry["stored_name"] = from.values == nullptr ? "" : from.values->stored_name;
    entry["file"] = from.values == nullptr ? "" : source.checkpoint().file_name(*from.values);
    entry["offset"] = from.values == nullptr ? 0 : from.values->offset;
    entry["stored_dtype"] = from.values == nullptr ? "" : std::string(name(from.values->dtype));
    entry["encoding"] = from.values == nullptr ? "" : std::string(id(from.encoding));
    entry["scales"] = from.scales == nullptr ? "" : from.scales->stored_name;
    entry["initialised"] = from.values == nullptr ? from.init.to_string() : "";
    entry["shape"] = nb::tuple(nb::cast(parameter.shape));
    all.append(entry);
  }
  return all;
}

} // namespace

void bind_model_source(nb::module_& module) {
  nb::class_<ModelSource>(module, "ModelSource", "Where a module's parameters come from. Used by tieshard.load.")
      .def("__init__",
           &construct,
           nb::arg("directory"),
           nb::arg("table"),
           nb::kw_only(),
           nb::arg("names") = std::map<std::string, std::string>{},
           nb::arg("declared") = std::vector<std::pair<std::string, std::string>>{},
           nb::arg("tie") = std::map<std::string, std::string>{},
           nb::arg("untie") = std::vector<std::string>{},
           nb::arg("on_tie_conflict") = "untie",
           nb::arg("rename") = true,
           nb::arg("init") = std::map<std::string, std::string>{},
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro(
          "ties",
          [](const ModelSource& self) -> const TieRegistry& { return self.plan().ties(); },
          nb::rv_policy::reference_internal)
      .def_prop_ro("findings", &ModelSource::findings)
      .def_prop_ro("unused", [](const ModelSource& self) { return self.sources().unused; })
      .def("entries", &entries)
      .def("read",
           &read,
           nb::arg("parts"),
           nb::arg("threads") = 1,
           nb::arg("buffer_bytes") = 16 << 20,
           nb::arg("map") = true,
           nb::arg("check_values") = true,
           nb::sig("def read(self, parts: list[tuple[str, int, str, list[int], list[int]]], threads: int = 1, "
                   "buffer_bytes: int = 16777216, map: bool = True, check_values: bool = True) "
                   "-> tuple[list[object | None], dict[str, object]]"),
           "Reads parts (name, address or 0, dtype, offset, size). Arrays for those without an address, and an "
           "account.");
}

} // namespace tieshard::python
