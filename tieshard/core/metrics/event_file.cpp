#include "tieshard/core/metrics/event_file.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include <unistd.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/metrics/crc32c.h"

namespace tieshard {
namespace {

/// How a field lies in a message.
enum WireType : std::uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Field numbers of event.proto and summary.proto.
constexpr std::uint64_t kWallTime = 1;
constexpr std::uint64_t kStep = 2;
constexpr std::uint64_t kFileVersion = 3;
constexpr std::uint64_t kSummary = 5;
constexpr std::uint64_t kSessionLog = 7;
constexpr std::uint64_t kSessionStatus = 1;
constexpr std::uint64_t kSessionStart = 1; ///< a value of the status
constexpr std::uint64_t kSummaryValue = 1;
constexpr std::uint64_t kTag = 1;
constexpr std::uint64_t kSimpleValue = 2;

template <typename Number>
void append_bytes(std::string& out, Number number) {
  char bytes[sizeof(number)];
  std::memcpy(bytes, &number, sizeof(number)); // little-endian, like the machine
  out.append(bytes, sizeof(number));
}

void append_varint(std::string& out, std::uint64_t number) {
  while (number >= 0x80U) {
    out.push_back(static_cast<char>((number & 0x7FU) | 0x80U));
    number >>= 7U;
  }
  out.push_back(static_cast<char>(number));
}

void append_key(std::string& out, std::uint64_t field, WireType type) {
  append_varint(out, field << 3U | type);
}

void append_text(std::string& out, std::uint64_t field, std::string_view text) {
  append_key(out, field, kBytes);
  append_varint(out, text.size());
  out += text;
}

void append_number(std::string& out, std::uint64_t field, std::uint64_t number) {
  append_key(out, field, kVarint);
  append_varint(out, number);
}

std::string event_at(double wall_time, std::int64_t step) {
  std::string event;
  append_key(event, kWallTime, kFixed64);
  append_bytes(event, wall_time);
  append_number(event, kStep, static_cast<std::uint64_t>(step));
  return event;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// TensorBoard reads files in the order of their names: the time comes first.
std::string file_name(double wall_time) {
  char host[256] = "host";
  ::gethostname(host, sizeof(host) - 1);
  return concat("events.out.tfevents.", static_cast<std::int64_t>(wall_time), ".", host, ".", ::getpid());
}

PeerError failed(const std::string& what, const std::filesystem::path& path, const std::string& why) {
  return PeerError({.code = Code::kIoFailed,
                    .what = what,
                    .where = path.string(),
                    .why = why,
                    .fix = "check permissions and free space of --out"});
}

} // namespace

std::string tf_record(std::string_view message) {
  std::string record;
  append_bytes(record, static_cast<std::uint64_t>(message.size()));
  append_bytes(record, masked_crc32c(record));
  record += message;
  append_bytes(record, masked_crc32c(message));
  return record;
}

std::string version_event(double wall_time) {
  std::string event = event_at(wall_time, 0);
  append_text(event, kFileVersion, "brain.Event:2");
  return event;
}

std::string restart_event(double wall_time, std::int64_t step) {
  std::string status;
  append_number(status, kSessionStatus, kSessionStart);
  std::string event = event_at(wall_time, step);
  append_text(event, kSessionLog, status);
  return event;
}

std::string scalars_event(double wall_time, std::int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    append_text(value, kTag, scalar.tag);
    append_key(value, kSimpleValue, kFixed32);
    append_bytes(value, scalar.value);
    append_text(summary, kSummaryValue, value);
  }
  std::string event = event_at(wall_time, step);
  append_text(event, kSummary, summary);
  return event;
}

EventFile::EventFile(const std::filesystem::path& directory, std::int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    throw failed("the directory for TensorBoard could not be made", directory, error.message());
  }
  const double time = now();
  path_ = directory / file_name(time);
  file_.open(path_, std::ios::binary | std::ios::app);
  if (!file_) {
    throw failed("the file for TensorBoard could not be made", path_, std::strerror(errno));
  }
  append(version_event(time));
  append(restart_event(time, first_step));
}

void EventFile::write(std::int64_t step, const std::vector<Scalar>& scalars) {
  append(scalars_event(now(), step, scalars));
}

void EventFile::append(const std::string& event) {
  file_ << tf_record(event) << std::flush;
  if (!file_) {
    throw failed("the file for TensorBoard could not be written", path_, std::strerror(errno));
  }
}

} // namespace tieshard
