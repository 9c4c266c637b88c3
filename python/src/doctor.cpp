#include "tieshard/core/doctor/doctor.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "tieshard/core/base/units.h"

#include "python/src/bindings.h"

namespace tieshard::python {
namespace {

std::string text_of(const DoctorReport& report) {
  std::string text = concat("DoctorReport: ",
                            id(report.verdict()),
                            ", ",
                            report.architecture.empty() ? "no architecture" : report.architecture,
                            ", ",
                            report.tensors,
                            " tensors, ",
                            format_bytes(report.stored_bytes));
  for (const Diagnostic& finding : report.findings) {
    text += "\n" + finding.to_string();
  }
  return text;
}

std::string html_of(const DoctorReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const Diagnostic& finding : report.findings) {
    const char* const level = finding.level == Level::kError     ? "error"
                              : finding.level == Level::kWarning ? "warning"
                                                                 : "note";
    rows.push_back({level, std::string(id(finding.code)), finding.what, finding.where, finding.why, finding.fix});
  }
  return concat(
      "<p>", id(report.verdict()), "</p>", html_table({"level", "code", "what", "where", "why", "fix"}, rows));
}

DoctorReport run(const std::filesystem::path& directory,
                 std::int64_t ranks,
                 const std::string& shard_dim,
                 const std::map<std::string, int>& dims,
                 const std::optional<std::string>& param_dtype,
                 const std::map<std::string, std::string>& tie,
                 const std::vector<std::string>& untie,
                 const std::string& on_tie_conflict,
                 bool check_values,
                 bool deep,
                 int threads) {
  DoctorOptions options{.ranks = ranks,
                        .policy = policy_from(shard_dim),
                        .dims = dims,
                        .check_values = check_values,
                        .deep = deep,
                        .threads = threads};
  options.resolve.ties = {.explicit_ties = tie, .untied = untie, .on_conflict = conflict_from(on_tie_conflict)};
  if (param_dtype) {
    options.param_dtype = dtype_from(*param_dtype);
  }
  if (ranks < 1 || threads < 1) {
    refuse_argument(ranks < 1 ? "ranks" : "threads", std::to_string(ranks < 1 ? ranks : threads), "a number above 0");
  }
  return diagnose(directory, options);
}

} // namespace

void bind_doctor(nb::module_& module) {
  nb::class_<DoctorReport>(module, "DoctorReport", "Whether a checkpoint would load, and all that is odd about it.")
      .def_prop_ro(
          "verdict",
          [](const DoctorReport& self) { return std::string(id(self.verdict())); },
          "\"ok\", \"warn\" or \"refuse\".")
      .def_ro("findings", &DoctorReport::findings, "Diagnostics: errors first, then warnings, then notes.")
      .def_ro("architecture", &DoctorReport::architecture)
      .def_ro("family", &DoctorReport::family, "Empty where tieshard does not know it.")
      .def_ro("ties", &DoctorReport::ties, "A TieGroup each.")
      .def_ro("files", &DoctorReport::files)
      .def_ro("tensors", &DoctorReport::tensors, "Stored tensors.")
      .def_ro("stored_bytes", &DoctorReport::stored_bytes)
      .def_ro("parameters", &DoctorReport::parameters, "Elements, each storage once.")
      .def(
          "__bool__", [](const DoctorReport& self) { return self.verdict() != Verdict::kRefuse; }, "Whether it loads.")
      .def("__repr__", &text_of)
      .def("_repr_html_", &html_of);
  module.def("doctor",
             &run,
             nb::arg("directory"),
             nb::arg("ranks") = 1,
             nb::kw_only(),
             nb::arg("shard_dim") = "last",
             nb::arg("dims") = std::map<std::string, int>{},
             nb::arg("param_dtype") = nb::none(),
             nb::arg("tie") = std::map<std::string, std::string>{},
             nb::arg("untie") = std::vector<std::string>{},
             nb::arg("on_tie_conflict") = "untie",
             nb::arg("check_values") = true,
             nb::arg("deep") = false,
             nb::arg("threads") = 1,
             nb::call_guard<nb::gil_scoped_release>(),
             "Says whether the checkpoint in `directory` would load on `ranks` ranks, and every reason why not.\n\n"
             "Arguments are the flags of `tieshard doctor`. Raises PeerError where something cannot be read.");
}

} // namespace tieshard::python
