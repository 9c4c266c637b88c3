// tieshard/core/io/overflow.h
//
// What a conversion made infinite: counted, so that it can be said.
//
// Flow: convert, finite -> [this] -> runtime/state, core/state

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/base/error.h"

namespace tieshard {

/// Elements that are finite in `source` and are not in `target`, which convert() made of it. Costs a look at `target`
/// where there are none. Neither pointer needs alignment. 0 where `to` is no narrower than `from`.
std::int64_t count_overflowed(
    const std::byte* source, DType from, const std::byte* target, DType to, std::size_t count);

/// not-finite, of an export: `overflowed` has the number of such values by tensor, and is not empty.
Diagnostic overflow_finding(Level level,
                            const std::map<std::string, std::int64_t>& overflowed,
                            const std::string& where);

} // namespace tieshard
