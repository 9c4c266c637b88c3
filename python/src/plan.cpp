#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "tieshard/core/base/units.h"

#include "python/src/bindings.h"
#include "python/src/opened_checkpoint.h"

namespace tieshard::python {
namespace {

std::vector<UnitSpec> units_from(const std::vector<std::string>& modules) {
  std::vector<UnitSpec> units;
  for (const std::string& module : modules) {
    units.push_back({.name = module, .prefix = module + "."});
  }
  return units;
}

ShardPlan build(nb::handle source,
                std::int64_t ranks,
                const std::string& shard_dim,
                const std::map<std::string, int>& dims,
                const std::optional<std::vector<std::string>>& units,
                const std::optional<std::string>& param_dtype) {
  ShardPlanOptions options{.policy = policy_from(shard_dim), .dims = dims};
  ParameterTable table;
  TieRegistry ties;
  if (nb::isinstance<OpenedCheckpoint>(source)) {
    const ResolvedModel& model = nb::cast<const OpenedCheckpoint&>(source).resolved();
    table = model.table;
    ties = model.ties;
    options.units = model.units();
  } else {
    table = table_of_module(source);
    ties = TieRegistry::of(table);
  }
  if (units) {
    options.units = units_from(*units);
  }
  if (param_dtype) {
    const DType dtype = dtype_from(*param_dtype);
    for (ParameterInfo& parameter : table) {
      parameter.dtype = dtype;
    }
  }
  return ShardPlan::build(table, ties, ranks, options);
}

const ShardedParameter& found(const ShardPlan& plan, const std::string& name) {
  const ShardedParameter* const parameter = plan.find(name);
  if (parameter == nullptr) {
    throw nb::key_error(name.c_str());
  }
  return *parameter;
}

void require_rank(const ShardPlan& plan, std::int64_t rank) {
  if (rank < 0 || rank >= plan.ranks()) {
    refuse_argument("rank", std::to_string(rank), concat("a rank from 0 to ", plan.ranks() - 1));
  }
}

std::string html_of(const ShardPlan& plan) {
  std::vector<std::vector<std::string>> rows;
  for (const ShardedParameter& parameter : plan.parameters()) {
    rows.push_back({parameter.fqn,
                    to_string(parameter.shape),
                    std::string(name(parameter.dtype)),
                    parameter.dim < 0 ? "replicated" : std::to_string(parameter.dim),
                    to_string(plan.local_shape(parameter, 0)),
                    plan.units()[parameter.unit].name});
  }
  return html_table({"parameter", "shape", "dtype", "dim", "rank 0", "unit"}, rows);
}

void bind_parameter(nb::module_& module) {
  nb::class_<ShardedParameter>(module, "ShardedParameter", "How one canonical parameter lies on the ranks.")
      .def_ro("name", &ShardedParameter::fqn)
      .def_prop_ro(
          "shape", [](const ShardedParameter& self) { return nb::tuple(nb::cast(self.shape)); }, "Whole shape.")
      .def_prop_ro("dtype", [](const ShardedParameter& self) { return std::string(name(self.dtype)); })
      .def_prop_ro(
          "dim",
          [](const ShardedParameter& self) { return self.dim < 0 ? std::nullopt : std::optional<int>(self.dim); },
          "The dimension that is cut; None for a 0-dim parameter, which every rank holds.")
      .def("__repr__", [](const ShardedParameter& self) {
        return concat("ShardedParameter(", self.fqn, ", ", to_string(self.shape), ", dim ", self.dim, ")");
      });
}

} // namespace

void bind_plan(nb::module_& module) {
  bind_parameter(module);
  nb::class_<ShardPlan>(module, "ShardPlan", "What each rank holds of each parameter. Equal on every rank; immutable.")
      .def_static(
          "build",
          &build,
          nb::arg("source"),
          nb::arg("ranks"),
          nb::kw_only(),
          nb::arg("shard_dim") = "last",
          nb::arg("dims") = std::map<std::string, int>{},
          nb::arg("units") = nb::none(),
          nb::arg("param_dtype") = nb::none(),
          nb::sig("def build(source: object, ranks: int, *, shard_dim: str = \"last\", dims: dict[str, int] = {}, "
                  "units: list[str] | None = None, param_dtype: str | None = None) -> ShardPlan"),
          "Plans a torch.nn.Module or an opened Checkpoint for `ranks` ranks that share one copy of the model.\n\n"
          "shard_dim: the dimension to cut, \"last\" or \"first\"; a tied weight is always cut on its last.\n"
          "dims: dimensions of single parameters, by name. units: modules that are gathered together.\n"
          "Raises UsageError: tied-weight-on-vocab, unknown-parameter, bad-shard-dim, bad-rank-count.")
      .def_prop_ro(
          "parameters", &ShardPlan::parameters, nb::rv_policy::reference_internal, "Canonical parameters only.")
      .def_prop_ro("ranks", &ShardPlan::ranks)
      .def_prop_ro("ties", &ShardPlan::ties, nb::rv_policy::reference_internal)
      .def_prop_ro(
          "units",
          [](const ShardPlan& self) {
            std::map<std::string, std::vector<std::string>> units;
            for (const PlanUnit& unit : self.units()) {
              std::vector<std::string>& names = units[unit.name];
              for (const std::size_t index : unit.parameters) {
                names.push_back(self.parameters()[index].fqn);
              }
            }
            return units;
          },
          "Module name -> names of the parameters that are gathered with it; \"\" is the root.")
      .def(
          "find",
          [](const ShardPlan& self, const std::string& name) { return found(self, name); },
          nb::arg("name"),
          "The parameter of this name or alias. Raises KeyError.")
      .def(
          "local_shape",
          [](const ShardPlan& self, const std::string& name, std::int64_t rank) {
            require_rank(self, rank);
            return nb::tuple(nb::cast(self.local_shape(found(self, name), rank)));
          },
          nb::arg("name"),
          nb::arg("rank"),
          "Shape of `rank`'s part; a size may be 0.")
      .def(
          "local_range",
          [](const ShardPlan& self, const std::string& name, std::int64_t rank) {
            require_rank(self, rank);
            const ChunkRange range = self.range(found(self, name), rank);
            return nb::make_tuple(range.offset, range.size);
          },
          nb::arg("name"),
          nb::arg("rank"),
          "(offset, size) of `rank`'s part along the dimension that is cut, in elements.")
      .def(
          "local_numel",
          [](const ShardPlan& self, std::int64_t rank) {
            require_rank(self, rank);
            return self.local_numel(rank);
          },
          nb::arg("rank"),
          "Elements that `rank` holds in all.")
      .def_prop_ro("total_numel", &ShardPlan::total_numel, "Elements of all parameters, each storage once.")
      .def("__len__", [](const ShardPlan& self) { return self.parameters().size(); })
      .def("__repr__",
           [](const ShardPlan& self) {
             return concat("ShardPlan: ",
                           self.parameters().size(),
                           " parameters (",
                           self.total_numel(),
                           " elements) on ",
                           self.ranks(),
                           self.ranks() == 1 ? " rank, " : " ranks, ",
                           self.local_numel(0),
                           " on rank 0, ",
                           self.ties().groups().size(),
                           " tied");
           })
      .def("_repr_html_", &html_of);
}

} // namespace tieshard::python
