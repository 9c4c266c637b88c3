#include "tieshard/core/report/model_report.h"

#include <utility>
#include <vector>

#include "tieshard/core/base/units.h"
#include "tieshard/core/report/bars.h"
#include "tieshard/core/report/findings.h"
#include "tieshard/core/report/html.h"
#include "tieshard/core/report/page.h"
#include "tieshard/core/report/tie_drawing.h"

namespace tieshard {
namespace {

std::string verdict_html(const DoctorReport& report, std::int64_t ranks) {
  const std::string on = concat(" on ", number_of(static_cast<std::size_t>(ranks), "rank"));
  switch (report.verdict()) {
    case Verdict::kOk:
      return concat("<p>", html_badge("good", "ok"), " It loads", on, ".</p>\n");
    case Verdict::kWarn:
      return concat("<p>", html_badge("warning", "warn"), " It loads", on, ", with warnings.</p>\n");
    case Verdict::kRefuse:
      return concat("<p>", html_badge("error", "refuse"), " It does not load.</p>\n");
  }
  return {};
}

std::string fact(const char* name, const std::string& value) {
  return concat("<div><dt>", name, "</dt><dd>", html_name(value, 60), "</dd></div>\n");
}

std::string facts_html(const DoctorReport& report, std::int64_t ranks) {
  std::string text = "<dl class=\"facts\">\n";
  text += fact("architecture", report.architecture.empty() ? "not said" : report.architecture);
  text += fact("parameters", report.parameters > 0 ? format_parameters(report.parameters) : "not known");
  text += fact("tensors stored", format_count(static_cast<std::int64_t>(report.tensors)));
  text += fact("stored in", concat(number_of(report.files, "file"), ", ", format_bytes(report.stored_bytes)));
  text += fact("ranks", format_count(ranks));
  if (report.values.not_read > 0) {
    text += fact("values looked at",
                 concat(format_bytes(report.values.looked_at),
                        " of ",
                        format_bytes(report.values.looked_at + report.values.not_read)));
  }
  return text + "</dl>\n";
}

/// Units that follow each other and are of one size are one bar.
std::vector<Bar> unit_bars(const std::vector<UnitBytes>& units) {
  std::vector<Bar> bars;
  for (std::size_t i = 0; i < units.size();) {
    std::size_t end = i + 1;
    while (end < units.size() && units[end].bytes == units[i].bytes &&
           units[end].expert_bytes == units[i].expert_bytes) {
      ++end;
    }
    const std::string first = units[i].name.empty() ? "(root)" : units[i].name;
    Bar bar{.label = end - i == 1 ? first : concat(first, " to ", units[end - 1].name), .bytes = units[i].bytes};
    if (end - i > 1) {
      bar.detail = concat("each of ", end - i);
    }
    if (units[i].expert_bytes > 0) {
      bar.detail += concat(bar.detail.empty() ? "" : ", ", format_bytes(units[i].expert_bytes), " of experts");
    }
    bars.push_back(std::move(bar));
    i = end;
  }
  return bars;
}

std::vector<Bar> rank_bars(const std::vector<RankBytes>& ranks) {
  std::vector<Bar> bars;
  for (const RankBytes& rank : ranks) {
    bars.push_back({.label = rank.first == rank.last ? concat("rank ", rank.first)
                                                     : concat("ranks ", rank.first, " to ", rank.last),
                    .bytes = rank.memory_bytes,
                    .detail = concat(format_count(rank.elements), " elements, reads ", format_bytes(rank.read_bytes))});
  }
  return bars;
}

std::string memory_html(const DoctorReport& report, const ModelReportOptions& options) {
  const Bar bar{.label = "a load adds to the largest rank",
                .bytes = report.load_bytes,
                .detail = "shards, buffers and the account"};
  return html_bars("Memory of a load", {bar}, options.host_ram.value_or(0));
}

} // namespace

std::string model_report(const DoctorReport& report, const ModelReportOptions& options) {
  std::string body = html_section("Findings", html_findings(report.findings));
  if (report.files > 0) {
    body += html_section("Ties", html_ties(report.ties));
  }
  if (!report.units.empty()) {
    body +=
        html_section("Bytes by unit",
                     concat("<p>What is gathered together: the root throughout, each other unit while it runs.</p>\n",
                            html_bars("Bytes by unit", unit_bars(report.units))));
  }
  if (!report.ranks.empty()) {
    body += html_section("Bytes by rank", html_bars("Bytes by rank", rank_bars(report.ranks)));
    body += html_section("Memory", memory_html(report, options));
  }
  return html_page(options.title, verdict_html(report, options.ranks) + facts_html(report, options.ranks), body);
}

} // namespace tieshard
