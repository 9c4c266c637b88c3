#include <memory>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nlohmann/json.hpp>

#include "tieshard/core/io/mapped_range.h"

#include "python/src/bindings.h"
#include "python/src/opened_checkpoint.h"

namespace tieshard::python {
namespace {

/// Keeps bytes alive for as long as an array looks at them.
template <typename Owner>
nb::capsule keeper(std::shared_ptr<Owner> memory) {
  return nb::capsule(new std::shared_ptr<Owner>(std::move(memory)),
                     [](void* held) noexcept { delete static_cast<std::shared_ptr<Owner>*>(held); });
}

/// The stored bytes as a read-only array of bytes: mapped, or read where the file system has no mappings.
nb::ndarray<nb::array_api, nb::ro> bytes_of(const OpenedCheckpoint& opened, const std::string& name) {
  const StoredTensor* const tensor = opened.stored().find(name);
  if (tensor == nullptr) {
    throw nb::key_error(name.c_str());
  }
  const nb::dlpack::dtype bytes = nb::dtype<std::uint8_t>();
  std::size_t size = static_cast<std::size_t>(tensor->bytes);
  if (size == 0) {
    static const std::uint8_t kNothing = 0;
    return nb::ndarray<nb::array_api, nb::ro>(&kNothing, 1, &size, nb::none(), nullptr, bytes);
  }
  const File& file = opened.stored().files()[tensor->file].file();
  const nb::gil_scoped_release release;
  std::shared_ptr<MappedRange> mapping = MappedRange::map(file, tensor->offset, tensor->bytes);
  if (mapping != nullptr) {
    const std::byte* const data = mapping->data();
    const nb::gil_scoped_acquire acquire;
    return nb::ndarray<nb::array_api, nb::ro>(data, 1, &size, keeper(std::move(mapping)), nullptr, bytes);
  }
  auto copy = std::make_shared<std::vector<std::byte>>(size);
  file.read_at(tensor->offset, *copy);
  const std::byte* const data = copy->data();
  const nb::gil_scoped_acquire acquire;
  return nb::ndarray<nb::array_api, nb::ro>(data, 1, &size, keeper(std::move(copy)), nullptr, bytes);
}

/// The same elements as `array`, which holds them as unsigned integers of their size, under their own dtype.
nb::ndarray<nb::array_api, nb::ro> with_dtype(const nb::object& array, const std::string& dtype_name) {
  const nb::dlpack::dtype dtype = dlpack_dtype(dtype_from(dtype_name));
  const auto elements = nb::cast<nb::ndarray<nb::ro, nb::device::cpu>>(array);
  std::vector<std::size_t> shape;
  std::vector<std::int64_t> strides;
  for (std::size_t dim = 0; dim < elements.ndim(); ++dim) {
    shape.push_back(elements.shape(dim));
    strides.push_back(elements.stride(dim));
  }
  return nb::ndarray<nb::array_api, nb::ro>(elements.data(), shape.size(), shape.data(), array, strides.data(), dtype);
}

} // namespace

void bind_checkpoint(nb::module_& module) {
  nb::class_<StoredTensor>(module, "StoredTensor", "Where one tensor lies in the files.")
      .def_ro("name", &StoredTensor::name)
      .def_prop_ro(
          "dtype",
          [](const StoredTensor& self) { return std::string(name(self.dtype)); },
          "As the format spells it: \"BF16\", \"F8_E4M3\", ...")
      .def_prop_ro(
          "shape", [](const StoredTensor& self) { return nb::tuple(nb::cast(self.shape)); }, "Sizes, outermost first.")
      .def_ro("offset", &StoredTensor::offset, "First byte in its file.")
      .def_ro("nbytes", &StoredTensor::bytes, "Size in bytes.")
      .def("__repr__", [](const StoredTensor& self) {
        return concat("StoredTensor(", self.name, ", ", name(self.dtype), ", ", to_string(self.shape), ")");
      });
  nb::class_<OpenedCheckpoint>(module, "OpenedCheckpoint", "The C++ side of tieshard.Checkpoint.")
      .def(nb::init<const std::filesystem::path&>(), nb::arg("directory"), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("tensors", [](const OpenedCheckpoint& self) { return self.stored().tensors(); })
      .def_prop_ro("directory", [](const OpenedCheckpoint& self) { return self.stored().directory(); })
      .def_prop_ro("findings", [](const OpenedCheckpoint& self) { return self.stored().findings(); })
      .def_prop_ro("config_json", [](const OpenedCheckpoint& self) { return self.stored().config().json().dump(); })
      .def_prop_ro("family",
                   [](const OpenedCheckpoint& self) {
                     const Family* const family = find_family(self.stored().config());
                     return family == nullptr ? std::string() : std::string(family->name());
                   })
      .def(
          "file_of",
          [](const OpenedCheckpoint& self, const StoredTensor& tensor) { return self.stored().file_name(tensor); },
          nb::arg("tensor"))
      .def("bytes_of", &bytes_of, nb::arg("name"));
  module.def("with_dtype", &with_dtype, nb::arg("array"), nb::arg("dtype"));
}

} // namespace tieshard::python
