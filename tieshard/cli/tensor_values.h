// tieshard/cli/tensor_values.h
//
// The first values of one tensor, read as the loader reads them.
//
// Flow: inspect -> [this] -> ties, io/reader.h

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tieshard/cli/json_output.h"
#include "tieshard/cli/model_view.h"

namespace tieshard::cli {

/// The first elements of a stored tensor, as their bytes in the file.
struct TensorValues {
  std::string asked;                    ///< the name that was asked for
  const StoredTensor* source = nullptr; ///< the stored tensor that gives it its bytes; never null
  std::vector<std::byte> data{};
};

/// Reads the first `count` elements (fewer when the tensor is smaller) through io/reader.h. An alias that is not stored
/// is read from the name that owns its storage.
///
/// @throws InputError unknown-parameter (with the closest names), missing-parameter when the name is known but neither
///         it nor a name that it is tied to is stored
TensorValues read_tensor_values(const ResolvedModel& view, const std::string& asked, std::int64_t count);

void print_tensor_values(const ResolvedModel& view, const TensorValues& values, const Stream& out);

/// {"name", "canonical", "stored_as", "dtype", "shape", "file", "offset", "bytes", "values"}; numbers that JSON cannot
/// hold (nan, inf) and hexadecimal bytes are strings.
OrderedJson to_json(const ResolvedModel& view, const TensorValues& values);

} // namespace tieshard::cli
