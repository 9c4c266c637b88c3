#include <exception>
#include <string_view>

#include <nanobind/stl/string.h>

#include "python/src/bindings.h"

namespace tieshard::python {
namespace {

std::string level_name(Level level) {
  switch (level) {
    case Level::kError:
      return "error";
    case Level::kWarning:
      return "warning";
    case Level::kNote:
      return "note";
  }
  return "error";
}

Level level_from(const std::string& text) {
  for (const Level level : {Level::kError, Level::kWarning, Level::kNote}) {
    if (level_name(level) == text) {
      return level;
    }
  }
  refuse_argument("level", text, "\"error\", \"warning\" or \"note\"");
}

Code code_from(const std::string& text) {
  static const std::map<std::string, Code, std::less<>> kCodes = {
#define TIESHARD_ENTRY(enumerator, text, rule) {text, Code::enumerator},
      TIESHARD_ERROR_CODES(TIESHARD_ENTRY)
#undef TIESHARD_ENTRY
  };
  if (const auto found = kCodes.find(text); found != kCodes.end()) {
    return found->second;
  }
  refuse_argument("code", text, "a code of docs/errors.md");
}

void raise(const char* kind, const Diagnostic& diagnostic) {
  const nb::object type = nb::module_::import_("tieshard.errors").attr(kind);
  const nb::object error = type(nb::cast(diagnostic));
  PyErr_SetObject(type.ptr(), error.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const InputError& error) {
    raise("InputError", error.diagnostic());
  } catch (const UsageError& error) {
    raise("UsageError", error.diagnostic());
  } catch (const PeerError& error) {
    raise("PeerError", error.diagnostic());
  } catch (const InternalError& error) {
    raise("InternalError", error.diagnostic());
  } catch (const Error& error) {
    raise("Error", error.diagnostic());
  }
}

} // namespace

void bind_errors(nb::module_& module) {
  nb::class_<Diagnostic>(module, "Diagnostic", "One finding: a code, and what, where, why and fix. str() is its text.")
      .def(
          "__init__",
          [](Diagnostic* self,
             const std::string& code,
             const std::string& what,
             const std::string& where,
             const std::string& why,
             const std::string& fix,
             const std::string& level) {
            new (self) Diagnostic{level_from(level), code_from(code), what, where, why, fix};
          },
          nb::arg("code"),
          nb::kw_only(),
          nb::arg("what"),
          nb::arg("where") = "",
          nb::arg("why") = "",
          nb::arg("fix") = "",
          nb::arg("level") = "error")
      .def_prop_ro(
          "level", [](const Diagnostic& self) { return level_name(self.level); }, "\"error\", \"warning\" or \"note\".")
      .def_prop_ro(
          "code",
          [](const Diagnostic& self) { return std::string(id(self.code)); },
          "The rule that was broken, e.g. \"tie-shape-mismatch\" (docs/errors.md).")
      .def_ro("what", &Diagnostic::what, "Which rule was broken, without values.")
      .def_ro("where", &Diagnostic::where, "Rank, file, parameter name, byte range.")
      .def_ro("why", &Diagnostic::why, "Expected and got, with units.")
      .def_ro("fix", &Diagnostic::fix, "What to do next.")
      .def("__str__", &Diagnostic::to_string)
      .def("__reduce__",
           [](nb::handle self) {
             const nb::object rebuild = nb::module_::import_("tieshard.errors").attr("rebuild_diagnostic");
             return nb::make_tuple(rebuild,
                                   nb::make_tuple(self.attr("code"),
                                                  self.attr("what"),
                                                  self.attr("where"),
                                                  self.attr("why"),
                                                  self.attr("fix"),
                                                  self.attr("level")));
           })
      .def("__repr__", [](const Diagnostic& self) {
        return concat("<", level_name(self.level), " ", id(self.code), ": ", self.what, ">");
      });
  nb::register_exception_translator(translate);
}

} // namespace tieshard::python
