#include "tieshard/core/report/curve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/report/html.h"

namespace tieshard {
namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 220;
constexpr double kLeft = 64;
constexpr double kRight = 12;
constexpr double kTop = 12;
constexpr double kBottom = 28;
constexpr std::size_t kMostPoints = 600;

std::string number(double value, const char* format = "%.4g") {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

struct Range {
  double low = 0;
  double high = 1;
};

/// Of finite values.
std::optional<Range> range_of(const std::vector<CurvePoint>& points, const std::vector<CurvePoint>& dots) {
  std::optional<Range> range;
  for (const std::vector<CurvePoint>* list : {&points, &dots}) {
    for (const CurvePoint& point : *list) {
      if (std::isfinite(point.value)) {
        range = range ? Range{std::min(range->low, point.value), std::max(range->high, point.value)}
                      : Range{point.value, point.value};
      }
    }
  }
  return range;
}

/// One value alone gets a scale around it.
Range widened(Range range) {
  if (range.low != range.high) {
    return range;
  }
  const double half = range.low == 0 ? 1 : std::fabs(range.low) / 10;
  return {range.low - half, range.high + half};
}

/// The least and the most of each stretch.
std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points) {
  if (points.size() <= kMostPoints) {
    return points;
  }
  std::vector<CurvePoint> result;
  const std::size_t stretches = kMostPoints / 2;
  for (std::size_t s = 0; s < stretches; ++s) {
    const auto first = points.begin() + static_cast<std::ptrdiff_t>(s * points.size() / stretches);
    const auto last = points.begin() + static_cast<std::ptrdiff_t>((s + 1) * points.size() / stretches);
    const auto [least, most] =
        std::minmax_element(first, last, [](const CurvePoint& a, const CurvePoint& b) { return a.value < b.value; });
    result.push_back(least < most ? *least : *most);
    result.push_back(least < most ? *most : *least);
  }
  return result;
}

class Frame {
 public:
  Frame(Range range, std::int64_t first, std::int64_t last)
      : range_(range), first_(first), last_(std::max(last, first + 1)) {}

  double x(std::int64_t step) const {
    return kLeft + (kWidth - kLeft - kRight) * static_cast<double>(step - first_) / static_cast<double>(last_ - first_);
  }
  double y(double value) const {
    // Halves, so that no difference of two values is infinite.
    return kTop + (kHeight - kTop - kBottom) * ((range_.high / 2 - value / 2) / (range_.high / 2 - range_.low / 2));
  }
  std::string axes() const {
    std::string text;
    for (int i = 0; i <= 4; ++i) {
      const double value = range_.low / 4 * (4 - i) + range_.high / 4 * i;
      const std::string at = number(y(value), "%.1f");
      text += concat("<line class=\"axis\" x1=\"",
                     kLeft,
                     "\" x2=\"",
                     kWidth - kRight,
                     "\" y1=\"",
                     at,
                     "\" y2=\"",
                     at,
                     "\"/><text class=\"soft\" x=\"",
                     kLeft - 6,
                     "\" y=\"",
                     number(y(value) + 4, "%.1f"),
                     "\" text-anchor=\"end\">",
                     number(value, "%.3g"),
                     "</text>");
    }
    return concat(text,
                  "<text class=\"soft\" x=\"",
                  kLeft,
                  "\" y=\"",
                  kHeight - 8,
                  "\">",
                  first_,
                  "</text><text class=\"soft\" x=\"",
                  kWidth - kRight,
                  "\" y=\"",
                  kHeight - 8,
                  "\" text-anchor=\"end\">step ",
                  last_,
                  "</text>");
  }

 private:
  Range range_;
  std::int64_t first_;
  std::int64_t last_;
};

std::string path_of(const Frame& frame, const std::vector<CurvePoint>& points) {
  std::string path;
  bool drawing = false;
  for (const CurvePoint& point : points) {
    if (!std::isfinite(point.value)) {
      drawing = false;
      continue;
    }
    path += concat(drawing ? "L" : "M", number(frame.x(point.step), "%.1f"), " ", number(frame.y(point.value), "%.1f"));
    drawing = true;
  }
  return path;
}

/// What the drawing shows, in words.
std::string in_words(std::string_view name, const std::vector<CurvePoint>& points, Range range) {
  return concat(name,
                ": ",
                number(points.front().value),
                " at step ",
                points.front().step,
                ", ",
                number(points.back().value),
                " at step ",
                points.back().step,
                "; between ",
                number(range.low),
                " and ",
                number(range.high));
}

} // namespace

std::string html_curve(std::string_view name,
                       const std::vector<CurvePoint>& points,
                       const std::vector<CurvePoint>& dots) {
  const std::optional<Range> range = range_of(points, dots);
  if (points.empty() || !range) {
    return concat("<figure><figcaption>", html_text(name), ": no value yet</figcaption></figure>\n");
  }
  const Frame frame(widened(*range), points.front().step, points.back().step);
  std::string drawing = concat("<path class=\"curve\" d=\"", path_of(frame, thinned(points)), "\"/>");
  if (points.size() == 1) {
    drawing += concat("<circle class=\"fill-one\" r=\"3\" cx=\"",
                      number(frame.x(points[0].step), "%.1f"),
                      "\" cy=\"",
                      number(frame.y(points[0].value), "%.1f"),
                      "\"/>");
  }
  for (const CurvePoint& dot : dots) {
    if (std::isfinite(dot.value)) {
      drawing += concat("<circle class=\"two\" r=\"3.5\" cx=\"",
                        number(frame.x(dot.step), "%.1f"),
                        "\" cy=\"",
                        number(frame.y(dot.value), "%.1f"),
                        "\"/>");
    }
  }
  const std::string words = html_text(in_words(name, points, *range));
  return concat("<figure><svg viewBox=\"0 0 ",
                kWidth,
                " ",
                kHeight,
                "\" role=\"img\" aria-label=\"",
                words,
                "\">",
                frame.axes(),
                drawing,
                "</svg><figcaption>",
                words,
                dots.empty() ? "" : concat(". Dots: evaluations, the last ", number(dots.back().value)),
                "</figcaption></figure>\n");
}

} // namespace tieshard
