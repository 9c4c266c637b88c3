#include "tieshard/cli/runtime/save_flags.h"

#include <charconv>
#include <map>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/cli/model_flags.h"
#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

/// "200" is steps; "90s", "30m" and "2h" are time.
void set_every(const std::string& text, SaveConfig& save) {
  const std::map<std::string, double> minutes{{"s", 1.0 / 60}, {"m", 1}, {"h", 60}};
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::string unit(rest, end);
  if (error != std::errc() || number < 1 || !(unit.empty() || minutes.contains(unit))) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a command line flag has a value that cannot be used",
                      .where = "--save-every",
                      .why = concat("expected a number of steps (200) or a time (90s, 30m, 2h), got ", text),
                      .fix = "give one of these"});
  }
  if (unit.empty()) {
    save.every_steps = number;
  } else {
    save.every_minutes = static_cast<double>(number) * minutes.at(unit);
  }
}

} // namespace

void add_save_flags(CLI::App& verb, SaveFlags& flags) {
  verb.add_option(
          "--save-every",
          flags.every,
          "Save the whole state into OUT/checkpoints every so many steps, or after a time (30m), and at the end")
      ->type_name("N|Ns|Nm|Nh")
      ->check(any_text("a number of steps (200) or a time (90s, 30m, 2h)"));
  verb.add_option("--keep", flags.keep, "Newest checkpoints that stay; 0: all")
      ->check(whole_number(0, 1'000'000'000))
      ->capture_default_str();
  verb.add_option("--async-save",
                  flags.async,
                  "Train on while a copy of the state is written; wait or skip where one is being written still")
      ->type_name("wait|skip")
      ->check(one_of({"wait", "skip"}));
  flags.resume = verb.add_option("--resume",
                                 flags.resume_from,
                                 "Go on from a checkpoint or run; without DIR from OUT, from the start if it has none")
                     ->type_name("[DIR]")
                     ->expected(0, 1);
  verb.add_flag("--verify", flags.verify, "Compare the hashes of the checkpoint that is gone on from, not sizes alone");
  verb.add_option("--export-dtype", flags.export_dtype, "Of OUT/export [each tensor's in the model's files]")
      ->check(any_text("a dtype, e.g. bfloat16"));
}

void apply(const SaveFlags& flags, TrainConfig& config) {
  if (!flags.every.empty()) {
    set_every(flags.every, config.save);
  }
  config.save.keep = flags.keep;
  if (!flags.async.empty()) {
    config.save.background = flags.async == "skip" ? BusySave::kSkip : BusySave::kWait;
  }
  if (flags.resume->count() > 0) {
    config.resume = flags.resume_from.empty() ? "" : flags.resume_from.front();
  }
  config.verify = flags.verify;
  if (!flags.export_dtype.empty()) {
    config.export_dtype = dtype_flag("--export-dtype", flags.export_dtype);
  }
}

} // namespace tieshard::cli
