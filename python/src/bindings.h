// python/src/bindings.h
//
// What the files of the Python module share: one function for each part of it, and Python's spellings of core's types.
//
// Flow:   core -> [this] -> module.cpp, python/tieshard
// Source: nanobind.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/families/parameter_table.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/ties/tie_options.h"

namespace tieshard::python {

namespace nb = nanobind;

/// Each adds its classes and functions to `module`, in this order: a later one may name the types of an earlier one.
void bind_errors(nb::module_& module);
void bind_ties(nb::module_& module);
void bind_checkpoint(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_doctor(nb::module_& module);
void bind_model_source(nb::module_& module);
void bind_saving(nb::module_& module);
void bind_saved_state(nb::module_& module);
void bind_exporting(nb::module_& module);

/// A parameter as Python hands it over: name, whole shape, dtype as "BF16" or "torch.bfloat16", identity.
using TableRow = std::tuple<std::string, Shape, std::string, std::uint64_t>;
ParameterTable table_from(const std::vector<TableRow>& rows);

/// The table of a torch.nn.Module, by tieshard.module_table.parameter_table. Call with the GIL.
ParameterTable table_of_module(nb::handle module);

/// From either spelling. @throws UsageError bad-flag
DType dtype_from(const std::string& text);

/// "last" or "first". @throws UsageError bad-flag
ShardDimPolicy policy_from(const std::string& text);

/// "untie", "error", "canonical" or "alias". @throws UsageError bad-flag
OnTieConflict conflict_from(const std::string& text);

/// @throws UsageError bad-flag: `name` has a value that is none of what `expected` says
[[noreturn]] void refuse_argument(const std::string& name, const std::string& value, const std::string& expected);

/// An element type as DLPack says it; bytes for packed types of less than 8 bits.
nb::dlpack::dtype dlpack_dtype(DType dtype);

/// <table> with a head, for notebooks; every cell is escaped.
std::string html_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows);

} // namespace tieshard::python
