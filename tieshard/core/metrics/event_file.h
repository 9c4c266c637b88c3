// tieshard/core/metrics/event_file.h
//
// Numbers over steps in the files that TensorBoard reads.
//
// Flow:   runtime/train/metrics -> [this] -> OUT/tensorboard/events.out.tfevents...
// Source: TensorFlow's event.proto and summary.proto (Event, SessionLog, Summary with simple_value), a TFRecord each:
//         length (u64), its masked CRC-32C, the message, its masked CRC-32C.

#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

/// One number under the name that TensorBoard shows, such as "train/loss".
struct Scalar {
  std::string_view tag;
  float value = 0;
};

/// `message` as a TFRecord.
std::string tf_record(std::string_view message);

/// Serialised Event messages. `wall_time` is in seconds since the epoch.
std::string version_event(double wall_time);
/// Says that events of this step and later ones of earlier files are of a part of the run that was given up.
std::string restart_event(double wall_time, std::int64_t step);
std::string scalars_event(double wall_time, std::int64_t step, const std::vector<Scalar>& scalars);

/// A new file each time: TensorBoard reads all of a directory as one run.
class EventFile {
 public:
  /// Makes `directory` where it is missing. @param first_step  events of earlier files from this step on are void
  /// @throws PeerError io-failed
  EventFile(const std::filesystem::path& directory, std::int64_t first_step);

  /// Written through at once. @throws PeerError io-failed
  void write(std::int64_t step, const std::vector<Scalar>& scalars);

 private:
  void append(const std::string& event);

  std::filesystem::path path_;
  std::ofstream file_;
};

} // namespace tieshard
