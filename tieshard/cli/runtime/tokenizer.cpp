#include "tieshard/cli/runtime/tokenizer.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

constexpr int kNoPackage = 3;
constexpr int kBadFile = 4;
constexpr int kNoPython = 127;

/// A task and tokenizer.json as arguments; a text or a JSON array of tokens in, the other out.
constexpr const char* kProgram = R"(
import json, sys
try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit(3)
try:
    tokenizer = Tokenizer.from_file(sys.argv[2])
except Exception as error:
    print(error, end="")
    sys.exit(4)
given = sys.stdin.buffer.read().decode("utf-8", errors="replace")
if sys.argv[1] == "encode":
    print(json.dumps(tokenizer.encode(given).ids))
else:
    sys.stdout.buffer.write(tokenizer.decode(json.loads(given)).encode("utf-8"))
)";

/// Both streams of the child go over one connection, which ends without a signal when the child does.
class Connection {
 public:
  Connection() {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_.data()) != 0) {
      throw PeerError({.code = Code::kIoFailed,
                       .what = "a program could not be started",
                       .where = "the tokenizer's Python",
                       .why = std::strerror(errno)});
    }
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    ::close(ends_[0]);
    close_childs_end();
  }

  int childs_end() const {
    return ends_[1];
  }
  void close_childs_end() {
    if (ends_[1] >= 0) {
      ::close(std::exchange(ends_[1], -1));
    }
  }

  /// The program reads all of its input before it writes: the two directions cannot wait for each other.
  void write_all(const std::string& text) const {
    std::size_t written = 0;
    while (written < text.size()) {
      const ssize_t count = ::send(ends_[0], text.data() + written, text.size() - written, MSG_NOSIGNAL);
      if (count < 0 && errno != EINTR) {
        break; // it has ended, and its status says why
      }
      written += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    ::shutdown(ends_[0], SHUT_WR);
  }

  std::string read_all() const {
    std::string text;
    std::array<char, 4096> piece{};
    for (;;) {
      const ssize_t count = ::read(ends_[0], piece.data(), piece.size());
      if (count == 0 || (count < 0 && errno != EINTR)) {
        return text;
      }
      text.append(piece.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
    }
  }

 private:
  std::array<int, 2> ends_{-1, -1}; ///< ours, the child's
};

const char* python() {
  const char* const chosen = std::getenv("TIESHARD_PYTHON");
  return chosen != nullptr && *chosen != '\0' ? chosen : "python3";
}

[[noreturn]] void become_python(int streams, const char* task, const char* file) {
  ::dup2(streams, STDIN_FILENO);
  ::dup2(streams, STDOUT_FILENO);
  ::execlp(python(), python(), "-c", kProgram, task, file, nullptr);
  ::_exit(kNoPython);
}

InputError no_python(const std::string& why) {
  return InputError({.code = Code::kFileNotFound,
                     .what = "texts need a Python with the package tokenizers",
                     .where = python(),
                     .why = why,
                     .fix = "pip install tokenizers, set TIESHARD_PYTHON to a Python that has it, or give tokens "
                            "(--prompt-tokens)"});
}

} // namespace

Tokenizer::Tokenizer(const std::filesystem::path& model) : file_(model / "tokenizer.json") {
  std::error_code error;
  if (!std::filesystem::exists(file_, error)) {
    throw InputError({.code = Code::kFileNotFound,
                      .what = "a model has no tokenizer.json",
                      .where = file_.string(),
                      .why = "expected the file that says how texts become tokens, got none",
                      .fix = "copy it from where the model comes from, or give tokens (--prompt-tokens)"});
  }
}

std::string Tokenizer::call(const char* task, const std::string& input) const {
  Connection connection;
  const pid_t child = ::fork();
  if (child == 0) {
    become_python(connection.childs_end(), task, file_.c_str());
  }
  connection.close_childs_end();
  connection.write_all(input);
  std::string output = connection.read_all();
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const int ended = child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : kNoPython;
  if (ended == kNoPackage || ended == kNoPython) {
    throw no_python(ended == kNoPackage ? "expected the package tokenizers, got a Python without it"
                                        : "expected a Python that can be started, got none");
  }
  if (ended != 0) {
    throw InputError({.code = Code::kDataMalformed,
                      .what = "a tokenizer.json cannot be used",
                      .where = file_.string(),
                      .why = ended == kBadFile ? output : concat("Python ended with status ", ended),
                      .fix = "copy the file again, or give tokens (--prompt-tokens)"});
  }
  return output;
}

std::vector<std::int64_t> Tokenizer::encode(const std::string& text) const {
  return nlohmann::json::parse(call("encode", text)).get<std::vector<std::int64_t>>();
}

std::string Tokenizer::decode(const std::vector<std::int64_t>& tokens) const {
  return call("decode", nlohmann::json(tokens).dump());
}

} // namespace tieshard::cli
