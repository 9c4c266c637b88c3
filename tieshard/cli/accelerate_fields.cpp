#include "tieshard/cli/accelerate_fields.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "tieshard/cli/accelerate_config.h"
#include "tieshard/core/base/units.h"

namespace tieshard::cli {
namespace {

enum class Kind { kAny, kBool, kCount, kChoice };

struct Field {
  std::string_view name;
  Kind kind = Kind::kAny;
  std::string_view choices{}; ///< with a space around each
};

constexpr std::string_view kStrategies =
    " full_shard shard_grad_op no_shard hybrid_shard hybrid_shard_zero2 1 2 3 4 5 ";

/// Fields of fsdp_config, without their prefix.
constexpr std::array kInner = {
    Field{"version", Kind::kChoice, " 1 2 "},
    Field{"reshard_after_forward"},
    Field{"offload_params", Kind::kBool},
    Field{"auto_wrap_policy", Kind::kChoice, " transformer_based_wrap size_based_wrap no_wrap "},
    Field{"transformer_layer_cls_to_wrap"},
    Field{"min_num_params", Kind::kCount},
    Field{"backward_prefetch", Kind::kChoice, " backward_pre backward_post no_prefetch 1 2 "},
    Field{"state_dict_type", Kind::kChoice, " full_state_dict local_state_dict sharded_state_dict 1 2 3 "},
    Field{"forward_prefetch", Kind::kBool},
    Field{"use_orig_params", Kind::kBool},
    Field{"cpu_ram_efficient_loading", Kind::kBool},
    Field{"sync_module_states", Kind::kBool},
    Field{"activation_checkpointing", Kind::kBool},
    Field{"activation_checkpointing_offload", Kind::kBool},
    Field{"sharding_strategy", Kind::kChoice, kStrategies},
    Field{"ignored_modules"}};

/// Fields of the file itself; fp16 and dynamo_backend are those of older files, which accelerate still takes.
constexpr std::array<std::string_view, 33> kOuter = {"compute_environment",
                                                     "distributed_type",
                                                     "mixed_precision",
                                                     "use_cpu",
                                                     "debug",
                                                     "num_processes",
                                                     "machine_rank",
                                                     "num_machines",
                                                     "gpu_ids",
                                                     "main_process_ip",
                                                     "main_process_port",
                                                     "rdzv_backend",
                                                     "same_network",
                                                     "main_training_function",
                                                     "enable_cpu_affinity",
                                                     "fp8_config",
                                                     "deepspeed_config",
                                                     "fsdp_config",
                                                     "parallelism_config",
                                                     "megatron_lm_config",
                                                     "mpirun_config",
                                                     "downcast_bf16",
                                                     "tpu_name",
                                                     "tpu_zone",
                                                     "tpu_use_cluster",
                                                     "tpu_use_sudo",
                                                     "command_file",
                                                     "commands",
                                                     "tpu_vm",
                                                     "tpu_env",
                                                     "dynamo_config",
                                                     "fp16",
                                                     "dynamo_backend"};

constexpr Field kType{"distributed_type",
                      Kind::kChoice,
                      " no multi_cpu multi_gpu multi_npu multi_mlu multi_sdaa multi_musa multi_xpu deepspeed fsdp xla "
                      "megatron_lm multi_hpu multi_neuron "};

bool stands_in(std::string_view choices, std::string_view value) {
  return choices.find(concat(" ", value, " ")) != std::string_view::npos;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 19 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// What `field` may be, where `value` is not that; empty: it is.
std::string expected(const Field& field, const std::string& value) {
  constexpr std::string_view kTruths = " y yes t true on 1 n no f false off 0 ";
  if (field.kind == Kind::kBool && !stands_in(kTruths, value)) {
    return "true or false";
  }
  if (field.kind == Kind::kCount && !is_number(value)) {
    return "a number";
  }
  if (field.kind == Kind::kChoice && (value.find(' ') != std::string::npos || !stands_in(field.choices, value))) {
    std::string choices;
    for (const char c : field.choices.substr(1, field.choices.size() - 2)) {
      choices += c == ' ' ? std::string(", ") : std::string(1, static_cast<char>(std::toupper(c)));
    }
    return concat("one of ", choices);
  }
  return {};
}

class FieldChecks {
 public:
  explicit FieldChecks(const AccelerateConfig& config) : config_(config) {}

  std::vector<Diagnostic> run() {
    outer();
    if (const std::string type = config_.field("distributed_type"); !type.empty() && type != "fsdp") {
      return std::move(findings_); // fsdp_config is not read
    }
    for (const auto& [name, value] : config_.fsdp) {
      inner(name);
    }
    reshard();
    classes();
    if (config_.field("version") == "2" && stands_in(" local_state_dict 2 ", config_.field("state_dict_type"))) {
      add(Level::kError,
          "fsdp_config.fsdp_state_dict_type",
          concat("expected what FSDP2 can save, got ", config_.fsdp.at("state_dict_type")),
          "use SHARDED_STATE_DICT");
    }
    return std::move(findings_);
  }

 private:
  void add(Level level, const std::string& field, std::string why, std::string fix) {
    findings_.push_back(accelerate_finding(level, config_.where, field, std::move(why), std::move(fix)));
  }

  void outer() {
    if (!config_.top.contains("distributed_type")) {
      add(Level::kError,
          "distributed_type",
          "expected distributed_type, got a file without it, which accelerate refuses",
          "set distributed_type: FSDP");
    }
    if (config_.field("compute_environment") == "amazon_sagemaker") {
      return; // whose fields are others
    }
    for (const auto& [name, value] : config_.top) {
      if (std::string wanted = name == kType.name ? expected(kType, config_.field(name)) : ""; !wanted.empty()) {
        add(Level::kError, name, concat("expected ", wanted, "; got ", format_name(value)), "set it to FSDP");
      }
      if (std::ranges::find(kOuter, name) != kOuter.end()) {
        continue;
      }
      const bool inside = name.starts_with("fsdp_") ||
                          std::ranges::any_of(kInner, [&](const Field& field) { return field.name == name; });
      add(Level::kError,
          name,
          concat("expected fields of accelerate, got one that it does not know",
                 inside ? " outside of fsdp_config" : "",
                 ": it refuses the file"),
          inside ? "put it under fsdp_config:" : "mend the name, or take it out");
    }
    processes();
  }

  void processes() {
    const auto found = config_.top.find("num_processes");
    if (found == config_.top.end() || (is_number(found->second) && found->second != "0")) {
      return;
    }
    const bool later = found->second == "-1";
    add(later ? Level::kNote : Level::kError,
        "num_processes",
        concat("expected a number of processes, from 1, got ", format_name(found->second)),
        later ? "give --num_processes to accelerate launch" : "set it to the number of ranks");
  }

  void inner(const std::string& name) {
    const auto* field = std::ranges::find(kInner, name, &Field::name);
    const std::string where = concat("fsdp_config.fsdp_", name);
    if (field == kInner.end()) {
      add(Level::kWarning,
          where,
          "expected fields of accelerate's FSDP, got one that it does not know, and does not look at",
          "mend the name, or take it out");
      return;
    }
    const std::string wanted = expected(*field, config_.field(name));
    if (!wanted.empty()) {
      const std::string& value = config_.fsdp.at(name);
      add(Level::kError,
          where,
          concat("expected ", wanted, "; got ", value.empty() ? "nothing" : format_name(value)),
          concat("set it to ", wanted));
    }
  }

  void reshard() {
    const std::string value = config_.field("reshard_after_forward");
    const bool second = config_.field("version") == "2";
    const std::string wanted =
        expected({.name = "", .kind = second ? Kind::kBool : Kind::kChoice, .choices = kStrategies}, value);
    if (config_.fsdp.contains("reshard_after_forward") && !wanted.empty()) {
      add(Level::kError,
          "fsdp_config.fsdp_reshard_after_forward",
          concat("expected ", wanted, " in this version of FSDP; got ", format_name(value)),
          concat("set it to ", wanted));
    }
  }

  /// accelerate parts a text at its commas, and looks for each part as it stands.
  void classes() {
    const auto found = config_.fsdp.find("transformer_layer_cls_to_wrap");
    if (found == config_.fsdp.end()) {
      return;
    }
    const bool list = config_.lists.contains("transformer_layer_cls_to_wrap");
    if (list || found->second.empty()) {
      add(Level::kError,
          "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
          concat("expected names of classes with commas between them, got ",
                 list ? "a list, which accelerate takes for one name" : "an empty text, which names no class"),
          "write LlamaDecoderLayer or A,B; or leave the field out: the model's own layers are taken then");
    }
  }

  const AccelerateConfig& config_;
  std::vector<Diagnostic> findings_;
};

} // namespace

Diagnostic accelerate_finding(
    Level level, const std::string& where, const std::string& field, std::string why, std::string fix) {
  return {.level = level,
          .code = Code::kAccelerateConfig,
          .what = level == Level::kNote
                      ? "a field of accelerate's configuration asks for nothing here, or costs something"
                      : "a field of accelerate's configuration leads to a failure",
          .where = concat(where, ", ", field),
          .why = std::move(why),
          .fix = std::move(fix)};
}

std::vector<Diagnostic> check_fields(const AccelerateConfig& config) {
  return FieldChecks(config).run();
}

} // namespace tieshard::cli
