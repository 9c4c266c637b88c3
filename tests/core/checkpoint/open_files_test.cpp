#include "tieshard/core/checkpoint/open_files.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/checkpoint/checkpoint_files.h"

namespace tieshard {
namespace {

class OpenFiles : public testing::Test {
 protected:
  OpenFiles() {
    for (int i = 0; i < 100; ++i) {
      const std::string name = std::to_string(i) + ".safetensors";
      dir.write(name, u8_file({{"tensor" + std::to_string(i), std::string(static_cast<std::size_t>(i), 'x')}}));
      paths.push_back(dir.path() / name);
    }
  }

  TempDir dir;
  std::vector<std::filesystem::path> paths;
};

TEST_F(OpenFiles, KeepsTheOrderOfThePaths) {
  const std::vector<SafetensorsFile> files = open_files(paths, {});
  ASSERT_EQ(files.size(), paths.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(files[i].file().path(), paths[i]);
    EXPECT_EQ(files[i].header().tensors.at(0).name, "tensor" + std::to_string(i));
  }
  EXPECT_TRUE(open_files({}, {}).empty());
}

TEST_F(OpenFiles, RefusesTheFirstBadFileWhicheverThreadMeetsOneFirst) {
  // The first bad file takes long to be refused, those after it no time.
  std::string slow = "{";
  for (int i = 0; i < 20'000; ++i) {
    slow += entry("t" + std::to_string(i), "U8", "[0]", "[0,0]") + ",";
  }
  dir.write("50.safetensors", packed(slow + "]", ""));
  for (int i = 51; i < 100; ++i) {
    dir.write(std::to_string(i) + ".safetensors", "");
  }
  for (int i = 0; i < 5; ++i) {
    expect_refusal<InputError>(Code::kHeaderNotJson, {"50.safetensors"}, [this] { open_files(paths, {}); });
  }
}

TEST_F(OpenFiles, PassesTheLimitsOn) {
  expect_refusal<InputError>(
      Code::kHeaderTooLarge, {"0.safetensors"}, [this] { open_files(paths, {.max_header_bytes = 4}); });
}

} // namespace
} // namespace tieshard
