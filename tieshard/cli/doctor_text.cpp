#include "tieshard/cli/doctor_text.h"

#include <algorithm>

#include "tieshard/cli/model_view.h"
#include "tieshard/cli/report.h"
#include "tieshard/cli/table.h"
#include "tieshard/core/base/units.h"

namespace tieshard::cli {
namespace {

std::size_t count_of(const DoctorReport& report, Level level) {
  return static_cast<std::size_t>(
      std::ranges::count(report.findings, level, [](const Diagnostic& finding) { return finding.level; }));
}

void print_summary(const DoctorReport& report, const Stream& out) {
  out.text << out.paint(Tone::kStrong, report.architecture.empty() ? "a checkpoint" : report.architecture)
           << (report.family.empty() ? " (not known to tieshard)" : "") << ": ";
  if (report.parameters > 0) {
    out.text << format_parameters(report.parameters) << " parameters; ";
  }
  out.text << counted(report.tensors, "tensor") << " stored in " << counted(report.files, "file") << ", "
           << format_bytes(report.stored_bytes) << "\n";
}

void print_ties(const DoctorReport& report, const Stream& out) {
  Table table({left(), left()});
  for (const TieGroup& group : report.ties) {
    for (const TieAlias& alias : group.aliases) {
      table.add({"tied", concat(alias.name, " = ", group.canonical, "  (", alias.reasons.front().text, ")")});
    }
  }
  table.print(out, 2);
}

void print_ranks(const DoctorReport& report, const Stream& out) {
  Table table({left("ranks"), right("elements"), right("shards"), right("reads")});
  for (const RankBytes& rank : report.ranks) {
    table.add({rank.first == rank.last ? concat(rank.first) : concat(rank.first, "-", rank.last),
               format_count(rank.elements),
               format_bytes(rank.memory_bytes),
               format_bytes(rank.read_bytes)});
  }
  table.print(out, 2);
}

void print_values(const DoctorReport& report, const Stream& out) {
  if (report.values.not_read > 0) {
    out.text << concat("  values: ",
                       format_bytes(report.values.looked_at),
                       " looked at, ",
                       format_bytes(report.values.not_read),
                       " not read (--deep reads all)\n");
  }
}

void print_verdict(const DoctorReport& report, std::int64_t ranks, const Stream& out) {
  const std::string ranks_text = counted(static_cast<std::size_t>(ranks), "rank");
  switch (report.verdict()) {
    case Verdict::kOk:
      out.text << out.paint(Tone::kGood, "ok") << ": loads on " << ranks_text << "\n";
      return;
    case Verdict::kWarn:
      out.text << out.paint(Tone::kWarning, "warn") << ": loads on " << ranks_text << ", with "
               << counted(count_of(report, Level::kWarning), "warning") << "\n";
      return;
    case Verdict::kRefuse:
      out.text << out.paint(Tone::kError, "refuse") << ": does not load, "
               << counted(count_of(report, Level::kError), "error") << "\n";
      return;
  }
}

} // namespace

void print_doctor(const DoctorReport& report, std::int64_t ranks, const Stream& out) {
  if (report.files > 0) {
    print_summary(report, out);
    print_ties(report, out);
    print_ranks(report, out);
    print_values(report, out);
    out.text << "\n";
  }
  print_findings(out, report.findings);
  if (!report.findings.empty()) {
    out.text << "\n";
  }
  print_verdict(report, ranks, out);
}

OrderedJson doctor_document(const DoctorReport& report, std::int64_t ranks) {
  OrderedJson per_rank = OrderedJson::array();
  for (const RankBytes& rank : report.ranks) {
    per_rank.push_back({{"first", rank.first},
                        {"last", rank.last},
                        {"elements", rank.elements},
                        {"shard_bytes", rank.memory_bytes},
                        {"read_bytes", rank.read_bytes}});
  }
  return {{"verdict", id(report.verdict())},
          {"findings", to_json(report.findings)},
          {"ties", to_json(report.ties)},
          {"architecture", report.architecture},
          {"family", report.family.empty() ? OrderedJson() : OrderedJson(report.family)},
          {"files", report.files},
          {"tensors", report.tensors},
          {"stored_bytes", report.stored_bytes},
          {"parameters", report.parameters},
          {"values", {{"looked_at_bytes", report.values.looked_at}, {"not_read_bytes", report.values.not_read}}},
          {"ranks", ranks},
          {"per_rank", per_rank}};
}

} // namespace tieshard::cli
