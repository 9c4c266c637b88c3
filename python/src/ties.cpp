#include <memory>

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "tieshard/core/ties/tie_registry.h"

#include "python/src/bindings.h"
#include "python/src/opened_checkpoint.h"

namespace tieshard::python {
namespace {

std::vector<std::string> reasons_of(const TieAlias& alias) {
  std::vector<std::string> texts;
  for (const TieReason& reason : alias.reasons) {
    texts.push_back(concat(id(reason.evidence), reason.text.empty() ? "" : ": ", reason.text));
  }
  return texts;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string result;
  for (const std::string& text : texts) {
    result += (result.empty() ? "" : "; ") + text;
  }
  return result;
}

std::string text_of(const TieGroup& group) {
  std::string names;
  for (const TieAlias& alias : group.aliases) {
    names += concat(names.empty() ? "" : ", ", alias.name, " (", joined(reasons_of(alias)), ")");
  }
  return concat(group.canonical, " = ", names);
}

std::string text_of(const TieRegistry& ties) {
  std::string lines;
  for (const TieGroup& group : ties.groups()) {
    lines += "\n  " + text_of(group);
  }
  return concat("TieRegistry: ", ties.groups().size(), ties.groups().size() == 1 ? " tie" : " ties", lines);
}

std::string html_of(const TieRegistry& ties) {
  std::vector<std::vector<std::string>> rows;
  for (const TieGroup& group : ties.groups()) {
    for (const TieAlias& alias : group.aliases) {
      rows.push_back({group.canonical, alias.name, joined(reasons_of(alias))});
    }
  }
  return html_table({"canonical", "alias", "evidence"}, rows);
}

TieRegistry registry_of(nb::handle source) {
  if (nb::isinstance<OpenedCheckpoint>(source)) {
    return nb::cast<const OpenedCheckpoint&>(source).resolved().ties;
  }
  return TieRegistry::of(table_of_module(source));
}

} // namespace

void bind_ties(nb::module_& module) {
  nb::class_<TieAlias>(module, "TieAlias", "Another name of a tied parameter, and why it is one.")
      .def_ro("name", &TieAlias::name)
      .def_prop_ro("evidence", &reasons_of, "One text for each reason, e.g. \"module-identity: ...\"; at least one.")
      .def("__repr__",
           [](const TieAlias& self) { return concat("TieAlias(", self.name, ": ", joined(reasons_of(self)), ")"); });
  nb::class_<TieGroup>(module, "TieGroup", "Names that share one storage.")
      .def_ro("canonical", &TieGroup::canonical, "The name that owns the storage: the first in registration order.")
      .def_ro("aliases", &TieGroup::aliases, "The other names (TieAlias), in registration order.")
      .def_prop_ro(
          "names",
          [](const TieGroup& self) {
            std::vector<std::string> names{self.canonical};
            for (const TieAlias& alias : self.aliases) {
              names.push_back(alias.name);
            }
            return names;
          },
          "All names, the canonical one first.")
      .def("__repr__", [](const TieGroup& self) { return concat("TieGroup(", text_of(self), ")"); });
  nb::class_<TieRegistry>(module, "TieRegistry", "Which parameter names are one weight, and why. Immutable.")
      .def_static(
          "of",
          &registry_of,
          nb::arg("source"),
          nb::sig("def of(source: object) -> TieRegistry"),
          "The ties of a torch.nn.Module (names that yield one tensor object; its bytes may be on meta), or of an\n"
          "opened Checkpoint (config.json, the family's rule, file metadata; stored copies are compared).\n\n"
          "Raises InputError: tie-shape-mismatch, tie-conflict, tie-source-ambiguous.")
      .def_static(
          "from_map",
          [](const std::map<std::string, std::string>& names, const std::vector<TableRow>& table) {
            return TieRegistry::from_map(names, table_from(table));
          },
          nb::arg("alias_to_canonical"),
          nb::arg("table"),
          "From a map alias -> canonical, over rows (name, shape, dtype, identity) as parameter_table makes them.\n\n"
          "Raises InputError: tie-unknown-name, tie-cycle, tie-shape-mismatch.")
      .def_prop_ro("groups", &TieRegistry::groups, nb::rv_policy::reference_internal, "Every tie, a TieGroup each.")
      .def_prop_ro("findings", &TieRegistry::findings, "Warnings and notes of the decision.")
      .def(
          "canonical_of",
          [](const TieRegistry& self, const std::string& name) { return self.canonical(name); },
          nb::arg("name"),
          "The name that owns the storage of `name`; itself when it is not tied.")
      .def(
          "is_alias",
          [](const TieRegistry& self, const std::string& name) { return self.is_alias(name); },
          nb::arg("name"),
          "Whether another name owns the storage of `name`.")
      .def(
          "aliases_of",
          [](const TieRegistry& self, const std::string& name) { return self.aliases(name); },
          nb::arg("canonical"),
          "The other names of a canonical name; empty when it has none or is an alias.")
      .def(
          "seen_params",
          [](const TieRegistry& self, const std::vector<std::string>& names) { return self.seen_params(names); },
          nb::arg("names"),
          "The canonical names of `names`, each once, in order of first appearance.")
      .def(
          "expand",
          [](const TieRegistry& self, const std::vector<std::string>& names) { return self.expand(names); },
          nb::arg("names"),
          "`names`, followed by every alias that is absent although its canonical name is there.")
      .def_prop_ro(
          "aliases",
          [](const TieRegistry& self) {
            std::map<std::string, std::string> names;
            for (const TieGroup& group : self.groups()) {
              for (const TieAlias& alias : group.aliases) {
                names[alias.name] = group.canonical;
              }
            }
            return names;
          },
          "Alias -> canonical name, of all ties.")
      .def("__len__", [](const TieRegistry& self) { return self.groups().size(); })
      .def("__iter__", [](nb::handle self) { return nb::iter(self.attr("groups")); })
      .def("__repr__", [](const TieRegistry& self) { return text_of(self); })
      .def("_repr_html_", [](const TieRegistry& self) { return html_of(self); });
}

} // namespace tieshard::python
