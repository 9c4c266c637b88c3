#include "tieshard/cli/runtime/optimizer_flags.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/core/base/error.h"
#include "tieshard/runtime/train/build_optimizer.h"

namespace tieshard::cli {
namespace {

const std::vector<std::string> kOptimizers{"adamw", "sgd", "lion"};
const std::vector<std::string> kBf16Updates{"nearest", "master-weights", "stochastic-rounding"};
const std::vector<std::string> kOnNonFinite{"stop", "skip"};

/// Place of a word that one_of has let through: that of its enumerator.
template <typename Kind>
Kind kind_of(const std::vector<std::string>& words, const std::string& word) {
  return static_cast<Kind>(std::ranges::find(words, word) - words.begin());
}

InputError out_of_place(const std::string& flag, const std::string& expected, const std::string& got) {
  return InputError({.code = Code::kBadFlag,
                     .what = "a command line flag has nothing to act on",
                     .where = flag,
                     .why = concat("expected ", expected, ", got ", got),
                     .fix = concat("leave ", flag, " out, or give what it needs")});
}

void require_users(const OptimizerFlags& flags) {
  struct Use {
    const char* flag;
    bool given;
    std::vector<std::string> users;
  };
  for (const Use& use : {Use{"--beta1", flags.beta1.has_value(), {"adamw", "lion"}},
                         Use{"--beta2", flags.beta2.has_value(), {"adamw", "lion"}},
                         Use{"--eps", flags.eps.has_value(), {"adamw"}},
                         Use{"--momentum", flags.momentum.has_value(), {"sgd"}},
                         Use{"--nesterov", flags.nesterov, {"sgd"}}}) {
    if (use.given && std::ranges::find(use.users, flags.optimizer) == use.users.end()) {
      const std::string expected = use.users.size() == 1 ? use.users[0] : concat(use.users[0], " or ", use.users[1]);
      throw out_of_place(use.flag, concat("--optimizer ", expected), flags.optimizer);
    }
  }
  if (flags.nesterov && flags.momentum.value_or(0) == 0) {
    throw out_of_place("--nesterov", "--momentum above 0", "none");
  }
}

void set_schedule(const OptimizerFlags& flags, std::int64_t ranks, TrainConfig& config) {
  const bool by_tokens = flags.warmup_tokens || flags.decay_tokens;
  if (by_tokens && (flags.warmup_steps || flags.decay_steps)) {
    throw out_of_place(flags.warmup_steps ? "--warmup-steps" : "--decay-steps",
                       "a schedule by steps or one by tokens",
                       flags.warmup_tokens ? "--warmup-tokens too" : "--decay-tokens too");
  }
  if (flags.decay_shape && flags.schedule != "wsd") {
    throw out_of_place("--decay-shape", "--schedule wsd", flags.schedule);
  }
  config.schedule = {.kind = lr_schedule_from_name(flags.schedule),
                     .warmup = (by_tokens ? flags.warmup_tokens : flags.warmup_steps).value_or(0),
                     .decay = by_tokens ? flags.decay_tokens : flags.decay_steps,
                     .min_ratio = flags.min_lr_ratio.value_or(0),
                     .wsd_shape = decay_shape_from_name(flags.decay_shape.value_or("linear"))};
  config.schedule_by_tokens = by_tokens;
  lr_schedule_of(config, ranks); // refuses what does not fit
}

void add_schedule_flags(CLI::App& verb, OptimizerFlags& flags) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  verb.add_option("--schedule", flags.schedule, "How the learning rate falls after the warm-up")
      ->type_name("constant|linear|cosine|wsd|inverse-sqrt")
      ->check(one_of(lr_schedule_names()))
      ->capture_default_str();
  verb.add_option("--warmup-steps", flags.warmup_steps, "Steps in which the rate rises from 0 to --lr [0]")
      ->check(whole_number(0, kMost));
  verb.add_option(
          "--decay-steps",
          flags.decay_steps,
          "Length of the fall. linear, cosine: behind the warm-up [all of the rest]; wsd: at the end of the run")
      ->check(whole_number(1, kMost));
  verb.add_option("--warmup-tokens", flags.warmup_tokens, "The same in tokens of all ranks, instead of steps")
      ->check(whole_number(0, kMost));
  verb.add_option("--decay-tokens", flags.decay_tokens, "The same in tokens of all ranks, instead of steps")
      ->check(whole_number(1, kMost));
  verb.add_option("--min-lr-ratio", flags.min_lr_ratio, "Part of --lr that the rate does not fall below [0]")
      ->check(number_from_to_below(0, 1));
  verb.add_option("--decay-shape", flags.decay_shape, "Of wsd's fall [linear]")
      ->type_name("linear|cosine|1-sqrt")
      ->check(one_of(decay_shape_names()));
}

} // namespace

void add_optimizer_flags(CLI::App& verb, OptimizerFlags& flags) {
  verb.add_option("--optimizer", flags.optimizer, "Rule of the step")
      ->type_name("adamw|sgd|lion")
      ->check(one_of(kOptimizers))
      ->capture_default_str();
  verb.add_option("--lr", flags.lr, "Learning rate")->check(finite_number_from(0))->capture_default_str();
  verb.add_option("--weight-decay", flags.weight_decay, "On every parameter [adamw: 0.01, sgd, lion: 0]")
      ->check(finite_number_from(0));
  verb.add_option("--beta1", flags.beta1, "Of adamw and lion [0.9]")->check(number_from_to_below(0, 1));
  verb.add_option("--beta2", flags.beta2, "Of adamw [0.999] and lion [0.99]")->check(number_from_to_below(0, 1));
  verb.add_option("--eps", flags.eps, "Of adamw [1e-08]")->check(finite_number_from(0));
  verb.add_option("--momentum", flags.momentum, "Of sgd [0]")->check(finite_number_from(0));
  verb.add_flag("--nesterov", flags.nesterov, "Nesterov's momentum, of sgd");
  verb.add_option("--bf16-update", flags.bf16_update, "How steps reach shards in bfloat16 [nearest]")
      ->type_name("nearest|master-weights|stochastic-rounding")
      ->check(one_of(kBf16Updates));
  add_repeated(verb,
               "--freeze",
               flags.freeze,
               "PATTERN",
               "Parameters that stay as they are: those with this text in a name, * standing for anything");
  add_repeated(verb,
               "--param-groups",
               flags.param_groups,
               "no_decay|PATTERNS:SETTINGS",
               "Parameters with an lr or weight_decay of their own, as in 'norm,bias:weight_decay=0'; the first that "
               "matches holds; no_decay: no decay of what has fewer than two dims");
  add_schedule_flags(verb, flags);
  verb.add_option("--clip", flags.clip, "Largest norm of the whole gradient; without it nothing is clipped")
      ->check(number_above(0));
  verb.add_option("--on-nonfinite-gradient",
                  flags.on_nonfinite_gradient,
                  "A gradient that is infinite or not a number ends the run, or its step is skipped on all ranks")
      ->type_name("stop|skip")
      ->check(one_of(kOnNonFinite))
      ->capture_default_str();
}

void apply(const OptimizerFlags& flags, std::int64_t ranks, TrainConfig& config) {
  require_users(flags);
  config.optimizer = kind_of<OptimizerKind>(kOptimizers, flags.optimizer);
  config.lr = flags.lr;
  config.weight_decay = flags.weight_decay;
  config.beta1 = flags.beta1.value_or(config.beta1);
  config.beta2 = flags.beta2;
  config.eps = flags.eps.value_or(config.eps);
  config.momentum = flags.momentum.value_or(0);
  config.nesterov = flags.nesterov;
  config.clip = flags.clip.value_or(config.clip);
  config.on_nonfinite_gradient = kind_of<OnNonFiniteGradient>(kOnNonFinite, flags.on_nonfinite_gradient);
  if (flags.bf16_update) {
    if (config.param_dtype != at::ScalarType::BFloat16) {
      throw out_of_place("--bf16-update", "--param-dtype bfloat16", "shards of another dtype");
    }
    config.bf16_update = kind_of<Bf16Update>(kBf16Updates, *flags.bf16_update);
  }
  if (!flags.freeze.empty() && config.adapter) {
    throw out_of_place("--freeze", "a run without --lora or --adapter, which freeze the model", "one with");
  }
  config.freeze = flags.freeze;
  for (const std::string& text : flags.param_groups) {
    config.param_groups.push_back(parse_param_group_rule(text));
  }
  set_schedule(flags, ranks, config);
}

} // namespace tieshard::cli
