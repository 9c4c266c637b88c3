#include "tieshard/core/report/run_report.h"

#include <cmath>
#include <cstdio>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/report/bars.h"
#include "tieshard/core/report/curve.h"
#include "tieshard/core/report/html.h"
#include "tieshard/core/report/page.h"

namespace tieshard {
namespace {

constexpr std::size_t kMostEvents = 500;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.5g", value);
  return std::isfinite(value) ? text : "not finite";
}

template <typename Value>
std::vector<CurvePoint> points_of(const std::vector<RunStep>& steps, const Value& value) {
  std::vector<CurvePoint> points;
  points.reserve(steps.size());
  for (const RunStep& step : steps) {
    points.push_back({.step = step.step, .value = value(step)});
  }
  return points;
}

double rate_of(const RunStep& step) {
  return step.seconds > 0 ? static_cast<double>(step.tokens) / step.seconds : NAN;
}

std::string fact(const char* name, const std::string& value) {
  return concat("<div><dt>", name, "</dt><dd>", html_text(value), "</dd></div>\n");
}

std::string lead_html(const RunFiles& run) {
  std::string text =
      concat("<p>",
             run.finished ? html_badge("good", "ended") : html_badge("note", "no end yet"),
             run.finished ? " The last job wrote its summary." : " It runs, or was killed: there is no summary.",
             "</p>\n<dl class=\"facts\">\n");
  if (!run.steps.empty()) {
    double seconds = 0;
    std::int64_t tokens = 0;
    for (const RunStep& step : run.steps) {
      seconds += std::isfinite(step.seconds) ? step.seconds : 0;
      tokens += step.tokens;
    }
    text += fact("steps", format_count(run.steps.back().step));
    text += fact("first loss", number(run.steps.front().loss));
    text += fact("last loss", number(run.steps.back().loss));
    text += fact("tokens", format_count(tokens));
    text += fact("in steps", format_seconds(seconds));
    text += fact(
        "tokens a second",
        seconds > 0 ? format_count(static_cast<std::int64_t>(static_cast<double>(tokens) / seconds)) : "not known");
  }
  return text + "</dl>\n";
}

std::string curves_html(const RunFiles& run) {
  std::vector<CurvePoint> evaluations;
  for (const RunStep& step : run.steps) {
    if (step.eval_loss) {
      evaluations.push_back({.step = step.step, .value = *step.eval_loss});
    }
  }
  return concat("<div class=\"grid\">\n",
                html_curve("Loss", points_of(run.steps, [](const RunStep& s) { return s.loss; }), evaluations),
                html_curve("Gradient norm", points_of(run.steps, [](const RunStep& s) { return s.grad_norm; })),
                html_curve("Learning rate", points_of(run.steps, [](const RunStep& s) { return s.lr; })),
                html_curve("Tokens a second", points_of(run.steps, rate_of)),
                "</div>\n");
}

std::string memory_html(const RunFiles& run) {
  std::vector<Bar> bars;
  for (const RunRank& rank : run.ranks) {
    bars.push_back({.label = concat("rank ", rank.rank),
                    .bytes = rank.peak,
                    .detail = concat(format_bytes(rank.after_load), " when it was loaded")});
  }
  return bars.empty() ? "<p>A run says it at its end.</p>\n" : html_bars("Peak resident memory by rank", bars);
}

std::string events_html(const RunFiles& run) {
  HtmlTable table{.caption = "Events", .columns = {"step", "what"}, .numbers_from = 2};
  const std::size_t skipped = run.events.size() > kMostEvents ? run.events.size() - kMostEvents : 0;
  for (std::size_t i = skipped; i < run.events.size(); ++i) {
    table.rows.push_back({format_count(run.events[i].step), html_text(run.events[i].what)});
  }
  std::string text = run.events.empty() ? "<p>None.</p>\n" : to_html(table);
  if (skipped > 0) {
    text += concat("<p>The last ", kMostEvents, " of ", run.events.size(), ".</p>\n");
  }
  if (run.bad_lines > 0) {
    text += concat("<p>",
                   number_of(run.bad_lines, "line"),
                   " of metrics.jsonl ",
                   run.bad_lines == 1 ? "is" : "are",
                   " no step: torn, as a kill leaves them.</p>\n");
  }
  return text;
}

std::string flags_html(const RunFiles& run) {
  HtmlTable table{.caption = "Flags of the run", .columns = {"flag", "value"}, .numbers_from = 2};
  for (const auto& [key, value] : run.flags) {
    table.rows.push_back({html_name(key), concat("<span class=\"name\">", html_name(value, 200), "</span>")});
  }
  return run.flags.empty() ? "<p>The run has left no config.json.</p>\n" : html_details("All flags", to_html(table));
}

} // namespace

std::string run_report(const RunFiles& run, const std::string& title) {
  return html_page(title,
                   lead_html(run),
                   html_section("Steps", run.steps.empty() ? "<p>No step has ended yet.</p>\n" : curves_html(run)) +
                       html_section("Memory", memory_html(run)) + html_section("Events", events_html(run)) +
                       html_section("Flags", flags_html(run)));
}

void write_run_report(const std::filesystem::path& directory) {
  write_text_file(directory / "report.html", run_report(read_run(directory), directory.string()));
}

} // namespace tieshard
