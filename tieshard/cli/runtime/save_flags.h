// tieshard/cli/runtime/save_flags.h
//
// The flags of train that say when its state is saved, and what it goes on from.
//
// Flow: train_verb -> [this] -> train_config

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/runtime/train/train_config.h"

namespace CLI { // NOLINT(readability-identifier-naming): CLI11's own name
class App;
class Option;
} // namespace CLI

namespace tieshard::cli {

struct SaveFlags {
  std::string every{};
  std::int64_t keep = 3;
  std::string async{};
  CLI::Option* resume = nullptr; ///< may be given without a value
  std::vector<std::string> resume_from{};
  bool verify = false;
  std::string export_dtype{};
};

void add_save_flags(CLI::App& verb, SaveFlags& flags);

/// @throws InputError bad-flag
void apply(const SaveFlags& flags, TrainConfig& config);

} // namespace tieshard::cli
