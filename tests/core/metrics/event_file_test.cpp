#include "tieshard/core/metrics/event_file.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/metrics/crc32c.h"

#include "tests/core/base/temp_dir.h"
#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

TEST(Crc32c, HasTheValuesOfRfc3720) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  std::string rising;
  for (char byte = 0; byte < 32; ++byte) {
    rising.push_back(byte);
  }
  EXPECT_EQ(crc32c(rising), 0x46DD794EU);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(TfRecord, FramesAMessageByLengthAndTwoMaskedChecksums) {
  const std::string record = tf_record("abc");
  ASSERT_EQ(record.size(), 8U + 4 + 3 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x03\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 3), "abc");
  std::uint32_t stored = 0;
  std::memcpy(&stored, record.data() + 15, 4);
  const std::uint32_t plain = crc32c("abc");
  EXPECT_EQ(stored, ((plain >> 15U) | (plain << 17U)) + 0xA282EAD8U);
}

TEST(Events, AreTheProtocolBuffersOfTensorFlow) {
  const std::string time("\x09\0\0\0\0\0\0\xF8\x3F", 9); // field 1, 64 bits: 1.5
  EXPECT_EQ(version_event(1.5),
            time + std::string("\x10\0", 2) +
                "\x1a\x0d"
                "brain.Event:2");
  EXPECT_EQ(restart_event(1.5, 300), time + "\x10\xAC\x02" + "\x3a\x02\x08\x01");
  const std::string value = std::string(
                                "\x0a\x01"
                                "a\x15",
                                4) +
                            std::string("\0\0\0\x40", 4); // tag "a", 2.0
  EXPECT_EQ(scalars_event(1.5, 7, {{"a", 2.0F}}), time + "\x10\x07" + "\x2a\x0a" + "\x0a\x08" + value);
}

TEST(EventFile, BeginsWithVersionAndRestartAndIsWrittenThrough) {
  const TempDir temp;
  const std::filesystem::path directory = temp / "tensorboard";
  EventFile file(directory, 4);
  file.write(4, {{"train/loss", 1.0F}});
  std::filesystem::path path;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    path = entry.path();
  }
  EXPECT_THAT(path.filename().string(), ::testing::StartsWith("events.out.tfevents."));
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  const std::size_t head = 16 + version_event(0).size() + 16 + restart_event(0, 4).size();
  EXPECT_EQ(bytes.size(), head + 16 + scalars_event(0, 4, {{"train/loss", 1.0F}}).size());
}

TEST(EventFile, ThatCannotBeMadeIsRefused) {
  const TempDir temp;
  const std::filesystem::path file = temp / "file";
  std::ofstream(file) << "in the way";
  expect_refusal([&] { EventFile(file, 1); }, Code::kIoFailed, {"TensorBoard", "file"});
}

} // namespace
} // namespace tieshard::testing
