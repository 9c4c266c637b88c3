// tieshard/cli/runtime/tokenizer.h
//
// Text into tokens and back, by a model's tokenizer.json.
//
// Flow:   generate_verb -> [this] -> a Python with the package tokenizers, started for each call
// Source: Hugging Face tokenizers, which is the definition of the file.

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tieshard::cli {

/// Python is $TIESHARD_PYTHON, else python3. It is needed for texts only: tokens go without.
class Tokenizer {
 public:
  /// @throws InputError file-not-found where the directory has no tokenizer.json
  explicit Tokenizer(const std::filesystem::path& model);

  /// Special tokens that the file puts around a text (mostly one before it) are put there.
  /// @throws InputError file-not-found (no Python, or one without the package), data-malformed (a file
  ///         that the package cannot read)
  std::vector<std::int64_t> encode(const std::string& text) const;

  /// Special tokens are left out. @throws as encode()
  std::string decode(const std::vector<std::int64_t>& tokens) const;

 private:
  std::string call(const char* task, const std::string& input) const;

  std::filesystem::path file_;
};

} // namespace tieshard::cli
