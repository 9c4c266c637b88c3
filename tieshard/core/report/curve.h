// tieshard/core/report/curve.h
//
// A number over the steps of a run, drawn.
//
// Flow: run_report -> [this] -> html

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

struct CurvePoint {
  std::int64_t step = 0;
  double value = 0;
};

/// A figure with axes in numbers, and the first, last, least and most as text for those who do not see it. Values that
/// are not finite leave a gap. Of more than 600 points the least and the most of each stretch are drawn, so that no
/// spike is lost.
/// @param points  steps ascending
/// @param dots    drawn as dots over the curve: evaluations
std::string html_curve(std::string_view name,
                       const std::vector<CurvePoint>& points,
                       const std::vector<CurvePoint>& dots = {});

} // namespace tieshard
