#include "tieshard/cli/runtime/ranks.h"

#include <chrono>
#include <thread>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/runtime/mesh/local_device.h"
#include "tieshard/runtime/mesh/local_launcher.h"
#include "tieshard/runtime/mesh/rank_environment.h"

namespace tieshard::cli {
namespace {

constexpr std::chrono::seconds kFollowerDelay{1};

bool only_followed(const Diagnostic& diagnostic) {
  return diagnostic.code == Code::kPeerFailed || diagnostic.code == Code::kCollectiveFailed;
}

/// A rank that only followed says so in one line, after the cause.
void report_follower(const Console& console, const Diagnostic& diagnostic) {
  std::this_thread::sleep_for(kFollowerDelay);
  console.err.text << concat(diagnostic.where, " stopped: ", diagnostic.why, " [", id(diagnostic.code), "]\n");
  console.err.text.flush();
}

/// What a rank found itself, with the rank's number where there are several.
void report_own(const Console& console, const DeviceMesh& mesh, Diagnostic diagnostic) {
  if (mesh.size() > 1 && !diagnostic.where.starts_with("rank ")) {
    diagnostic.where = diagnostic.where.empty() ? mesh.where() : concat(mesh.where(), ", ", diagnostic.where);
  }
  print_diagnostic(console.err, diagnostic);
  console.err.text.flush();
}

/// The body of one rank. `mesh` outlives the report, so that the others cannot notice the end before it is printed.
int be_rank(const DeviceMesh& mesh, const Console& console, const std::function<void(const DeviceMesh&)>& work) {
  return run_verb(
      [&]() -> int {
        try {
          work(mesh);
          return kExitSuccess;
        } catch (const Error& error) {
          const Diagnostic& diagnostic = error.diagnostic();
          only_followed(diagnostic) ? report_follower(console, diagnostic) : report_own(console, mesh, diagnostic);
          return exit_status(error);
        }
      },
      console);
}

void require_same_count(const RankFlags& flags, const RankEnvironment& environment) {
  if (flags.ranks != 1 && flags.ranks != environment.world_size) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "--ranks contradicts the launcher",
                      .where = "--ranks",
                      .why = concat("expected ", environment.world_size, " as the launcher started, got ", flags.ranks),
                      .fix = "leave --ranks out under torchrun, srun and mpirun"});
  }
}

RankEnvironment rank_environment(const RankFlags& flags) {
  RankEnvironment environment = read_rank_environment();
  environment.device = device_choice(flags.device).value_or(environment.device);
  return environment;
}

} // namespace

void add_rank_flags(CLI::App& verb, RankFlags& flags) {
  verb.add_option(
          "--ranks", flags.ranks, "Processes to start on this host; under torchrun, srun or mpirun leave it out")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  verb.add_option("--threads", flags.threads, "Threads of each rank")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  verb.add_option("--device", flags.device, "cpu, or cuda: each rank on a GPU of its own (docs/devices.md) [cpu]")
      ->check(one_of({"cpu", "cuda"}));
  verb.add_option("--timeout", flags.timeout_s, "Seconds to wait for another rank before giving up")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
}

std::int64_t rank_count(const RankFlags& flags) {
  const std::int64_t started = read_rank_environment().world_size;
  return started == 1 ? flags.ranks : started;
}

int run_ranks(const RankFlags& flags,
              const Console& console,
              const std::function<void(const DeviceMesh&)>& work,
              OnStopSignal on_stop) {
  RankEnvironment environment = rank_environment(flags);
  require_device_in_build(environment.device);
  if (flags.ranks > 1 && environment.world_size == 1) {
    const auto report = [&console](const Diagnostic& diagnostic) { print_diagnostic(console.err, diagnostic); };
    if (const auto status = launch_local({.ranks = flags.ranks, .on_stop = on_stop, .on_death = report})) {
      return *status;
    }
    environment = rank_environment(flags); // this process is one of the ranks now
  }
  require_same_count(flags, environment);
  const std::chrono::seconds timeout(flags.timeout_s);
  const DeviceMesh mesh =
      flags.replicas == 1
          ? DeviceMesh::connect(environment, timeout)
          : DeviceMesh::connect(environment, timeout, {flags.replicas, environment.world_size / flags.replicas});
  return be_rank(mesh, console, work);
}

LoadOptions load_options(const LoadFlags& flags, int threads) {
  const LocalShardOptions options = flags.options();
  return {.threads = threads,
          .read_buffer = options.read_buffer,
          .map = options.map,
          .check_values = options.check_values,
          .host_ram = options.host_ram,
          .sources = flags.sources()};
}

TokenDtype token_dtype_flag(const std::string& text) {
  return text == "uint16" ? TokenDtype::kUint16 : text == "uint32" ? TokenDtype::kUint32 : TokenDtype::kAuto;
}

void add_token_dtype_flag(CLI::App& verb, std::string& text) {
  verb.add_option(
          "--data-dtype", text, "Of a raw token file; auto: uint16 up to 65,536 tokens of vocabulary, else uint32")
      ->check(one_of({"auto", "uint16", "uint32"}))
      ->capture_default_str();
}

} // namespace tieshard::cli
