#include "tieshard/cli/runtime_program.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

// execv wants a null-terminated array of mutable pointers; `words` must outlive it.
std::vector<char*> argument_pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) {
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> with_program(const std::filesystem::path& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> words{program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

/// A training run answers these by saving; until it can, they wait. Execution keeps the mask.
void hold_stop_signals() {
  sigset_t stops;
  ::sigemptyset(&stops);
  ::sigaddset(&stops, SIGTERM);
  ::sigaddset(&stops, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &stops, nullptr);
}

[[noreturn]] void throw_system(std::string what, std::string where) {
  throw PeerError(
      {.code = Code::kIoFailed, .what = std::move(what), .where = std::move(where), .why = std::strerror(errno)});
}

} // namespace

bool is_runtime_verb(const std::string& verb) {
  return verb == "train" || verb == "eval" || verb == "generate" || verb == "forward";
}

std::filesystem::path own_program() {
  std::error_code failed;
  std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "the program cannot find its own file",
                     .where = "/proc/self/exe",
                     .why = failed.message(),
                     .fix = "mount /proc"});
  }
  return program;
}

std::filesystem::path runtime_program() {
  std::filesystem::path program = own_program().parent_path() / "tieshard-runtime";
  std::error_code failed;
  if (!std::filesystem::exists(program, failed)) {
    throw InputError(
        {.code = Code::kFileNotFound,
         .what = "tieshard-runtime, which trains and computes, is not built",
         .where = program.string(),
         .why = "train, eval, generate, forward and demo need LibTorch; this build has the torch-free rooms only",
         .fix = "build it with `make build` (or `cmake --workflow --preset dev`)"});
  }
  return program;
}

void hand_over_to_runtime(const std::vector<std::string>& arguments) {
  const std::filesystem::path program = runtime_program();
  std::vector<std::string> words = with_program(program, arguments);
  if (!arguments.empty() && arguments.front() == "train") {
    hold_stop_signals();
  }
  ::execv(program.c_str(), argument_pointers(words).data());
  throw InputError({.code = Code::kFileUnreadable,
                    .what = "tieshard-runtime cannot be executed",
                    .where = program.string(),
                    .why = std::strerror(errno),
                    .fix = "build it again with `make build`"});
}

int run_program(const std::filesystem::path& program,
                const std::vector<std::string>& arguments,
                const std::filesystem::path& output) {
  std::vector<std::string> words = with_program(program, arguments);
  const std::vector<char*> pointers = argument_pointers(words);
  const int file = output.empty() ? -1 : ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (!output.empty() && file < 0) {
    throw_system("a file for a program's output could not be made", output.string());
  }
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    throw_system("a program could not be started", program.string());
  }
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (file >= 0) {
      ::dup2(file, STDOUT_FILENO);
      ::dup2(file, STDERR_FILENO);
    }
    if (::getppid() == parent) { // else the parent died before prctl was asked
      ::execv(program.c_str(), pointers.data());
    }
    ::_exit(127);
  }
  if (file >= 0) {
    ::close(file);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      throw_system("a program could not be waited for", program.string());
    }
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

} // namespace tieshard::cli
