#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "python/src/bindings.h"

namespace tieshard::python {
namespace {

/// Codes of DLPack 1.1 for floats of 8 bits, which nanobind does not name.
enum : std::uint8_t { kE4M3Fn = 10, kE4M3Fnuz = 11, kE5M2 = 12, kE5M2Fnuz = 13, kE8M0 = 14 };

nb::dlpack::dtype make(std::uint8_t code, std::uint8_t bits) {
  return {code, bits, 1};
}

nb::dlpack::dtype make(nb::dlpack::dtype_code code, int bits) {
  return make(static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits));
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

void add_row(std::string& html, const std::vector<std::string>& cells, const std::string& tag) {
  html += "<tr>";
  for (const std::string& cell : cells) {
    html += concat("<", tag, " style=\"text-align:left\">", escaped(cell), "</", tag, ">");
  }
  html += "</tr>";
}

} // namespace

ParameterTable table_from(const std::vector<TableRow>& rows) {
  ParameterTable table;
  table.reserve(rows.size());
  for (const auto& [fqn, shape, dtype, identity] : rows) {
    table.push_back({.fqn = fqn, .shape = shape, .dtype = dtype_from(dtype), .identity = identity});
  }
  return table;
}

ParameterTable table_of_module(nb::handle module) {
  const nb::object rows = nb::module_::import_("tieshard.module_table").attr("parameter_table")(module);
  return table_from(nb::cast<std::vector<TableRow>>(rows));
}

void refuse_argument(const std::string& name, const std::string& value, const std::string& expected) {
  throw UsageError({.code = Code::kBadFlag,
                    .what = "an argument has a value that cannot be used",
                    .where = name,
                    .why = concat("expected ", expected, ", got \"", value, "\""),
                    .fix = concat("pass ", expected)});
}

DType dtype_from(const std::string& text) {
  if (const std::optional<DType> stored = dtype_from_name(text)) {
    return *stored;
  }
  if (const std::optional<DType> wide = dtype_from_torch_name(text)) {
    return *wide;
  }
  refuse_argument("dtype", text, "a floating type such as torch.bfloat16, \"float32\" or \"BF16\"");
}

ShardDimPolicy policy_from(const std::string& text) {
  if (text == "last" || text == "first") {
    return text == "last" ? ShardDimPolicy::kLast : ShardDimPolicy::kFirst;
  }
  refuse_argument("shard_dim", text, "\"last\" or \"first\"");
}

OnTieConflict conflict_from(const std::string& text) {
  static const std::map<std::string, OnTieConflict> kKnown = {{"untie", OnTieConflict::kUntie},
                                                              {"error", OnTieConflict::kError},
                                                              {"canonical", OnTieConflict::kCanonical},
                                                              {"alias", OnTieConflict::kAlias}};
  if (const auto found = kKnown.find(text); found != kKnown.end()) {
    return found->second;
  }
  refuse_argument("on_tie_conflict", text, "\"untie\", \"error\", \"canonical\" or \"alias\"");
}

nb::dlpack::dtype dlpack_dtype(DType dtype) {
  using Kind = nb::dlpack::dtype_code;
  const int width = bits(dtype);
  switch (dtype) {
    case DType::kBool:
      return make(Kind::Bool, 8);
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
      return make(Kind::Int, width);
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
    case DType::kU64:
      return make(Kind::UInt, width);
    case DType::kF16:
    case DType::kF32:
    case DType::kF64:
      return make(Kind::Float, width);
    case DType::kBF16:
      return make(Kind::Bfloat, width);
    case DType::kC64:
      return make(Kind::Complex, width);
    case DType::kF8E4M3:
      return make(kE4M3Fn, 8);
    case DType::kF8E5M2:
      return make(kE5M2, 8);
    case DType::kF8E4M3Fnuz:
      return make(kE4M3Fnuz, 8);
    case DType::kF8E5M2Fnuz:
      return make(kE5M2Fnuz, 8);
    case DType::kF8E8M0:
      return make(kE8M0, 8);
    case DType::kF4:
    case DType::kF6E2M3:
    case DType::kF6E3M2:
      break;
  }
  return make(Kind::UInt, 8);
}

std::string html_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows) {
  std::string html = "<table>";
  add_row(html, head, "th");
  for (const std::vector<std::string>& row : rows) {
    add_row(html, row, "td");
  }
  return html + "</table>";
}

} // namespace tieshard::python
