#include "tieshard/core/failures/log_facts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>

#include "tieshard/core/base/error.h"
#include "tieshard/core/failures/log_ends.h"
#include "tieshard/core/failures/log_lines.h"
#include "tieshard/core/failures/log_prefixes.h"

namespace tieshard {
namespace {

constexpr std::size_t kMostExceptions = 224;
constexpr std::size_t kMostEnds = 16; ///< of each kind
constexpr std::size_t kMostStreams = 4096;
constexpr std::size_t kMostFrames = 128;
constexpr std::size_t kLongestMessage = 4 << 10;
constexpr std::size_t kMostTelling = 64;
constexpr int kMostMessageLines = 12;

/// Parts of lines that tell something without being an exception.
constexpr std::array<std::string_view, 9> kTelling = {"not initialized from the model checkpoint",
                                                      "newly initialized",
                                                      "MISSING",
                                                      "out of memory",
                                                      "Killed",
                                                      "exitcode",
                                                      "Watchdog",
                                                      "signal",
                                                      "No space left on device"};

constexpr std::array<std::string_view, 7> kFrameworks = {
    "accelerate", "transformers", "deepspeed", "torchtitan", "safetensors", "peft", "torch"};

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  }) && std::isdigit(static_cast<unsigned char>(text.front())) == 0;
}

/// A name of a class, as queue.Empty or StopIteration; not INFO.
bool is_class(std::string_view type) {
  return std::isupper(static_cast<unsigned char>(type.front())) != 0 &&
         std::ranges::any_of(type, [](unsigned char c) { return std::islower(c) != 0; });
}

/// "KeyError: 'x'" or "torch.cuda.OutOfMemoryError: CUDA ..": an exception's last line. A type ends in Error or
/// Exception, or is one of a few; after the frames of a traceback it is any class.
std::optional<LogException> exception_of(std::string_view text, bool after_frames) {
  const std::size_t colon = text.find(':');
  std::string_view type = text.substr(0, colon);
  if (!is_name(type)) {
    return std::nullopt;
  }
  type = type.substr(type.rfind('.') == std::string_view::npos ? 0 : type.rfind('.') + 1);
  if (type.empty()) {
    return std::nullopt;
  }
  const bool known = type.ends_with("Error") || type.ends_with("Exception") || type.ends_with("ExceptionGroup") ||
                     type == "KeyboardInterrupt" || type == "SystemExit" || (after_frames && is_class(type));
  const bool has_message = colon != std::string_view::npos && (colon + 1 == text.size() || text[colon + 1] == ' ');
  if (!known || (colon != std::string_view::npos && !has_message)) {
    return std::nullopt;
  }
  LogException exception{.type = std::string(type)};
  if (has_message && colon + 2 <= text.size()) {
    exception.message = std::string(text.substr(colon + 2));
    std::ranges::replace(exception.message, '\t', ' ');
  }
  return exception;
}

/// `  File "a.py", line 3, in f`.
std::optional<LogFrame> frame_of(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos || begin == 0 || !text.substr(begin).starts_with("File \"")) {
    return std::nullopt;
  }
  const std::size_t name = begin + 6;
  const std::size_t end = text.find("\", line ", name);
  if (end == std::string_view::npos) {
    return std::nullopt;
  }
  const std::size_t in = text.find(", in ", end);
  return LogFrame{.file = std::string(text.substr(name, end - name)),
                  .function = in == std::string_view::npos ? "" : std::string(text.substr(in + 5))};
}

/// A line as a message: without its indentation, and of a message's length.
std::string as_message(std::string text) {
  text.erase(0, text.find_first_not_of(" \t"));
  std::ranges::replace(text, '\t', ' ');
  text.resize(std::min(text.size(), kLongestMessage));
  return text;
}

/// Where the lines of one rank, or of one prefix, stand.
struct Stream {
  std::vector<LogFrame> frames{};
  bool in_traceback = false;
  std::ptrdiff_t open = -1; ///< exception whose message may go on
  int message_lines = 0;
};

/// Whether all of a KeyError's message is here: one quoted key.
bool is_whole_key(const LogException& exception) {
  const std::string& message = exception.message;
  return exception.type == "KeyError" && message.size() > 1 && (message.front() == '\'' || message.front() == '"') &&
         message.find(message.front(), 1) == message.size() - 1;
}

class Reader {
 public:
  void take(LogLine& line) {
    facts_.lines = line.number;
    std::uint64_t key = prefixes_.strip(line);
    const bool begins = line.text.find(kTraceback) != std::string::npos;
    if (begins && !line.text.starts_with(kTraceback)) {
      key = prefixes_.learn(line);
    }
    if (line.rank >= 0) {
      facts_.ranks.insert(line.rank);
    }
    if (streams_.size() >= kMostStreams) {
      streams_.clear();
    }
    Stream& stream = streams_[key];
    if (begins) {
      facts_.tracebacks_cut += stream.in_traceback ? 1 : 0;
      stream = {.in_traceback = true};
      return;
    }
    if (!take_frame(line, stream) && !take_exception(line, stream)) {
      note_end(line);
      if (!go_on(line, stream)) {
        note_telling(line.text);
        note_random_weights(line);
      }
    }
  }

  LogFacts facts() && {
    for (const auto& [key, stream] : streams_) {
      facts_.tracebacks_cut += stream.in_traceback ? 1 : 0;
    }
    return std::move(facts_);
  }

 private:
  /// A frame, or the line of the program below it.
  bool take_frame(const LogLine& line, Stream& stream) {
    if (std::optional<LogFrame> frame = frame_of(line.text)) {
      note_framework(frame->file);
      if (stream.frames.size() < kMostFrames) {
        stream.frames.push_back(std::move(*frame));
      }
      stream.open = -1;
      return true;
    }
    if (stream.in_traceback && !stream.frames.empty() && line.text.starts_with("  ")) {
      std::string& source = stream.frames.back().source;
      if (source.empty()) {
        source = line.text.substr(std::min(line.text.find_first_not_of(' '), line.text.size()));
      }
      return true;
    }
    return false;
  }

  bool take_exception(const LogLine& line, Stream& stream) {
    std::optional<LogException> exception = exception_of(line.text, stream.in_traceback && !stream.frames.empty());
    if (exception) {
      add(std::move(*exception), line, stream);
    }
    return exception.has_value();
  }

  void note_framework(std::string_view path) {
    for (const std::string_view name : kFrameworks) {
      if (path.find(concat("/", name, "/")) != std::string_view::npos) {
        facts_.frameworks.emplace(name);
      }
    }
  }

  void add(LogException exception, const LogLine& line, Stream& stream) {
    exception.frames = std::move(stream.frames);
    exception.rank = line.rank;
    exception.line = line.number;
    stream = {};
    if (facts_.exceptions.size() < kMostExceptions) {
      stream.open = is_whole_key(exception) ? -1 : static_cast<std::ptrdiff_t>(facts_.exceptions.size());
      facts_.exceptions.push_back(std::move(exception));
    }
  }

  /// A further line of the message of the exception before. @return false when it is none
  bool go_on(const LogLine& line, Stream& stream) {
    const bool ends = line.text.find_first_not_of(" \t") == std::string::npos ||
                      line.text.starts_with("During handling") || line.text.starts_with("The above exception") ||
                      stream.message_lines >= kMostMessageLines;
    if (stream.open < 0 || ends) {
      stream.open = -1;
      return false;
    }
    std::string& message = facts_.exceptions[static_cast<std::size_t>(stream.open)].message;
    const bool rule = line.text.find_first_not_of("=- ") == std::string::npos; // a launcher's table
    if (!rule && message.size() < kLongestMessage) {
      const std::size_t begin = line.text.find_first_not_of(" \t");
      message += concat(message.empty() ? "" : " ", line.text.substr(begin));
      std::ranges::replace(message, '\t', ' ');
      message.resize(std::min(message.size(), kLongestMessage));
    }
    ++stream.message_lines;
    return true;
  }

  /// How a process or a wait ended, where no exception says it.
  void note_end(const LogLine& line) {
    const LogEnd end = end_of(line.text);
    if (end != LogEnd::kNone && ++ends_[end] <= kMostEnds) {
      facts_.exceptions.push_back(
          {.type = kEndLine, .message = as_message(line.text), .rank = line.rank, .line = line.number});
    }
  }

  /// A warning that says what an exception would: weights that no file gave their values.
  void note_random_weights(const LogLine& line) {
    const bool one_name = line.text.find('{') == std::string::npos; // not layers.{0, 1}, which stands for several
    if (one_name && line.text.find("| MISSING") != std::string::npos && first_missing_.message.empty()) {
      first_missing_ = {.type = kWarningLine,
                        .message = concat(line.text.substr(0, line.text.find_first_of(" |")), ": MISSING"),
                        .rank = line.rank,
                        .line = line.number};
    }
    const bool random = line.text.find("newly initialized") != std::string::npos ||
                        line.text.find("not initialized from the model checkpoint") != std::string::npos;
    if (!random || facts_.exceptions.size() >= kMostExceptions) {
      return;
    }
    const bool legend = line.text.find("- MISSING:") != std::string::npos && !first_missing_.message.empty();
    facts_.exceptions.push_back(
        legend ? first_missing_
               : LogException{
                     .type = kWarningLine, .message = as_message(line.text), .rank = line.rank, .line = line.number});
  }

  void note_telling(const std::string& text) {
    const auto tells = [&](std::string_view part) { return text.find(part) != std::string::npos; };
    if (facts_.telling.size() < kMostTelling && std::ranges::any_of(kTelling, tells)) {
      facts_.telling.push_back(text);
    }
    for (const std::string_view name : kFrameworks) {
      const std::size_t at = text.find(name);
      const std::string_view after = at == std::string::npos ? "" : std::string_view(text).substr(at + name.size());
      if (after.starts_with(".") || after.starts_with("==")) {
        facts_.frameworks.emplace(name);
      }
    }
  }

  LogFacts facts_;
  LogPrefixes prefixes_;
  std::map<std::uint64_t, Stream> streams_;
  std::map<LogEnd, std::size_t> ends_;
  LogException first_missing_; ///< of a load report's table
};

std::string file_name(const std::string& path) {
  const std::size_t slash = path.find_last_of("/\\");
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

} // namespace

bool LogException::came_through(std::string_view word) const {
  return std::ranges::any_of(frames, [&](const LogFrame& frame) {
    return frame.file.find(word) != std::string::npos || frame.function.find(word) != std::string::npos;
  });
}

std::string LogException::place() const {
  return frames.empty() ? "" : concat(file_name(frames.back().file), ", ", frames.back().function);
}

LogFacts read_log(std::istream& in) {
  Reader reader;
  LogLine line;
  constexpr std::uint64_t kFirstLines = 4; // a binary file shows itself early
  while (next_log_line(in, line)) {
    const std::string_view binary = line.number <= kFirstLines ? binary_kind(line.raw) : "";
    if (!binary.empty()) {
      return {.lines = line.number, .binary = std::string(binary)};
    }
    reader.take(line);
  }
  return std::move(reader).facts();
}

} // namespace tieshard
