#include "tieshard/cli/plan_compare.h"

#include <utility>

#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/table.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard::cli {
namespace {

const char* name_of(ShardDimPolicy policy) {
  return policy == ShardDimPolicy::kFirst ? "first" : "last";
}

std::string peak_text(const ChoiceCost& cost, const PlanLimits& limits) {
  if (!cost.peak) {
    return "not known";
  }
  return concat(format_bytes(*cost.peak),
                limits.device_bytes == 0            ? ""
                : *cost.peak <= limits.device_bytes ? ", fits"
                                                    : ", does not fit");
}

} // namespace

std::string flags_of(const PlanChoice& choice) {
  return concat("--shard-dim ",
                name_of(choice.policy),
                " --param-dtype ",
                torch_name(choice.param_dtype),
                " --compute-dtype ",
                torch_name(choice.compute_dtype),
                " --reshard-after-forward ",
                choice.reshard_after_forward ? "true" : "false");
}

void print_choices(const std::vector<ChoiceCost>& costs,
                   const PlanChoice& asked,
                   const PlanLimits& limits,
                   const Stream& out) {
  std::vector<Column> columns{left(""), right("state"), right("peak"), right("received a step")};
  if (limits.bandwidth > 0) {
    columns.push_back(right(concat("at ", format_bytes(limits.bandwidth), "/s")));
  }
  columns.push_back(left("flags"));
  Table table(columns);
  for (const ChoiceCost& cost : costs) {
    std::vector<std::string> row{cost.choice == asked ? "*" : "",
                                 format_bytes(cost.state_bytes),
                                 peak_text(cost, limits),
                                 format_bytes(cost.traffic.received())};
    if (limits.bandwidth > 0) {
      row.push_back(format_seconds(seconds_at(cost.traffic.received(), limits.bandwidth)));
    }
    row.push_back(flags_of(cost.choice));
    table.add(row);
  }
  table.print(out);
  out.text << "of the largest rank; * is this plan. state: parameters, gradients and AdamW's moments\n";
}

OrderedJson choices_document(const std::vector<ChoiceCost>& costs, const PlanLimits& limits) {
  OrderedJson entries = OrderedJson::array();
  for (const ChoiceCost& cost : costs) {
    const bool fits = cost.peak && *cost.peak <= limits.device_bytes;
    entries.push_back(
        {{"shard_dim", name_of(cost.choice.policy)},
         {"param_dtype", name(cost.choice.param_dtype)},
         {"compute_dtype", name(cost.choice.compute_dtype)},
         {"reshard_after_forward", cost.choice.reshard_after_forward},
         {"state_bytes", cost.state_bytes},
         {"peak_bytes", cost.peak ? OrderedJson(*cost.peak) : OrderedJson()},
         {"received_bytes", cost.traffic.received()},
         {"seconds",
          limits.bandwidth > 0 ? OrderedJson(seconds_at(cost.traffic.received(), limits.bandwidth)) : OrderedJson()},
         {"fits", limits.device_bytes > 0 && cost.peak ? OrderedJson(fits) : OrderedJson()},
         {"flags", flags_of(cost.choice)}});
  }
  return entries;
}

Fit fit_of(const ChoiceModel& model, const PlanChoice& asked, std::uint64_t limit) {
  Fit fit{.limit = limit, .peak = cost_of(model, asked).peak};
  if (fit.peak && !fit.fits()) {
    if (const std::optional<ChoiceCost> change = smallest_change(model, asked, limit)) {
      fit.change = flags_of(change->choice);
    }
    fit.more_ranks = ranks_that_fit(model, asked, limit, kMostRanks);
  }
  return fit;
}

void print_fit(const Fit& fit, const Stream& out) {
  if (!fit.peak) {
    out.text << "whether it fits into " << format_bytes(fit.limit) << " is not known: no formula says its peak\n";
    return;
  }
  if (fit.fits()) {
    out.text << out.paint(Tone::kGood, "fits") << ": " << format_bytes(*fit.peak) << " of " << format_bytes(fit.limit)
             << ", " << format_bytes(fit.limit - *fit.peak) << " left\n";
    return;
  }
  out.text << out.paint(Tone::kError, "does not fit") << ": " << format_bytes(*fit.peak) << " of "
           << format_bytes(fit.limit) << ", " << format_bytes(*fit.peak - fit.limit) << " too much\n";
  if (!fit.change.empty()) {
    out.text << "  fits with  " << fit.change << "\n";
  }
  if (fit.more_ranks) {
    out.text << "  fits with  --ranks " << *fit.more_ranks << "\n";
  }
  if (fit.change.empty() && !fit.more_ranks) {
    out.text << "  nothing that plan can change makes it fit: use a smaller --batch or --seq, or larger devices\n";
  }
}

OrderedJson to_json(const Fit& fit) {
  return {{"device_bytes", fit.limit},
          {"peak_bytes", fit.peak ? OrderedJson(*fit.peak) : OrderedJson()},
          {"fits", fit.peak ? OrderedJson(fit.fits()) : OrderedJson()},
          {"fits_with_flags", fit.change.empty() ? OrderedJson() : OrderedJson(fit.change)},
          {"fits_with_ranks", fit.more_ranks ? OrderedJson(*fit.more_ranks) : OrderedJson()}};
}

} // namespace tieshard::cli
