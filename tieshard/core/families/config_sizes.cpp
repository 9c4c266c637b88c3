#include "tieshard/core/families/config_sizes.h"

#include <algorithm>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/shape.h"

namespace tieshard {
namespace {

constexpr std::int64_t kMostLayers = 100'000;

} // namespace

void refuse_config(const HfConfig& config, std::string_view key, const std::string& why, const std::string& fix) {
  throw InputError({.code = Code::kConfigValue,
                    .what = "a field of config.json has a value that cannot be used",
                    .where = concat(config.where(), ", ", key),
                    .why = why,
                    .fix = fix});
}

void require_positive(const HfConfig& config, std::string_view key, std::int64_t value) {
  if (value < 1) {
    refuse_config(
        config, key, concat("expected at least 1, got ", value), "write the size that the weights were made with");
  }
}

std::int64_t positive(const HfConfig& config, std::string_view key) {
  const std::int64_t value = config.integer(key);
  require_positive(config, key, value);
  return value;
}

std::int64_t positive_or(const HfConfig& config, std::string_view key, std::int64_t fallback) {
  const std::int64_t value = config.integer_or(key, fallback);
  require_positive(config, key, value);
  return value;
}

void require_layer_count(const HfConfig& config, std::string_view key, std::int64_t layers) {
  if (layers > kMostLayers) {
    refuse_config(config,
                  key,
                  concat("expected at most ", kMostLayers, ", got ", layers),
                  "write the number of layers that the weights have");
  }
}

void require_multiple(const HfConfig& config,
                      std::string_view whole_key,
                      std::int64_t whole,
                      std::string_view part_key,
                      std::int64_t part) {
  if (whole % part != 0) {
    refuse_config(config,
                  whole_key,
                  concat("expected a multiple of ", part_key, " = ", part, ", got ", whole),
                  "write the sizes that the weights were made with");
  }
}

std::int64_t product(const HfConfig& config, std::string_view key, std::int64_t a, std::int64_t b) {
  const auto result = checked_numel({a, b});
  if (!result) {
    refuse_config(
        config, key, concat("a size overflows: ", a, " * ", b), "write the sizes that the weights were made with");
  }
  return *result;
}

bool is_model_class(const HfConfig& config,
                    std::string_view model_type,
                    std::initializer_list<std::string_view> architectures) {
  const bool is_class = std::ranges::find(architectures, config.architecture()) != architectures.end();
  if (config.model_type() == model_type) {
    return is_class || config.architecture().empty();
  }
  return config.model_type().empty() && is_class;
}

} // namespace tieshard
