#include "tieshard/cli/load_text.h"

#include <map>

#include "tieshard/cli/element_text.h"
#include "tieshard/cli/model_view.h"
#include "tieshard/cli/table.h"
#include "tieshard/core/base/units.h"

namespace tieshard::cli {
namespace {

// Numbers as they are; what JSON has no number for (nan, inf) as a string.
OrderedJson first_values(const LocalShard& shard, std::int64_t count) {
  OrderedJson values = OrderedJson::array();
  const std::span<const std::byte> bytes(shard.data, shard.bytes);
  for (const std::string& text :
       element_texts(bytes, shard.dtype, static_cast<std::size_t>(count), FloatText::kExact)) {
    const OrderedJson number = OrderedJson::parse(text, nullptr, false);
    values.push_back(number.is_discarded() ? OrderedJson(text) : number);
  }
  return values;
}

OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

OrderedJson entry_document(const LedgerEntry& entry,
                           const LocalShard& shard,
                           const ShardedParameter& parameter,
                           std::int64_t values) {
  const bool from_file = entry.initialised.empty();
  OrderedJson document = {{"name", entry.fqn},
                          {"aliases", entry.aliases},
                          {"stored_as", text_or_null(entry.stored_name)},
                          {"file", text_or_null(entry.file)},
                          {"offset", from_file ? OrderedJson(entry.offset) : OrderedJson()},
                          {"scales", text_or_null(entry.scales)},
                          {"encoding", from_file ? OrderedJson(id(entry.encoding)) : OrderedJson()},
                          {"stored_dtype", from_file ? OrderedJson(name(entry.stored_dtype)) : OrderedJson()},
                          {"dtype", name(shard.dtype)},
                          {"shape", shard.shape},
                          {"whole_shape", parameter.shape},
                          {"dim", parameter.dim < 0 ? OrderedJson() : OrderedJson(parameter.dim)},
                          {"elements", entry.elements},
                          {"padding", entry.padding},
                          {"mapped", entry.mapped},
                          {"initialised", text_or_null(entry.initialised)},
                          {"materialized", entry.materialized}};
  if (values > 0) {
    document["values"] = first_values(shard, values);
  }
  return document;
}

// Elements of all ranks by where they came from: "plain", "mxfp4", ..., "initialised", and the padding beside them.
struct Origins {
  std::map<std::string, std::int64_t> elements;
  std::int64_t padding = 0;
  std::int64_t scaled = 0; ///< parameters whose scales were applied
};

Origins origins_of(const LoadAccount& account) {
  Origins origins;
  for (const OrderedJson& rank : account.ranks) {
    for (const OrderedJson& entry : rank["ledger"]) {
      const bool from_file = entry["initialised"].is_null();
      origins.elements[from_file ? entry["encoding"].get<std::string>() : "initialised"] +=
          entry["elements"].get<std::int64_t>();
      origins.padding += entry["padding"].get<std::int64_t>();
      origins.scaled += &rank == &account.ranks.front() && !entry["scales"].is_null() ? 1 : 0;
    }
  }
  return origins;
}

void print_ranks(const LoadAccount& account, const Stream& out) {
  Table table({right("rank"),
               right("elements"),
               right("shards"),
               right("mapped"),
               right("read"),
               right("peak"),
               right("planned"),
               right("time")});
  const auto bytes = [](const OrderedJson& rank, const char* key) { return format_bytes(rank[key]); };
  for (const OrderedJson& rank : account.ranks) {
    table.add({concat(rank["rank"].get<std::int64_t>()),
               format_count(rank["elements"]),
               bytes(rank, "shard_bytes"),
               bytes(rank, "bytes_mapped"),
               bytes(rank, "bytes_read"),
               bytes(rank, "peak_bytes"),
               bytes(rank, "predicted_bytes"),
               format_seconds(rank["seconds"])});
  }
  table.print(out);
}

void print_ledger(const LoadAccount& account, const Stream& out) {
  const Origins origins = origins_of(account);
  Table facts({left(), right(), left()});
  for (const auto& [origin, count] : origins.elements) {
    const bool initialised = origin == "initialised";
    facts.add({initialised ? "initialised" : "from files", format_count(count), initialised ? "" : origin});
  }
  facts.add({"padding", format_count(origins.padding), "added to smaller parts by a collective"});
  if (origins.scaled > 0) {
    facts.add({"scales", format_count(origins.scaled), "tensors applied to their weights, and not kept"});
  }
  facts.add({"unused", format_count(static_cast<std::int64_t>(account.unused.size())), format_names(account.unused)});
  facts.print(out, 2);
}

} // namespace

OrderedJson rank_document(const LocalShards& loaded,
                          const ShardPlan& plan,
                          const RankMeasure& measure,
                          std::int64_t values) {
  OrderedJson entries = OrderedJson::array();
  std::int64_t initialised = 0;
  std::int64_t padding = 0;
  for (std::size_t i = 0; i < loaded.shards.size(); ++i) {
    const LedgerEntry& entry = loaded.ledger.entries[i];
    entries.push_back(entry_document(entry, loaded.shards[i], *plan.find(entry.fqn), values));
    initialised += entry.initialised.empty() ? 0 : entry.elements;
    padding += entry.padding;
  }
  return {{"rank", measure.rank},
          {"seconds", measure.seconds},
          {"peak_bytes", measure.peak_bytes},
          {"predicted_bytes", loaded.ledger.predicted_bytes},
          {"shard_bytes", loaded.ledger.shard_bytes},
          {"bytes_read", loaded.ledger.bytes_read},
          {"bytes_mapped", loaded.ledger.bytes_mapped},
          {"elements", loaded.ledger.elements()},
          {"initialised", initialised},
          {"padding", padding},
          {"findings", to_json(loaded.ledger.findings)},
          {"ledger", entries}};
}

OrderedJson load_document(const LoadAccount& account) {
  const ResolvedModel& model = account.model;
  return {{"architecture", architecture_name(model.checkpoint.config())},
          {"family", model.family == nullptr ? OrderedJson() : OrderedJson(model.family->name())},
          {"ranks", account.plan.ranks()},
          {"shard_dim", account.shard_dim},
          {"parameters", account.plan.total_numel()},
          {"ties", to_json(model.ties.groups())},
          {"unused", account.unused},
          {"findings", to_json(account.findings)},
          {"per_rank", account.ranks}};
}

void print_load(const LoadAccount& account, const Stream& out) {
  out.text << out.paint(Tone::kStrong, architecture_name(account.model.checkpoint.config())) << ", "
           << format_parameters(account.plan.total_numel()) << " parameters in "
           << counted(account.plan.parameters().size(), "tensor") << "; "
           << counted(static_cast<std::size_t>(account.plan.ranks()), "rank") << ", shard dim: " << account.shard_dim
           << "\n\n";
  print_ranks(account, out);
  out.text << "\n";
  print_ledger(account, out);
}

} // namespace tieshard::cli
