#include "tieshard/core/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

InputError refused(const std::string& where, const std::string& why, const std::string& fix) {
  return InputError({.code = Code::kBadFlag,
                     .what = "a learning rate schedule cannot be followed",
                     .where = where,
                     .why = why,
                     .fix = fix});
}

template <typename Kind>
Kind from_name(const std::vector<std::string>& names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    throw InternalError({.code = Code::kBug,
                         .what = "a name that the flag should have refused",
                         .why = concat("got ", name),
                         .fix = "report it"});
  }
  return static_cast<Kind>(found - names.begin());
}

double shaped(DecayShape shape, double done) {
  switch (shape) {
    case DecayShape::kLinear:
      return 1.0 - done;
    case DecayShape::kCosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * done));
    case DecayShape::kOneMinusSqrt:
      return 1.0 - std::sqrt(done);
  }
  return 0;
}

bool has_decay(LrScheduleKind kind) {
  return kind == LrScheduleKind::kLinear || kind == LrScheduleKind::kCosine || kind == LrScheduleKind::kWsd;
}

} // namespace

const std::vector<std::string>& lr_schedule_names() {
  static const std::vector<std::string> names{"constant", "linear", "cosine", "wsd", "inverse-sqrt"};
  return names;
}

const std::vector<std::string>& decay_shape_names() {
  static const std::vector<std::string> names{"linear", "cosine", "1-sqrt"};
  return names;
}

LrScheduleKind lr_schedule_from_name(std::string_view name) {
  return from_name<LrScheduleKind>(lr_schedule_names(), name);
}

DecayShape decay_shape_from_name(std::string_view name) {
  return from_name<DecayShape>(decay_shape_names(), name);
}

LrSchedule::LrSchedule(const LrScheduleOptions& options) : options_(options) {
  const std::string& name = lr_schedule_names()[static_cast<std::size_t>(options.kind)];
  const std::string where = concat("schedule ", name);
  if (options.kind == LrScheduleKind::kWsd && !options.decay) {
    throw refused(where, "expected the length of the decay, got none", "give --decay-steps, a tenth of the run, say");
  }
  if (options.kind == LrScheduleKind::kInverseSqrt && options.warmup == 0) {
    throw refused(where, "expected a warm-up, which is its time scale too, got none", "give --warmup-steps");
  }
  if (!has_decay(options.kind) && options.decay) {
    throw refused(where,
                  concat("expected no length of a decay, got ", *options.decay),
                  "leave it out, or choose --schedule linear, cosine or wsd");
  }
  if (options.kind == LrScheduleKind::kConstant && options.min_ratio > 0) {
    throw refused(
        where, "expected no smallest rate, got one", "leave --min-lr-ratio out, or choose another --schedule");
  }
  if (options.decay.value_or(0) > options.total - options.warmup) {
    throw refused(where,
                  concat("expected warm-up and decay within the ",
                         options.total,
                         " of the run, got ",
                         options.warmup,
                         " and ",
                         options.decay.value_or(0)),
                  "give shorter ones, or a longer run");
  }
}

double LrSchedule::decayed(DecayShape shape, std::int64_t begin, std::int64_t length, std::int64_t done) const {
  if (done >= begin + length) {
    return options_.min_ratio;
  }
  const double part = static_cast<double>(done - begin) / static_cast<double>(length);
  return shaped(shape, part) * (1.0 - options_.min_ratio) + options_.min_ratio;
}

double LrSchedule::factor(std::int64_t done) const {
  if (done < options_.warmup) {
    return static_cast<double>(done) / static_cast<double>(options_.warmup);
  }
  const std::int64_t length = options_.decay.value_or(options_.total - options_.warmup);
  switch (options_.kind) {
    case LrScheduleKind::kConstant:
      return 1.0;
    case LrScheduleKind::kLinear:
      return decayed(DecayShape::kLinear, options_.warmup, length, done);
    case LrScheduleKind::kCosine:
      return decayed(DecayShape::kCosine, options_.warmup, length, done);
    case LrScheduleKind::kWsd:
      return done < options_.total - length ? 1.0 : decayed(options_.wsd_shape, options_.total - length, length, done);
    case LrScheduleKind::kInverseSqrt:
      return std::max(options_.min_ratio,
                      1.0 / std::sqrt(static_cast<double>(done) / static_cast<double>(options_.warmup)));
  }
  return 1.0;
}

} // namespace tieshard
