#include "tieshard/cli/lora_flag.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/core/base/comma_list.h"
#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

constexpr std::array kKeys{
    "r", "alpha", "dropout", "targets", "targets-regex", "exclude", "save", "layers", "init", "rslora"};

constexpr std::string_view kAllLinear = "all-linear";
constexpr std::int64_t kMost = 1'000'000'000; ///< of numbers that nothing else bounds

[[noreturn]] void refuse(const std::string& key, const std::string& expected, const std::string& got) {
  throw InputError({.code = Code::kBadFlag,
                    .what = "a command line flag has a value that cannot be used",
                    .where = key.empty() ? "--lora" : concat("--lora, ", key),
                    .why = concat("expected ", expected, ", got ", got.empty() ? "nothing" : got),
                    .fix = "write it as r=16,alpha=32,targets=q_proj,v_proj; docs/lora.md lists the keys"});
}

bool is_key(const std::string& text) {
  return std::ranges::find(kKeys, text) != kKeys.end();
}

using Values = std::map<std::string, std::string>;

Values parse(const std::string& text) {
  Values values;
  std::string key;
  for (const std::string& part : split_at_commas(text)) {
    const std::size_t equal = part.find('=');
    const std::string name = part.substr(0, std::min(equal, part.size()));
    if (equal != std::string::npos && is_key(name)) {
      key = name;
      if (!values.emplace(key, part.substr(equal + 1)).second) {
        refuse(key, "each key once", "it twice");
      }
    } else if (key.empty() || (equal != std::string::npos && key != "targets-regex")) {
      refuse(
          "", "KEY=VALUE with r, alpha, dropout, targets, targets-regex, exclude, save, layers, init or rslora", part);
    } else {
      values[key] += "," + part;
    }
  }
  return values;
}

template <typename Number>
Number number(const Values& values,
              const std::string& key,
              Number fallback,
              Number least,
              Number most,
              const std::string& expected) {
  const auto found = values.find(key);
  if (found == values.end()) {
    return fallback;
  }
  Number parsed{};
  const char* const end = found->second.data() + found->second.size();
  const auto result = std::from_chars(found->second.data(), end, parsed);
  if (result.ec != std::errc() || result.ptr != end || !(parsed >= least && parsed <= most)) {
    refuse(key, expected, found->second);
  }
  return parsed;
}

std::vector<std::string> names(const Values& values, const std::string& key) {
  const auto found = values.find(key);
  if (found == values.end()) {
    return {};
  }
  std::vector<std::string> listed = split_at_commas(found->second);
  if (std::ranges::find(listed, "") != listed.end()) {
    refuse(key, "names with commas between them", found->second);
  }
  return listed;
}

std::string word(const Values& values, const std::string& key, const std::vector<std::string>& words) {
  const auto found = values.find(key);
  if (found == values.end()) {
    return words.front();
  }
  if (std::ranges::find(words, found->second) == words.end()) {
    refuse(key, concat(words[0], " or ", words[1]), found->second);
  }
  return found->second;
}

ModulePattern targets(const Values& values) {
  const std::vector<std::string> listed = names(values, "targets");
  const auto regex = values.find("targets-regex");
  if (listed.empty() == (regex == values.end()) || (regex != values.end() && regex->second.empty())) {
    refuse("targets", "either targets or targets-regex", listed.empty() ? "neither" : "both");
  }
  if (regex != values.end()) {
    matches_whole(regex->second, ""); // refuses one that cannot be read
    return {.regex = regex->second};
  }
  const bool all_linear = std::ranges::find(listed, kAllLinear) != listed.end();
  if (all_linear && listed.size() > 1) {
    refuse("targets", "all-linear alone, or names", values.at("targets"));
  }
  return all_linear ? ModulePattern{.all_linear = true} : ModulePattern{.names = listed};
}

} // namespace

LoraConfig lora_flag(const std::string& text) {
  const Values values = parse(text);
  LoraConfig config;
  config.rank =
      number<std::int64_t>(values, "r", 8, 1, kLargestLoraRank, concat("a whole number from 1 to ", kLargestLoraRank));
  config.alpha = number<double>(values, "alpha", 8, 0, kMost, concat("a number from 0 to ", kMost));
  config.dropout = number<double>(values, "dropout", 0, 0, 1, "a number from 0 to below 1");
  if (config.dropout >= 1) {
    refuse("dropout", "a number from 0 to below 1", values.at("dropout"));
  }
  config.targets = targets(values);
  config.excluded.names = names(values, "exclude");
  config.modules_to_save = names(values, "save");
  for (const std::string& layer : names(values, "layers")) {
    config.layers_to_transform.push_back(
        number<std::int64_t>({{"layers", layer}}, "layers", 0, 0, kMost, "whole numbers with commas between them"));
  }
  if (!config.layers_to_transform.empty() && config.targets.names.empty()) {
    refuse("layers", "targets that are a list of names beside it", "all-linear or a regular expression");
  }
  config.init = word(values, "init", {"kaiming", "gaussian"}) == "gaussian" ? LoraInit::kGaussian : LoraInit::kKaiming;
  config.rslora = word(values, "rslora", {"false", "true"}) == "true";
  return config;
}

std::optional<TiedTarget> tied_target_flag(const std::string& text) {
  if (text.empty()) {
    return std::nullopt;
  }
  return text == "both" ? TiedTarget::kBoth : text == "named" ? TiedTarget::kNamed : TiedTarget::kRefuse;
}

void add_adapter_flags(CLI::App& verb, std::filesystem::path& adapter, std::string& tied) {
  verb.add_option("--adapter", adapter, "PEFT adapter directory (LoRA) to put on the model")
      ->check(any_text("an adapter's directory"));
  add_lora_tied_flag(verb, tied);
}

void add_lora_tied_flag(CLI::App& verb, std::string& tied) {
  verb.add_option(
          "--lora-tied",
          tied,
          "Of an adapter on a tied weight: both uses get it, the named one alone, or refuse; else as the adapter says")
      ->check(one_of({"both", "named", "refuse"}));
}

} // namespace tieshard::cli
