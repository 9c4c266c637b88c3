#include "tieshard/core/state/trainer_state.h"

#include <nlohmann/json.hpp>

#include "tieshard/core/base/json.h"
#include "tieshard/core/state/record_value.h"

namespace tieshard {

std::string to_json(const TrainerState& state) {
  const nlohmann::ordered_json document{{"version", TrainerState::kVersion},
                                        {"step", state.step},
                                        {"samples", state.samples},
                                        {"tokens", state.tokens},
                                        {"flags", state.flags},
                                        {"generators", state.generators}};
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

TrainerState parse_trainer_state(std::string_view text, const std::string& where) {
  const Json parsed = parse_json(text, where);
  const RecordValue document(parsed, where);
  require_version(document, TrainerState::kVersion);
  document.require_only({"version", "step", "samples", "tokens", "flags", "generators"});
  TrainerState state{.step = document.member("step").integer(0),
                     .samples = document.member("samples").integer(0),
                     .tokens = document.member("tokens").integer(0)};
  for (const RecordValue& generator : document.member("generators").elements()) {
    state.generators.push_back(generator.hexadecimal(0));
  }
  for (const auto& [name, flag] : document.member("flags").members()) {
    state.flags[name] = flag.any_text();
  }
  return state;
}

} // namespace tieshard
