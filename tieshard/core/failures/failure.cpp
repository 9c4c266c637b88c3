#include "tieshard/core/failures/failure.h"

#include <algorithm>
#include <cctype>

namespace tieshard {
namespace {

bool in_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
}

/// "model.norm.weight", and neither "torch.Size" nor "a.py".
bool is_parameter(std::string_view word) {
  constexpr std::string_view kEnds[] = {
      ".weight", ".bias", ".lora_A", ".lora_B", "_proj", "_blocks", "_scales", ".sinks", "_bias"};
  return word.find('.') != std::string_view::npos &&
         std::ranges::any_of(kEnds, [&](std::string_view end) { return word.ends_with(end); });
}

std::vector<std::string> parameters_in(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at < text.size();) {
    if (!in_name(text[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && in_name(text[end])) {
      ++end;
    }
    std::string_view word = text.substr(at, end - at);
    while (word.ends_with('.')) {
      word.remove_suffix(1);
    }
    if (is_parameter(word)) {
      names.emplace_back(word);
    }
    at = end;
  }
  return names;
}

} // namespace

std::string_view id(Phase phase) {
  switch (phase) {
    case Phase::kMaterialize:
      return "materialize";
    case Phase::kShard:
      return "shard";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kStep:
      return "step";
    case Phase::kSave:
      return "save";
  }
  return "unknown";
}

std::string parameter_in(std::string_view text) {
  const std::vector<std::string> names = parameters_in(text);
  return names.empty() ? "" : names.front();
}

std::string least_parameter_in(std::string_view text) {
  const std::vector<std::string> names = parameters_in(text);
  return names.empty() ? "" : std::ranges::min(names);
}

std::string parameter_key(const LogException& exception) {
  std::string_view key = exception.message;
  if (exception.type != "KeyError" || key.empty()) {
    return {};
  }
  if (key.front() == '\'' || key.front() == '"') {
    key = key.substr(1, key.find(key.front(), 1) - 1); // what follows it was printed by somebody else
  }
  return key.find(' ') == std::string_view::npos ? parameter_in(key) : "";
}

bool says(std::string_view text, const std::vector<std::string_view>& words) {
  std::size_t at = 0;
  for (const std::string_view word : words) {
    at = text.find(word, at);
    if (at == std::string_view::npos) {
      return false;
    }
    at += word.size();
  }
  return true;
}

const std::vector<Failure>& known_failures() {
  static const std::vector<Failure> all = [] {
    std::vector<Failure> failures;
    for (const auto* some : {&failures_of_optimizers(),
                             &failures_of_units(),
                             &failures_of_ties(),
                             &failures_of_loading(),
                             &failures_of_runs()}) {
      failures.insert(failures.end(), some->begin(), some->end());
    }
    return failures;
  }();
  return all;
}

} // namespace tieshard
