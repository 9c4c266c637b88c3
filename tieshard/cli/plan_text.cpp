#include "tieshard/cli/plan_text.h"

#include <utility>

#include "tieshard/cli/name_pattern.h"
#include "tieshard/cli/table.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/families/expert_names.h"

namespace tieshard::cli {
namespace {

DType memory_dtype(const ShardPlan& plan) {
  return plan.parameters().empty() ? DType::kF32 : plan.parameters().front().dtype;
}

// "39, 38"; from five ranks on "7 x 10, 1 x 7".
std::string part_sizes_text(const ShardPlan& plan, const ShardedParameter& parameter) {
  const bool each = plan.ranks() <= 4;
  std::string text;
  for (const ChunkRun& run : plan.runs(parameter)) {
    for (std::int64_t i = 0; i < (each ? run.count : 1); ++i) {
      text +=
          concat(text.empty() ? "" : ", ", each ? "" : concat(format_count(run.count), " x "), format_count(run.size));
    }
  }
  return text;
}

// "3"; "0-7".
std::string numbers_text(std::int64_t first, std::int64_t last) {
  return first == last ? std::to_string(first) : concat(first, "-", last);
}

std::string times(std::size_t count, const std::string& text) {
  return count == 1 ? text : concat(count, " x ", text);
}

struct UnitSize {
  std::int64_t whole = 0;     ///< elements when gathered
  std::int64_t experts = 0;   ///< the part of them that is of experts
  std::int64_t on_rank_0 = 0; ///< elements of the largest part
};

UnitSize size_of(const ShardPlan& plan, const PlanUnit& unit) {
  UnitSize size;
  for (const std::size_t i : unit.parameters) {
    const std::int64_t elements = numel(plan.parameters()[i].shape);
    size.whole += elements;
    size.experts += is_expert_weight(plan.parameters()[i].fqn) ? elements : 0;
    size.on_rank_0 += numel(plan.local_shape(plan.parameters()[i], 0));
  }
  return size;
}

UnitSize size_of(const ShardPlan& plan) {
  UnitSize all;
  for (const PlanUnit& unit : plan.units()) {
    const UnitSize size = size_of(plan, unit);
    all.whole += size.whole;
    all.experts += size.experts;
    all.on_rank_0 += size.on_rank_0;
  }
  return all;
}

void print_units(const ShardPlan& plan, const Stream& out) {
  std::vector<std::string> names;
  for (const PlanUnit& unit : plan.units()) {
    names.push_back(unit.name.empty() ? "(root)" : unit.name);
  }
  const auto kind = [&](std::size_t u) {
    std::string text;
    for (const std::size_t i : plan.units()[u].parameters) {
      text += concat(to_string(plan.parameters()[i].shape), plan.parameters()[i].dim, " ");
    }
    return text;
  };
  const DType dtype = memory_dtype(plan);
  const bool has_experts = size_of(plan).experts > 0;
  std::vector<Column> columns{left("unit"),
                              right("tensors"),
                              right("parameters"),
                              right(concat("gathered (", name(dtype), ")")),
                              right("on rank 0")};
  if (has_experts) {
    columns.push_back(right("experts, gathered"));
  }
  Table table(columns);
  for (const NameGroup& group : fold_names(names, kind)) {
    const PlanUnit& unit = plan.units()[group.members.front()];
    const UnitSize size = size_of(plan, unit);
    const std::size_t count = group.members.size();
    std::vector<std::string> row{group.pattern,
                                 times(count, std::to_string(unit.parameters.size())),
                                 times(count, format_parameters(size.whole)),
                                 times(count, format_bytes(bytes_in_memory(size.whole, dtype))),
                                 times(count, format_bytes(bytes_in_memory(size.on_rank_0, dtype)))};
    if (has_experts) {
      row.push_back(times(count, format_bytes(bytes_in_memory(size.experts, dtype))));
    }
    table.add(row);
  }
  table.print(out);
}

void print_ranks(const ShardPlan& plan, const PlanSummary& summary, const Stream& out) {
  const std::string_view dtype = name(memory_dtype(plan));
  const std::string_view moments = name(bits(memory_dtype(plan)) < 32 ? DType::kF32 : memory_dtype(plan));
  Table table({left(summary.ranks.size() == 1 && plan.ranks() > 1 ? "each rank" : "rank"),
               right("elements"),
               right(concat("parameters (", dtype, ")")),
               right(concat("gradients (", dtype, ")")),
               right(concat("AdamW (2 x ", moments, ")")),
               right("total"),
               right("read from files")});
  for (const RankBytes& rank : summary.ranks) {
    table.add({numbers_text(rank.first, rank.last),
               format_count(rank.elements),
               format_bytes(rank.memory_bytes),
               format_bytes(rank.memory_bytes),
               format_bytes(adamw_bytes(rank)),
               format_bytes(training_bytes(rank)),
               format_bytes(rank.read_bytes)});
  }
  table.print(out);
}

void print_hosts(const PlanSummary& summary, const Stream& out) {
  Table table({left(summary.hosts.size() == 1 && summary.hosts.front().last > 0 ? "each host" : "host"),
               right("ranks"),
               right("read from files")});
  for (const HostBytes& host : summary.hosts) {
    table.add({numbers_text(host.first, host.last), format_count(host.ranks), format_bytes(host.read_bytes)});
  }
  table.print(out);
}

// Rows "label  pattern  dim 1 of 77: 39, 38" for parameters that need a word.
void add_parts(Table& facts, const std::string& label, const ShardPlan& plan, const std::vector<std::size_t>& which) {
  if (which.empty()) {
    facts.add({label, "none"});
    return;
  }
  std::vector<std::string> names;
  names.reserve(which.size());
  for (const std::size_t i : which) {
    names.push_back(plan.parameters()[i].fqn);
  }
  const auto kind = [&](std::size_t i) {
    const ShardedParameter& parameter = plan.parameters()[which[i]];
    return concat(to_string(parameter.shape), parameter.dim);
  };
  bool first = true;
  for (const NameGroup& group : fold_names(names, kind)) {
    const ShardedParameter& parameter = plan.parameters()[which[group.members.front()]];
    std::string detail = to_string(parameter.shape);
    if (parameter.dim >= 0) {
      detail = concat("dim ", parameter.dim, " of ", detail, " in ", part_sizes_text(plan, parameter));
    }
    facts.add({first ? label : "", group.pattern, detail});
    first = false;
  }
}

void print_facts(const ShardPlan& plan, const PlanSummary& summary, const Stream& out) {
  Table facts({left(), left(), left()});
  for (const TieGroup& group : plan.ties().groups()) {
    const ShardedParameter* parameter = plan.find(group.canonical);
    if (parameter == nullptr) {
      continue;
    }
    std::string names = group.canonical;
    for (const TieAlias& alias : group.aliases) {
      names += concat(" = ", alias.name);
    }
    const std::string& unit = plan.units()[parameter->unit].name;
    facts.add({"tied",
               names,
               concat("dim ",
                      parameter->dim,
                      " (last) of ",
                      to_string(parameter->shape),
                      ", unit ",
                      unit.empty() ? "(root)" : unit)});
  }
  if (const UnitSize all = size_of(plan); all.experts > 0) {
    facts.add({"experts",
               concat(format_parameters(all.experts), " of ", format_parameters(all.whole), " parameters"),
               concat(format_bytes(bytes_in_memory(all.experts, memory_dtype(plan))),
                      " (",
                      name(memory_dtype(plan)),
                      "), of which rank 0 holds ",
                      format_bytes(summary.ranks.front().expert_bytes))});
  }
  add_parts(facts, "uneven", plan, summary.uneven);
  add_parts(facts, "empty", plan, summary.empty);
  add_parts(facts, "replicated", plan, summary.replicated);
  facts.print(out);
}

// "12.0 MiB by all_gather, 3.0 MiB by reduce_scatter"; "12.0 MiB (1.2 s) by ..." at a bandwidth.
std::string traffic_text(const StepTraffic& step, std::uint64_t bandwidth) {
  const auto part = [&](std::uint64_t bytes, const char* how) {
    const std::string time = bandwidth == 0 ? "" : concat(" (", format_seconds(seconds_at(bytes, bandwidth)), ")");
    return concat(format_bytes(bytes), time, " by ", how);
  };
  std::string text = concat("a rank receives ",
                            part(step.all_gather_bytes, "all_gather"),
                            " and ",
                            part(step.reduce_scatter_bytes, "reduce_scatter"));
  if (step.all_reduce_bytes > 0) {
    text += concat(", and ", part(step.all_reduce_bytes, "all_reduce between replicas"));
  }
  return text;
}

void print_step(const ShardPlan& plan, const StepTraffic& step, std::uint64_t bandwidth, const Stream& out) {
  const std::string dtype = concat(" (", name(memory_dtype(plan)), ")");
  Table table({left(), left()});
  table.add({"each step", traffic_text(step, bandwidth) + dtype});
  if (2 * step.padding_bytes > step.all_gather_bytes + step.reduce_scatter_bytes) {
    table.add({"",
               concat(format_bytes(step.padding_bytes),
                      " of it is padding, since ranks outnumber what the sharded dimension divides into: another "
                      "--shard-dim, or fewer ranks")});
  }
  if (bandwidth > 0) {
    table.add({"",
               concat(format_seconds(seconds_at(step.received(), bandwidth)),
                      " together at ",
                      format_bytes(bandwidth),
                      "/s by rings, without latency and without what computation hides")});
  }
  table.add({"in flight",
             concat("a rank holds at most ",
                    format_bytes(step.in_flight_bytes),
                    " of gathered parameters",
                    dtype,
                    ": the root and one more unit")});
  table.print(out);
}

OrderedJson names_of(const ShardPlan& plan, const std::vector<std::size_t>& which) {
  OrderedJson names = OrderedJson::array();
  for (const std::size_t i : which) {
    names.push_back(plan.parameters()[i].fqn);
  }
  return names;
}

OrderedJson parameter_entries(const ShardPlan& plan) {
  OrderedJson entries = OrderedJson::array();
  for (const ShardedParameter& parameter : plan.parameters()) {
    OrderedJson parts = OrderedJson::array();
    for (const ChunkRun& run : plan.runs(parameter)) {
      parts.push_back({{"first_rank", run.first}, {"ranks", run.count}, {"offset", run.offset}, {"size", run.size}});
    }
    entries.push_back({{"name", parameter.fqn},
                       {"aliases", plan.ties().aliases(parameter.fqn)},
                       {"shape", parameter.shape},
                       {"dim", parameter.dim < 0 ? OrderedJson() : OrderedJson(parameter.dim)},
                       {"unit", plan.units()[parameter.unit].name},
                       {"parts", parts}});
  }
  return entries;
}

OrderedJson unit_entries(const ShardPlan& plan) {
  OrderedJson entries = OrderedJson::array();
  for (const PlanUnit& unit : plan.units()) {
    const UnitSize size = size_of(plan, unit);
    entries.push_back({{"name", unit.name},
                       {"parameters", names_of(plan, unit.parameters)},
                       {"elements", size.whole},
                       {"gathered_bytes", bytes_in_memory(size.whole, memory_dtype(plan))},
                       {"expert_bytes", bytes_in_memory(size.experts, memory_dtype(plan))}});
  }
  return entries;
}

OrderedJson rank_entries(const PlanSummary& summary) {
  OrderedJson entries = OrderedJson::array();
  for (const RankBytes& group : summary.ranks) {
    for (std::int64_t rank = group.first; rank <= group.last; ++rank) {
      entries.push_back({{"rank", rank},
                         {"elements", group.elements},
                         {"parameter_bytes", group.memory_bytes},
                         {"expert_bytes", group.expert_bytes},
                         {"gradient_bytes", group.memory_bytes},
                         {"adamw_bytes", adamw_bytes(group)},
                         {"total_bytes", training_bytes(group)},
                         {"read_bytes", group.read_bytes},
                         {"init_bytes", group.init_bytes}});
    }
  }
  return entries;
}

OrderedJson host_entries(const PlanSummary& summary) {
  OrderedJson entries = OrderedJson::array();
  for (const HostBytes& group : summary.hosts) {
    for (std::int64_t host = group.first; host <= group.last; ++host) {
      entries.push_back({{"host", host}, {"ranks", group.ranks}, {"read_bytes", group.read_bytes}});
    }
  }
  return entries;
}

} // namespace

void print_plan(const ResolvedModel& view,
                const ShardPlan& plan,
                const PlanSummary& summary,
                const std::string& shard_dim,
                std::uint64_t bandwidth,
                const Stream& out) {
  out.text << out.paint(Tone::kStrong, architecture_name(view.checkpoint.config())) << ", "
           << format_parameters(plan.total_numel()) << " parameters in " << counted(plan.parameters().size(), "tensor")
           << ", " << counted(plan.ties().groups().size(), "tie group") << "; "
           << counted(static_cast<std::size_t>(plan.ranks()), "rank") << ", shard dim: " << shard_dim << "\n\n";
  print_units(plan, out);
  out.text << "\n";
  print_ranks(plan, summary, out);
  out.text << "\n";
  print_hosts(summary, out);
  out.text << "\n";
  print_facts(plan, summary, out);
  out.text << "\n";
  print_step(plan, summary.step, bandwidth, out);
}

void print_parameters(const ShardPlan& plan, const Stream& out) {
  Table table({left("parameter"), left("shape"), right("dim"), left("parts by rank")});
  for (const ShardedParameter& parameter : plan.parameters()) {
    const bool replicated = parameter.dim < 0;
    table.add({parameter.fqn,
               to_string(parameter.shape),
               replicated ? "" : std::to_string(parameter.dim),
               replicated ? "replicated" : part_sizes_text(plan, parameter)});
  }
  table.print(out);
}

OrderedJson plan_document(const ResolvedModel& view,
                          const ShardPlan& plan,
                          const PlanSummary& summary,
                          const std::string& shard_dim,
                          std::uint64_t bandwidth,
                          const std::vector<Diagnostic>& findings) {
  return {{"architecture", view.checkpoint.config().architecture()},
          {"ranks", plan.ranks()},
          {"shard_dim", shard_dim},
          {"param_dtype", name(memory_dtype(plan))},
          {"elements", plan.total_numel()},
          {"expert_bytes", bytes_in_memory(size_of(plan).experts, memory_dtype(plan))},
          {"parameters", parameter_entries(plan)},
          {"units", unit_entries(plan)},
          {"per_rank", rank_entries(summary)},
          {"per_host", host_entries(summary)},
          {"step",
           {{"all_gather_bytes", summary.step.all_gather_bytes},
            {"reduce_scatter_bytes", summary.step.reduce_scatter_bytes},
            {"all_reduce_bytes", summary.step.all_reduce_bytes},
            {"in_flight_bytes", summary.step.in_flight_bytes},
            {"seconds", bandwidth == 0 ? OrderedJson() : OrderedJson(seconds_at(summary.step.received(), bandwidth))}}},
          {"groups", to_json(plan.ties().groups())},
          {"uneven", names_of(plan, summary.uneven)},
          {"empty", names_of(plan, summary.empty)},
          {"replicated", names_of(plan, summary.replicated)},
          {"findings", to_json(findings)}};
}

} // namespace tieshard::cli
