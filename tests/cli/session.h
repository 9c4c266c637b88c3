// tests/cli/session.h
//
// One command line of the program `tieshard`, run in this process with its output in strings.
//
// Flow: tests/cli -> [this] -> cli/app.h

#pragma once

#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tieshard/cli/app.h"

#include "tests/support/checkpoint_fixture.h"

namespace tieshard::testing {

/// What a user gets back.
struct Answer {
  int status = 0;
  std::string out{};
  std::string err{};

  nlohmann::json json() const {
    return nlohmann::json::parse(out);
  }
};

/// Runs `tieshard <words>`; neither stream is a terminal.
inline Answer run(const std::vector<std::string>& words) {
  std::vector<const char*> arguments{"tieshard"};
  for (const std::string& word : words) {
    arguments.push_back(word.c_str());
  }
  std::ostringstream out;
  std::ostringstream err;
  const int status = cli::run_tieshard(
      static_cast<int>(arguments.size()), arguments.data(), {.out = {.text = out}, .err = {.text = err}});
  return {.status = status, .out = out.str(), .err = err.str()};
}

} // namespace tieshard::testing
