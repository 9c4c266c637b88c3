#include "tieshard/cli/accelerate_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>
#include <utility>

#include <yaml-cpp/yaml.h>

#include "tieshard/cli/accelerate_fields.h"
#include "tieshard/core/base/file.h"

namespace tieshard::cli {
namespace {

constexpr std::uint64_t kLongestFile = 1 << 20;

[[noreturn]] void throw_malformed(const std::string& where, const std::string& why) {
  throw InputError({.code = Code::kYamlMalformed,
                    .what = "text is not YAML",
                    .where = where,
                    .why = why,
                    .fix = "write the file with `accelerate config`, or mend the line"});
}

std::string value_of(const YAML::Node& node) {
  if (!node.IsSequence()) {
    return node.IsScalar() ? node.Scalar() : "";
  }
  std::string all;
  for (const YAML::Node& item : node) {
    all += concat(all.empty() ? "" : ",", item.IsScalar() ? item.Scalar() : "");
  }
  return all;
}

/// One level of a map, its values as text; those that say nothing (null) are left out.
std::map<std::string, std::string> fields_of(const YAML::Node& node,
                                             const std::string& where,
                                             std::string_view prefix,
                                             std::set<std::string>& lists) {
  std::map<std::string, std::string> fields;
  std::set<std::string> seen;
  for (const auto& item : node) {
    const std::string key = item.first.Scalar();
    const int line = item.first.Mark().line + 1;
    if (!item.first.IsScalar()) {
      throw_malformed(concat(where, ", line ", line), "expected a name, got a list or a map as a key");
    }
    const std::string name = !prefix.empty() && key.starts_with(prefix) ? key.substr(prefix.size()) : key;
    if (!seen.insert(name).second) {
      throw_malformed(concat(where, ", line ", line), concat("expected each field once, got ", key, " twice"));
    }
    if (item.second.IsSequence()) {
      lists.insert(name);
    }
    if (!item.second.IsNull()) {
      fields.emplace(name, value_of(item.second));
    }
  }
  return fields;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// What accelerate's FSDP2 layer is called in an architecture: LlamaForCausalLM -> LlamaDecoderLayer.
std::string layer_class_of(const std::string& architecture) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kEnds = {
      {{"ForCausalLM", "DecoderLayer"}, {"LMHeadModel", "Block"}, {"ForConditionalGeneration", "Block"}}};
  for (const auto& [end, layer] : kEnds) {
    if (architecture.ends_with(end)) {
      return concat(architecture.substr(0, architecture.size() - end.size()), layer);
    }
  }
  return {};
}

class Checks {
 public:
  Checks(const AccelerateConfig& config, const ResolvedModel* model) : config_(config), model_(model) {}

  std::vector<Diagnostic> run() {
    if (const std::string type = config_.field("distributed_type"); !type.empty() && type != "fsdp") {
      add(Level::kNote,
          "distributed_type",
          concat("expected FSDP, got ", type, ": fsdp_config is not used"),
          "set distributed_type: FSDP, or leave fsdp_config out");
      return std::move(findings_);
    }
    const bool second = config_.field("version") == "2";
    const bool first = config_.field("version").empty() || config_.field("version") == "1";
    if (second) {
      without_effect();
    } else if (first) {
      first_version();
    }
    without_model();
    loading(second);
    wrapping();
    state_dict();
    ranks();
    return std::move(findings_);
  }

 private:
  void add(Level level, const std::string& field, std::string why, std::string fix) {
    findings_.push_back(accelerate_finding(level, config_.where, field, std::move(why), std::move(fix)));
  }

  void without_model() {
    if (model_ == nullptr) {
      add(Level::kNote,
          "fsdp_config",
          "expected a checkpoint beside it, got none that opens: ties and layers were not looked at",
          "give the checkpoint's directory: tieshard doctor DIR --accelerate-config FILE");
    }
  }

  bool tied() const {
    return model_ != nullptr && !model_->ties.groups().empty();
  }

  std::string tie_text() const {
    const TieGroup& group = model_->ties.groups().front();
    return concat(group.aliases.front().name, " = ", group.canonical);
  }

  void without_effect() {
    for (const char* field :
         {"use_orig_params", "sync_module_states", "sharding_strategy", "backward_prefetch", "forward_prefetch"}) {
      if (config_.fsdp.contains(field)) {
        add(Level::kNote,
            concat("fsdp_config.fsdp_", field),
            "expected fields of FSDP2, got one of FSDP1, which has no effect",
            std::string(field) == "sharding_strategy" ? "use fsdp_reshard_after_forward" : "leave it out");
      }
    }
  }

  void first_version() {
    if (tied()) {
      add(Level::kWarning,
          "fsdp_config.fsdp_version",
          concat("expected 2 for a tied model, got ",
                 config_.field("version").empty() ? "nothing, which is 1" : config_.field("version"),
                 ": FSDP1 flattens each unit, and ",
                 tie_text(),
                 " has to lie in one"),
          "set fsdp_version: 2");
    }
    if (config_.is("cpu_ram_efficient_loading") && config_.field("sync_module_states") == "false") {
      add(Level::kError,
          "fsdp_config.fsdp_sync_module_states",
          "expected true beside cpu_ram_efficient_loading, got false: all ranks but the first would train on what "
          "memory held",
          "set fsdp_sync_module_states: true");
    }
  }

  void loading(bool second) {
    if (!second || !config_.is("cpu_ram_efficient_loading") || model_ == nullptr) {
      return;
    }
    for (const Diagnostic& finding : model_->findings) {
      if (finding.code == Code::kTieConflict) {
        add(Level::kError,
            "fsdp_config.fsdp_cpu_ram_efficient_loading",
            concat("expected one weight, got two that config.json calls tied (",
                   finding.where,
                   "): the load ends in KeyError or 'FSDP2 mapping failed'"),
            "set it to false, or set tie_word_embeddings to false in config.json");
        return;
      }
    }
    if (tied()) {
      add(Level::kWarning,
          "fsdp_config.fsdp_cpu_ram_efficient_loading",
          concat("expected a tie to be made again after the load, got a model that is filled from meta: ",
                 tie_text(),
                 " is two names of one tensor there"),
          "assert that the two are one object after accelerator.prepare, or set it to false");
    }
  }

  void wrapping() {
    const std::string policy = config_.field("auto_wrap_policy");
    const std::string raw =
        config_.fsdp.contains("transformer_layer_cls_to_wrap") ? config_.fsdp.at("transformer_layer_cls_to_wrap") : "";
    if (policy == "no_wrap") {
      add(Level::kWarning,
          "fsdp_config.fsdp_auto_wrap_policy",
          "expected a unit for each layer, got none: every rank gathers the whole model at once",
          "use TRANSFORMER_BASED_WRAP");
    }
    if (policy == "size_based_wrap" && tied()) {
      add(Level::kError,
          "fsdp_config.fsdp_auto_wrap_policy",
          concat("expected the names of a tie in one unit, got a wrap by size, which parts ", tie_text()),
          "use TRANSFORMER_BASED_WRAP");
    }
    if (policy != "transformer_based_wrap" || model_ == nullptr) {
      return;
    }
    const std::string layer = layer_class_of(model_->checkpoint.config().architecture());
    const bool named = config_.fsdp.contains("transformer_layer_cls_to_wrap") && !raw.empty();
    bool has_layer = !named; // accelerate takes the model's own then
    for (std::size_t at = 0; at < raw.size();) {
      const std::size_t end = std::min(raw.find(',', at), raw.size());
      std::string name = raw.substr(at, end - at);
      std::erase(name, ' ');
      at = end + 1;
      has_layer = has_layer || name == layer;
      if (tied() && (name == "Embedding" || name == "Linear")) {
        add(Level::kError,
            "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
            concat("expected the names of a tie in one unit, got ", name, ", which puts ", tie_text(), " into two"),
            concat("wrap ", layer, " alone"));
      }
    }
    if (!has_layer && !layer.empty() && model_->family != nullptr) {
      add(Level::kWarning,
          "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
          concat("expected the layer of ",
                 model_->checkpoint.config().architecture(),
                 ", ",
                 layer,
                 "; got ",
                 raw,
                 ": parameters outside of these classes stay in the root's unit"),
          concat("set it to ", layer));
    }
  }

  void state_dict() {
    if (config_.field("state_dict_type") == "full_state_dict") {
      add(Level::kNote,
          "fsdp_config.fsdp_state_dict_type",
          "expected shards, got FULL_STATE_DICT: a save gathers the whole model and its moments on rank 0",
          "use SHARDED_STATE_DICT, and merge afterwards");
    }
  }

  void ranks() {
    const std::string text = config_.field("num_processes");
    const bool number = !text.empty() && text.size() < 7 &&
                        std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
    if (!number || !tied()) {
      return;
    }
    const std::int64_t processes = std::stoll(text);
    const StoredTensor* source = model_->ties.source(model_->checkpoint, model_->ties.groups().front().canonical);
    if (source == nullptr || source->shape.size() != 2 || processes < 2 || source->shape[0] % processes == 0) {
      return;
    }
    add(Level::kWarning,
        "num_processes",
        concat("expected a vocabulary that the ranks divide, got ",
               source->shape[0],
               " rows on ",
               processes,
               " ranks: torch shards a tied weight on its rows, and those of the last rank's padding have been seen "
               "not to be updated (pytorch#176076)"),
        "shard it on its last dimension (shard_placement_fn), or use a number of ranks that divides the rows");
  }

  const AccelerateConfig& config_;
  const ResolvedModel* model_;
  std::vector<Diagnostic> findings_;
};

} // namespace

std::string AccelerateConfig::field(const std::string& name) const {
  const auto inner = fsdp.find(name);
  if (inner != fsdp.end()) {
    return lower(inner->second);
  }
  const auto outer = top.find(name);
  return outer == top.end() ? "" : lower(outer->second);
}

bool AccelerateConfig::is(const std::string& name) const {
  const std::string value = field(name);
  return value == "true" || value == "yes" || value == "on" || value == "1";
}

AccelerateConfig read_accelerate_config(const std::filesystem::path& path) {
  const std::string text = read_text_file(path, kLongestFile);
  AccelerateConfig config{.where = path.string()};
  try {
    const YAML::Node document = YAML::Load(text);
    if (!document.IsMap()) {
      throw_malformed(config.where, "expected a map of fields, got something else");
    }
    std::set<std::string> others;
    config.top = fields_of(document, config.where, "", others);
    const YAML::Node inner = document["fsdp_config"];
    if (inner && !inner.IsNull() && !inner.IsMap()) {
      throw_malformed(concat(config.where, ", line ", inner.Mark().line + 1),
                      "expected fsdp_config to be a map of fields, got something else");
    }
    if (inner && inner.IsMap()) {
      config.fsdp = fields_of(inner, config.where, "fsdp_", config.lists);
    }
  } catch (const YAML::Exception& error) {
    throw_malformed(concat(config.where, ", line ", error.mark.line + 1), concat("expected YAML, got: ", error.msg));
  }
  return config;
}

std::vector<Diagnostic> check_accelerate_config(const AccelerateConfig& config, const ResolvedModel* model) {
  std::vector<Diagnostic> findings = check_fields(config);
  const std::vector<Diagnostic> more = Checks(config, model).run();
  findings.insert(findings.end(), more.begin(), more.end());
  return findings;
}

} // namespace tieshard::cli
