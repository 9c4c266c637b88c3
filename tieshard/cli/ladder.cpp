#include "tieshard/cli/ladder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <utility>

#include "tieshard/cli/runtime_program.h"
#include "tieshard/cli/table.h"
#include "tieshard/cli/temporary_folder.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/safetensors_file.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/families/t5.h"
#include "tieshard/core/ties/resolved_model.h"

namespace tieshard::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTokens = 16;

/// What has changed since the rung below.
struct Step {
  const char* name;
  const char* stage;
  std::int64_t ranks;
  const char* suspect; ///< where to look when this rung is the first to fail
};

std::vector<Step> steps_to(std::int64_t ranks) {
  std::vector<Step> steps{
      {"eager", "eager", 1, "nothing is on the meta device or sharded yet: it is the checkpoint or the model itself"},
      {"meta and load", "load", 1, "the model works with its bytes: it is how a meta parameter gets them, or a tie"},
      {"sharded", "shard", 1, "the loaded model works: it is fully_shard, its units or a tie across them"}};
  if (ranks > 1) {
    steps.push_back({"sharded", "shard", ranks, "it works on one rank: it is the slices or what the ranks exchange"});
  }
  return steps;
}

void add_repeated(std::vector<std::string>& words, const char* flag, const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    words.insert(words.end(), {flag, value});
  }
}

void add_text(std::vector<std::string>& words, const char* flag, const std::string& value) {
  if (!value.empty()) {
    words.insert(words.end(), {flag, value});
  }
}

/// The flags of `options` as `tieshard forward` takes them.
std::vector<std::string> passed_on(const LadderOptions& options, const Step& step) {
  std::vector<std::string> words;
  add_repeated(words, "--tie", options.open.ties);
  add_repeated(words, "--untie", options.open.untied);
  add_text(words, "--on-tie-conflict", options.open.on_tie_conflict);
  add_text(words, "--max-header-bytes", options.open.max_header_bytes);
  add_repeated(words, "--init", options.load.inits);
  add_text(words, "--read-buffer", options.load.read_buffer);
  add_text(words, "--host-ram-per-rank", options.load.host_ram);
  for (const auto& [flag, set] : {std::pair{"--no-rename", options.open.no_rename},
                                  {"--no-mmap", options.load.no_mmap},
                                  {"--no-check-values", true}}) { // doctor has looked at the values itself
    if (set) {
      words.emplace_back(flag);
    }
  }
  if (step.ranks > 1) {
    add_text(words, "--shard-dim", options.shard.shard_dim);
    add_repeated(words, "--dim", options.shard.dims);
  }
  return words;
}

/// Tokens that are spread over the vocabulary, for the encoder and for the decoder where there are two.
void write_tokens(const fs::path& path, const ResolvedModel& model) {
  const std::int64_t vocab = model.checkpoint.config().integer("vocab_size");
  std::vector<std::int64_t> ids(kTokens);
  for (std::int64_t index = 0; index < kTokens; ++index) {
    ids[static_cast<std::size_t>(index)] = index * 7919 % vocab;
  }
  std::vector<TensorSpec> specs{{.name = "input_ids", .dtype = DType::kI64, .shape = {1, kTokens}}};
  if (model.family == &t5_family()) {
    specs.push_back({.name = "decoder_input_ids", .dtype = DType::kI64, .shape = {1, kTokens}});
  }
  write_safetensors(
      path, layout_safetensors(specs, {}), [&](const TensorEntry&) { return std::as_bytes(std::span(ids)); });
}

std::vector<float> read_logits(const fs::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const TensorEntry* entry = file.find("logits");
  std::vector<float> logits(entry == nullptr ? 0 : (entry->end - entry->begin) / sizeof(float));
  if (!logits.empty()) {
    file.file().read_at(file.header().data_start + entry->begin, std::as_writable_bytes(std::span(logits)));
  }
  return logits;
}

/// The largest difference; infinite where one is NaN or infinite and the other has other bits, or the counts differ.
double difference(const std::vector<float>& one, const std::vector<float>& other) {
  if (one.size() != other.size()) {
    return HUGE_VAL;
  }
  double most = 0;
  for (std::size_t index = 0; index < one.size(); ++index) {
    if (std::bit_cast<std::uint32_t>(one[index]) == std::bit_cast<std::uint32_t>(other[index])) {
      continue;
    }
    const double apart = std::fabs(static_cast<double>(one[index]) - static_cast<double>(other[index]));
    most = std::isfinite(apart) ? std::max(most, apart) : HUGE_VAL;
  }
  return most;
}

double largest_of(const std::vector<float>& logits) {
  double most = 0;
  for (const float logit : logits) {
    most = std::isfinite(logit) ? std::max(most, std::fabs(static_cast<double>(logit))) : HUGE_VAL;
  }
  return most;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", value);
  return text;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The first line of `said` that is an error, else the last that says anything.
std::string headline(const std::string& said) {
  std::istringstream lines(said);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("error")) {
      return line;
    }
    last = line.empty() ? last : line;
  }
  return last.empty() ? "it printed nothing" : last;
}

Diagnostic finding_of(const Step& step, std::size_t rung, const std::string& why) {
  return {.level = Level::kError,
          .code = Code::kRungFailed,
          .what = "the model works up to a rung of the ladder, and not on it",
          .where = concat("rung ", rung + 1, ", ", step.name, " on ", step.ranks, step.ranks == 1 ? " rank" : " ranks"),
          .why = why,
          .fix = concat("look there first: ", step.suspect)};
}

/// tieshard has no module for the family: the forward was not computed, and the checkpoint is not at fault.
bool is_without_module(const LadderRung& rung) {
  return rung.said.find(concat("[", id(Code::kUnknownArchitecture), "]")) != std::string::npos;
}

Diagnostic without_module() {
  return {.level = Level::kNote,
          .code = Code::kRungFailed,
          .what = "the ladder could not be climbed; the diagnosis is without it",
          .where = "--try",
          .why = "tieshard has no module for this family, so it computes no forward of it",
          .fix = "nothing is wrong with the checkpoint; docs/new_model.md tells how to add a module"};
}

/// Why the rung fails; empty where it passes.
std::string fault_of(LadderRung& rung, int status, const fs::path& logits, std::vector<float>& first) {
  if (status != 0) {
    const std::string end = status > 128 ? concat("was ended by signal ", status - 128) : concat("ended with ", status);
    return concat("expected a forward, got: tieshard-runtime ", end, ": ", headline(rung.said));
  }
  const std::vector<float> got = read_logits(logits);
  if (first.empty()) {
    first = got;
    rung.largest = largest_of(first);
    return std::isfinite(rung.largest) ? "" : "expected finite logits, got NaN or infinity";
  }
  rung.largest = largest_of(first);
  rung.difference = difference(first, got);
  return rung.difference <= kLadderTolerance * rung.largest ? ""
                                                            : concat("expected the logits of rung 1 to ",
                                                                     number(kLadderTolerance * rung.largest),
                                                                     ", got a difference of ",
                                                                     number(rung.difference));
}

} // namespace

Ladder climb(const LadderOptions& options) {
  const fs::path program = options.runtime.empty() ? runtime_program() : options.runtime;
  const TemporaryFolder workplace("try");
  write_tokens(workplace / "tokens", resolve_model(options.directory, options.open.options()));
  Ladder ladder;
  std::vector<float> first;
  const std::vector<Step> steps = steps_to(options.ranks);
  for (std::size_t index = 0; index < steps.size() && ladder.passed(); ++index) {
    const Step& step = steps[index];
    const fs::path logits = workplace / concat("logits-", index);
    const fs::path output = workplace / concat("said-", index);
    std::vector<std::string> words{"forward",
                                   options.directory.string(),
                                   "--tokens",
                                   (workplace / "tokens").string(),
                                   "--out",
                                   logits.string(),
                                   "--stage",
                                   step.stage,
                                   "--ranks",
                                   concat(step.ranks)};
    const std::vector<std::string> more = passed_on(options, step);
    words.insert(words.end(), more.begin(), more.end());
    const int status = run_program(program, words, output);
    LadderRung rung{.name = step.name, .ranks = step.ranks};
    rung.said = status == 0 ? "" : text_of(output);
    const std::string fault = fault_of(rung, status, logits, first);
    rung.passed = fault.empty();
    ladder.rungs.push_back(std::move(rung));
    if (!fault.empty()) {
      const LadderRung& failed = ladder.rungs.back();
      ladder.findings.push_back(index == 0 && is_without_module(failed) ? without_module()
                                                                        : finding_of(step, index, fault));
    }
  }
  return ladder;
}

void print_ladder(const Ladder& ladder, const Stream& out) {
  Table table({left("rung"), right("ranks"), left("forward")});
  for (const LadderRung& rung : ladder.rungs) {
    const std::string passed = &rung == &ladder.rungs.front() ? concat("works; largest logit ", number(rung.largest))
                               : rung.difference == 0         ? "works; the same bits"
                                                              : concat("works; differs by ", number(rung.difference));
    table.add({rung.name, concat(rung.ranks), rung.passed ? passed : "fails"});
  }
  table.print(out, 2);
  for (const LadderRung& rung : ladder.rungs) {
    std::istringstream lines(rung.said);
    for (std::string line; std::getline(lines, line);) {
      out.text << "    | " << line << "\n";
    }
  }
}

OrderedJson to_json(const Ladder& ladder) {
  OrderedJson rungs = OrderedJson::array();
  for (const LadderRung& rung : ladder.rungs) {
    const bool known = std::isfinite(rung.difference) && std::isfinite(rung.largest);
    rungs.push_back({{"name", rung.name},
                     {"ranks", rung.ranks},
                     {"passed", rung.passed},
                     {"difference", known ? OrderedJson(rung.difference) : OrderedJson()},
                     {"largest_logit", known ? OrderedJson(rung.largest) : OrderedJson()},
                     {"said", rung.said}});
  }
  return rungs;
}

} // namespace tieshard::cli
