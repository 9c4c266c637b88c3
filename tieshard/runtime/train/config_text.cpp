#include "tieshard/runtime/train/config_text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/shm/shm_layout.h"
#include "tieshard/runtime/train/build_optimizer.h"

namespace tieshard {
namespace {

/// Bytes of a large file that are compared.
constexpr std::uint64_t kLookedAt = 64 << 10;

/// All digits, so that no two numbers look alike.
std::string text_of(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", number);
  double read_back = 0;
  for (const int digits : {6, 15}) { // shorter where that is the same number: 0.0001
    std::array<char, 32> shorter{};
    std::snprintf(shorter.data(), shorter.size(), "%.*g", digits, number);
    if (std::sscanf(shorter.data(), "%lf", &read_back) == 1 && read_back == number) {
      return shorter.data();
    }
  }
  return text.data();
}

std::string text_of(const std::optional<double>& number) {
  return number ? text_of(*number) : "the optimizer's own";
}

std::string text_of(bool flag) {
  return flag ? "true" : "false";
}

std::string text_of(const ReshardAfterForward& policy) {
  const auto* const flag = std::get_if<bool>(&policy);
  return flag == nullptr ? std::to_string(std::get<std::int64_t>(policy)) : text_of(*flag);
}

std::string text_of(OnTieConflict rule) {
  switch (rule) {
    case OnTieConflict::kUntie:
      return "untie";
    case OnTieConflict::kError:
      return "error";
    case OnTieConflict::kCanonical:
      return "canonical";
    case OnTieConflict::kAlias:
      return "alias";
  }
  return "?";
}

std::string text_of(TokenDtype dtype) {
  return dtype == TokenDtype::kUint16 ? "uint16" : dtype == TokenDtype::kUint32 ? "uint32" : "auto";
}

std::string text_of(Bf16Update update) {
  return update == Bf16Update::kMasterWeights        ? "master"
         : update == Bf16Update::kStochasticRounding ? "stochastic"
                                                     : "nearest";
}

std::string text_of(const LrScheduleOptions& schedule, bool by_tokens) {
  return concat(lr_schedule_names().at(static_cast<std::size_t>(schedule.kind)),
                ", warm-up ",
                schedule.warmup,
                ", decay ",
                schedule.decay ? std::to_string(*schedule.decay) : "the rest",
                " ",
                decay_shape_names().at(static_cast<std::size_t>(schedule.wsd_shape)),
                ", at least ",
                text_of(schedule.min_ratio),
                by_tokens ? ", in tokens" : ", in steps");
}

std::string documents_of(bool by_index, const std::optional<std::int64_t>& separator) {
  return by_index ? "by the index" : separator ? concat("end at token ", *separator) : "not kept apart";
}

/// Of a directory its configuration is compared as a file.
std::string text_of(const AdapterOptions& adapter) {
  const std::string tied = adapter.tied ? std::to_string(static_cast<int>(*adapter.tied)) : "as configured";
  return adapter.directory.empty() ? concat(adapter.config.to_json(), ", seed ", adapter.config.seed, ", tied ", tied)
                                   : concat("of a directory, tied ", tied);
}

/// "a=b c=d", or "none".
template <typename Items, typename Write>
std::string list_of(const Items& items, const Write& write) {
  std::string text;
  for (const auto& item : items) {
    text += concat(text.empty() ? "" : " ", write(item));
  }
  return text.empty() ? "none" : text;
}

std::string pairs_of(const auto& map) {
  return list_of(map, [](const auto& pair) { return concat(pair.first, "=", pair.second); });
}

std::string hash_text(std::string_view bytes) {
  std::array<char, 20> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(CallPurpose::of(bytes).hash));
  return text.data();
}

/// "1234 bytes, of which the first have hash 0123...", or why not.
std::string describe_file(const std::filesystem::path& path, std::uint64_t looked_at) {
  try {
    const File file = File::open_for_reading(path);
    std::string start(static_cast<std::size_t>(std::min<std::uint64_t>(looked_at, file.size())), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(start)));
    return concat(file.size(), " bytes of hash ", hash_text(start));
  } catch (const Error& error) {
    return std::string(id(error.diagnostic().code));
  }
}

/// Of Megatron's two files both.
std::string describe_tokens(const std::filesystem::path& path) {
  std::string text;
  for (const std::filesystem::path& file :
       path.empty() ? std::vector<std::filesystem::path>() : files_of_tokens(path)) {
    text += concat(text.empty() ? "" : ", ", describe_file(file, kLookedAt));
  }
  return text.empty() ? "none" : text;
}

} // namespace

std::vector<NamedText> describe(const TrainConfig& config) {
  const TieOptions& ties = config.resolve.ties;
  return {
      {"--steps", std::to_string(config.steps)},
      {"--batch", std::to_string(config.batch)},
      {"--gradient-accumulation-steps", std::to_string(config.gradient_accumulation_steps)},
      {"--seq", std::to_string(config.sequence)},
      {"--lr", text_of(config.lr)},
      {"--weight-decay", text_of(config.weight_decay)},
      {"--optimizer", optimizer_name(config.optimizer)},
      {"--beta1", text_of(config.beta1)},
      {"--beta2", text_of(config.beta2)},
      {"--eps", text_of(config.eps)},
      {"--momentum", text_of(config.momentum)},
      {"--nesterov", text_of(config.nesterov)},
      {"--bf16-update", text_of(config.bf16_update)},
      {"--param-groups", list_of(config.param_groups, [](const ParamGroupRule& rule) { return rule.text; })},
      {"--freeze", list_of(config.freeze, [](const std::string& pattern) { return pattern; })},
      {"the schedule", text_of(config.schedule, config.schedule_by_tokens)},
      {"--clip", text_of(config.clip)},
      {"--on-nonfinite-gradient", config.on_nonfinite_gradient == OnNonFiniteGradient::kSkip ? "skip" : "stop"},
      {"the adapter", config.adapter ? text_of(*config.adapter) : "none"},
      {"--param-dtype", c10::toString(config.param_dtype)},
      {"--compute-dtype", c10::toString(config.compute_dtype)},
      {"--shard-dim", config.shard_dim == ShardDimPolicy::kFirst ? "first" : "last"},
      {"--dim", pairs_of(config.shard_dims)},
      {"--reshard-after-forward", text_of(config.reshard_after_forward)},
      {"--forward-prefetch", std::to_string(config.forward_prefetch)},
      {"--backward-prefetch", std::to_string(config.backward_prefetch)},
      {"--activation-checkpointing", text_of(config.activation_checkpointing)},
      {"--no-export", text_of(!config.export_model)},
      {"--no-shuffle", text_of(!config.shuffle)},
      {"--seed", std::to_string(config.seed)},
      {"--data-format", std::string(name(config.data_format))},
      {"--data-dtype", text_of(config.data_dtype)},
      {"the documents", documents_of(config.documents, config.document_separator)},
      {"--target-len", std::to_string(config.target)},
      {"--eval-every", std::to_string(config.eval_every)},
      {"--eval-samples", std::to_string(config.eval_samples)},
      {"--tensorboard", text_of(config.tensorboard)},
      {"--tie", pairs_of(ties.explicit_ties)},
      {"--untie", list_of(ties.untied, [](const std::string& name) { return name; })},
      {"--on-tie-conflict", text_of(ties.on_conflict)},
      {"--no-rename", text_of(!config.resolve.rename)},
      {"--init",
       list_of(
           config.load.sources.inits,
           [](const NamedInit& init) { return concat(init.fqn, "=", init.rule.to_string(), "/", init.rule.seed); })},
  };
}

std::vector<NamedText> describe_saves(const TrainConfig& config) {
  const std::optional<BusySave>& background = config.save.background;
  return {
      {"--save-every", concat(config.save.every_steps, " steps, ", text_of(config.save.every_minutes), " minutes")},
      {"--keep", std::to_string(config.save.keep)},
      {"--async-save",
       !background                      ? "off"
       : *background == BusySave::kSkip ? "skip"
                                        : "wait"},
      {"--resume",
       !config.resume           ? "no"
       : config.resume->empty() ? "from --out"
                                : "from a directory"},
      {"--verify", text_of(config.verify)},
      {"--export-dtype", config.export_dtype ? std::string(name(*config.export_dtype)) : "as in the model's files"}};
}

std::vector<NamedText> describe_inputs(const TrainConfig& config) {
  constexpr std::uint64_t kWhole = 16 << 20; // more than any config.json
  return {{"config.json of --model", describe_file(config.model / "config.json", kWhole)},
          {"the file of --data", describe_tokens(config.data)},
          {"the file of --label-mask", describe_tokens(config.label_mask)},
          {"the file of --eval-data", describe_tokens(config.eval_data)},
          {"the file of --eval-label-mask", describe_tokens(config.eval_label_mask)},
          {"adapter_config.json of --adapter",
           config.adapter && !config.adapter->directory.empty()
               ? describe_file(config.adapter->directory / "adapter_config.json", kWhole)
               : "none"}};
}

NamedText describe_weights(const TrainConfig& config) {
  NamedText weights{"the weights of --model", ""};
  try {
    std::string looked_at;
    std::uint64_t bytes = 0;
    int count = 0;
    for (const std::string& name : list_directory(config.model)) {
      if (name.starts_with(".") || !name.ends_with(".safetensors")) {
        continue;
      }
      const File file = File::open_for_reading(config.model / name);
      const std::uint64_t size = file.size();
      const std::uint64_t part = std::min(kLookedAt, size);
      std::string ends(2 * part, '\0');
      file.read_at(0, std::as_writable_bytes(std::span(ends).first(part)));
      file.read_at(size - part, std::as_writable_bytes(std::span(ends).last(part)));
      looked_at += concat(name, " ", size, " ", hash_text(ends), "\n");
      bytes += size;
      ++count;
    }
    weights.value = concat(count, " files, ", bytes, " bytes, of hash ", hash_text(looked_at));
  } catch (const Error& error) {
    weights.value = id(error.diagnostic().code);
  }
  return weights;
}

void require_same_config_on_ranks(const TrainConfig& config, const DeviceMesh& mesh) {
  std::vector<NamedText> texts = describe(config);
  const std::vector<NamedText> saves = describe_saves(config);
  texts.insert(texts.end(), saves.begin(), saves.end());
  if (mesh.size() > 1) {
    const std::vector<NamedText> inputs = describe_inputs(config);
    texts.insert(texts.end(), inputs.begin(), inputs.end());
  }
  require_equal_on_ranks(mesh,
                         "flags",
                         texts,
                         {.code = Code::kBadEnvironment,
                          .what = "the ranks of one run were given different flags",
                          .fix = "start every rank with the same flags and the same files; only paths, --threads, "
                                 "--timeout and the reader's memory may differ"});
}

} // namespace tieshard
