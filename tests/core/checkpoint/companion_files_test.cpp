#include "tieshard/core/checkpoint/companion_files.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

TEST(CompanionFiles, AreWhatTokenizersAndGenerationLeaveBesideTheWeights) {
  const CheckpointFixture source; // has a config.json
  const fs::path& from = source.path();
  for (const char* name : {"tokenizer.json",
                           "merges.txt",
                           "spiece.model",
                           "chat_template.jinja",
                           "generation_config.json",
                           "config.json",
                           "manifest.json",
                           "trainer.json",
                           "model.safetensors.index.json",
                           ".hidden.json",
                           "adapter_config.json",
                           "model.safetensors",
                           "README.md"}) {
    write(from / name, name);
  }
  fs::create_directory(from / "folder.json");
  const CheckpointFixture target;
  const fs::path& to = target.path();
  fs::remove(to / "config.json");
  copy_companion_files(from, to);
  std::vector<std::string> copied;
  for (const fs::directory_entry& entry : fs::directory_iterator(to)) {
    copied.push_back(entry.path().filename());
    std::string text;
    std::ifstream(entry.path()) >> text;
    EXPECT_EQ(text, copied.back());
  }
  EXPECT_THAT(copied,
              ::testing::UnorderedElementsAre(
                  "tokenizer.json", "merges.txt", "spiece.model", "chat_template.jinja", "generation_config.json"));
}

} // namespace
} // namespace tieshard::testing
