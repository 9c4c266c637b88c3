#include "tieshard/cli/model_flags.h"

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/core/base/units.h"

namespace tieshard::cli {
namespace {

InputError bad_value(const std::string& flag, const std::string& expected, const std::string& got, std::string fix) {
  return InputError({.code = Code::kBadFlag,
                     .what = "a command line flag has a value that cannot be used",
                     .where = flag,
                     .why = concat("expected ", expected, ", got ", got),
                     .fix = std::move(fix)});
}

OnTieConflict conflict_rule(const std::string& word) {
  return word == "error"       ? OnTieConflict::kError
         : word == "canonical" ? OnTieConflict::kCanonical
         : word == "alias"     ? OnTieConflict::kAlias
                               : OnTieConflict::kUntie;
}

void add_word(CLI::App& verb,
              const std::string& flag,
              std::string& value,
              const std::vector<std::string>& words,
              const std::string& help) {
  std::string shown;
  for (const std::string& word : words) {
    shown += concat(shown.empty() ? "" : "|", word);
  }
  verb.add_option(flag, value, help)->type_name(shown)->check(one_of(words));
}

} // namespace

ResolveOptions OpenFlags::options() const {
  ResolveOptions result;
  result.ties = {.explicit_ties = declared_ties(ties), .untied = untied, .on_conflict = conflict_rule(on_tie_conflict)};
  result.rename = !no_rename;
  if (!max_header_bytes.empty()) {
    result.limits.max_header_bytes = size_flag("--max-header-bytes", max_header_bytes);
  }
  return result;
}

ShardDimPolicy ShardFlags::policy() const {
  return shard_dim == "first" ? ShardDimPolicy::kFirst : ShardDimPolicy::kLast;
}

std::optional<DType> ShardFlags::dtype() const {
  return param_dtype.empty() ? std::nullopt : std::optional(dtype_flag("--param-dtype", param_dtype));
}

WeightSourceOptions LoadFlags::sources() const {
  WeightSourceOptions result;
  for (const std::string& init : inits) {
    const std::size_t equals = init.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == init.size()) {
      throw bad_value("--init", "NAME=RULE", init, "write --init lm_head.weight='normal(0.02)'");
    }
    result.inits.push_back({.fqn = init.substr(0, equals), .rule = InitRule::parse(init.substr(equals + 1))});
  }
  return result;
}

LocalShardOptions LoadFlags::options() const {
  LocalShardOptions result;
  if (!read_buffer.empty()) {
    result.read_buffer = size_flag("--read-buffer", read_buffer);
  }
  if (!host_ram.empty()) {
    result.host_ram = size_flag("--host-ram-per-rank", host_ram);
  }
  result.map = !no_mmap;
  result.check_values = !no_check_values;
  return result;
}

void add_open_flags(CLI::App& verb, OpenFlags& flags) {
  add_repeated(
      verb, "--tie", flags.ties, "ALIAS=CANONICAL", "Declare a tie beside those of config.json (may be repeated)");
  add_repeated(verb, "--untie", flags.untied, "NAME", "Give this name a storage of its own (may be repeated)");
  add_word(verb,
           "--on-tie-conflict",
           flags.on_tie_conflict,
           {"untie", "error", "canonical", "alias"},
           "Tied names that are stored with different values: two weights (default), refuse, or read one of the two");
  verb.add_flag("--no-rename", flags.no_rename, "Refuse names with a foreign prefix, in place of renaming them");
  verb.add_option("--max-header-bytes", flags.max_header_bytes, "Longest safetensors header (default 100MB)")
      ->type_name("SIZE");
}

void add_shard_dim_flags(CLI::App& verb, ShardFlags& flags) {
  add_word(verb, "--shard-dim", flags.shard_dim, {"last", "first"}, "Dimension to shard on: last (default) or first");
  add_repeated(verb,
               "--dim",
               flags.dims,
               "NAME=D",
               "Shard this parameter on dimension D (may be repeated; refused for a tied weight's vocab dimension)");
}

void add_shard_flags(CLI::App& verb, ShardFlags& flags) {
  add_shard_dim_flags(verb, flags);
  verb.add_option(
          "--param-dtype",
          flags.param_dtype,
          "Dtype of the parameters in memory (default: as stored; the config's, else bfloat16, where quantised)")
      ->type_name("DTYPE");
}

void add_load_flags(CLI::App& verb, LoadFlags& flags) {
  add_repeated(verb,
               "--init",
               flags.inits,
               "NAME=RULE",
               "Initialise a parameter that no file holds: normal(0.02), uniform(-1, 1), constant(0), zeros, ones "
               "(may be repeated)");
  verb.add_option("--read-buffer", flags.read_buffer, "Memory of the reader beyond the shards (default 16MiB)")
      ->type_name("SIZE");
  verb.add_option("--host-ram-per-rank",
                  flags.host_ram,
                  "Refuse a load that would add more than this to a rank's process (default: no limit)")
      ->type_name("SIZE");
  verb.add_flag("--no-mmap", flags.no_mmap, "Copy also what could be mapped from the files");
  verb.add_flag("--no-check-values", flags.no_check_values, "Do not look for NaN and infinity");
}

void add_ranks(CLI::App& verb, std::int64_t& ranks) {
  verb.add_option("--ranks", ranks, "Ranks that share one copy of the model")
      ->type_name("N")
      ->required()
      ->check(whole_number(1, kMostRanks).description("from 1 to 65536"));
}

std::uint64_t size_flag(const std::string& flag, const std::string& text) {
  const std::optional<std::uint64_t> bytes = parse_bytes(text);
  if (!bytes) {
    std::string meant = text;
    std::erase(meant, ' ');
    const bool letter_alone =
        !meant.empty() && std::string_view("KMGTkmgt").find(meant.back()) != std::string_view::npos;
    meant = letter_alone && parse_bytes(meant + "iB") ? meant + "iB" : "16MiB";
    throw bad_value(flag, "a size such as 16MiB, 2GB or 4096", text, concat("write ", flag, " ", meant));
  }
  return *bytes;
}

DType dtype_flag(const std::string& flag, const std::string& text) {
  const auto dtype = dtype_from_torch_name(text);
  if (!dtype || !is_wide_float(*dtype)) {
    throw bad_value(
        flag, "float32, bfloat16, float16 or float64", text, "name a dtype that parameters can be trained in");
  }
  return *dtype;
}

} // namespace tieshard::cli
