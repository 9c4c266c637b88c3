#include "tieshard/cli/tensor_values.h"

#include <algorithm>
#include <array>

#include "tieshard/cli/closest_names.h"
#include "tieshard/cli/element_text.h"
#include "tieshard/cli/table.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/io/reader.h"

namespace tieshard::cli {
namespace {

bool known(const ResolvedModel& view, const std::string& asked) {
  return std::any_of(view.table.begin(), view.table.end(), [&](const auto& entry) { return entry.fqn == asked; });
}

std::string closest_text(const ResolvedModel& view, const std::string& asked) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : view.checkpoint.tensors()) {
    names.push_back(tensor.name);
  }
  std::string text;
  for (const std::string& close : closest_names(asked, names, 3)) {
    text += concat(text.empty() ? "" : ", ", close);
  }
  return text;
}

// Its own bytes where it has some: a name is shown as it is stored, tied or not.
const StoredTensor& source_of(const ResolvedModel& view, const std::string& asked) {
  if (const StoredTensor* own = view.checkpoint.find(asked)) {
    return *own;
  }
  if (const StoredTensor* tied = view.ties.source(view.checkpoint, view.ties.canonical(asked))) {
    return *tied;
  }
  if (known(view, asked)) {
    throw InputError({.code = Code::kMissingParameter,
                      .what = "a parameter has no value in the checkpoint",
                      .where = concat(view.checkpoint.directory().string(), ", ", asked),
                      .why = "neither it nor a name that it is tied to is stored",
                      .fix = "see `tieshard ties` for what is tied"});
  }
  throw InputError({.code = Code::kUnknownParameter,
                    .what = "the checkpoint has no tensor of this name",
                    .where = view.checkpoint.directory().string(),
                    .why = concat("got ", asked, "; the closest names are ", closest_text(view, asked)),
                    .fix = "list all names with `tieshard inspect DIR --all`"});
}

// Packed elements (F4, F6) are shown as the bytes that hold the first `count`.
std::uint64_t bytes_of_first(const StoredTensor& tensor, std::int64_t count) {
  const auto wanted = static_cast<std::uint64_t>(std::min(count, numel(tensor.shape)));
  const auto element_bits = static_cast<std::uint64_t>(bits(tensor.dtype));
  return std::min(tensor.bytes, (wanted * element_bits + 7) / 8);
}

std::vector<std::string> texts_of(const TensorValues& values, FloatText floats) {
  return element_texts(values.data, values.source->dtype, values.data.size(), floats);
}

} // namespace

TensorValues read_tensor_values(const ResolvedModel& view, const std::string& asked, std::int64_t count) {
  const StoredTensor& source = source_of(view, asked);
  const std::uint64_t bytes = bytes_of_first(source, count);
  TensorValues result{.asked = asked, .source = &source};
  if (bytes == 0) {
    return result;
  }
  result.data.resize(bytes);
  const SliceRead read{.fqn = view.ties.canonical(asked),
                       .stored_name = source.name,
                       .file = source.file,
                       .offset = source.offset,
                       .stored_dtype = source.dtype,
                       .range = {.first = 0, .rows = 1, .row_bytes = bytes, .stride = bytes},
                       .local_shape = {std::min(count, numel(source.shape))}};
  const ReadTarget target{.data = result.data.data(), .dtype = source.dtype};
  read_slices(view.checkpoint, {&read, 1}, {&target, 1});
  return result;
}

void print_tensor_values(const ResolvedModel& view, const TensorValues& values, const Stream& out) {
  const StoredTensor& source = *values.source;
  out.text << out.paint(Tone::kStrong, values.asked) << "  " << to_string(source.shape) << "  " << name(source.dtype)
           << "  " << format_bytes(source.bytes) << "\n";
  Table facts({left(), left()});
  if (source.name != values.asked) {
    facts.add({"tied", concat("resolves to ", source.name, ", which is stored")});
  } else if (view.ties.is_alias(values.asked)) {
    facts.add({"tied", concat("is ", view.ties.canonical(values.asked), "; this is its own stored copy")});
  }
  facts.add({"file", view.checkpoint.file_name(source)});
  facts.add({"bytes",
             concat(format_count(static_cast<std::int64_t>(source.offset)),
                    " to ",
                    format_count(static_cast<std::int64_t>(source.offset + source.bytes)),
                    " (exclusive)")});
  const std::vector<std::string> texts = texts_of(values, FloatText::kShortest);
  constexpr std::size_t kOnOneLine = 8;
  for (std::size_t begin = 0; begin < texts.size(); begin += kOnOneLine) {
    std::string line;
    for (std::size_t i = begin; i < std::min(texts.size(), begin + kOnOneLine); ++i) {
      line += concat(i == begin ? "" : "  ", texts[i]);
    }
    const std::string label = concat("first ", texts.size(), shown_as_number(source.dtype) ? "" : " (raw)");
    facts.add({begin == 0 ? label : "", line});
  }
  facts.print(out, 2);
}

OrderedJson to_json(const ResolvedModel& view, const TensorValues& values) {
  const StoredTensor& source = *values.source;
  OrderedJson numbers = OrderedJson::array();
  for (const std::string& value : texts_of(values, FloatText::kExact)) {
    const OrderedJson number = OrderedJson::parse(value, nullptr, false);
    numbers.push_back(number.is_discarded() ? OrderedJson(value) : number);
  }
  return {{"name", values.asked},
          {"canonical", view.ties.canonical(values.asked)},
          {"stored_as", source.name},
          {"dtype", name(source.dtype)},
          {"shape", source.shape},
          {"file", view.checkpoint.file_name(source)},
          {"offset", source.offset},
          {"bytes", source.bytes},
          {"values", numbers}};
}

} // namespace tieshard::cli
