#include "tieshard/cli/runtime/forward_verb.h"

#include <filesystem>
#include <memory>
#include <span>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/cli/runtime/compute_flags.h"
#include "tieshard/cli/runtime/forward_inputs.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/io/mapped_guard.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/train/unsharded.h"

namespace tieshard::cli {
namespace {

constexpr const char* kForwardExamples =
    "Examples:\n"
    "  tieshard forward smollm2/ --tokens tokens.bin --count 64 --out logits.safetensors\n"
    "  tieshard forward smollm2/ --tokens batch.safetensors --out logits.safetensors --ranks 2\n"
    "\n"
    "TOKENS is a raw token file (one sequence) or a safetensors file with input_ids I64 [batch, sequence] and, if the\n"
    "loss is wanted, labels of the same shape (-100: no target). An encoder-decoder takes decoder_input_ids beside "
    "them,\n"
    "or makes them of the labels. OUT gets logits F32 [batch, sequence, vocab] and loss F32 [].";

struct ForwardFlags : ComputeFlags {
  std::filesystem::path tokens{};
  std::filesystem::path out{};
  std::string data_dtype = "auto";
  std::int64_t count = 0;
  std::string stage = "shard";
  ShardFlags shard{};
};

void write_outputs(const std::filesystem::path& path, const at::Tensor& logits, const at::Tensor& loss) {
  std::vector<TensorSpec> specs{{.name = "logits", .dtype = DType::kF32, .shape = logits.sizes().vec()}};
  if (loss.defined()) {
    specs.push_back({.name = "loss", .dtype = DType::kF32, .shape = {}});
  }
  write_safetensors(path, layout_safetensors(specs, {{"format", "pt"}}), [&](const TensorEntry& entry) {
    const at::Tensor& tensor = entry.name == "loss" ? loss : logits;
    return std::as_bytes(std::span(tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())));
  });
}

/// `forward` overwrites nothing: a model's own weights would be a slip of the finger away.
void require_new_file(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    throw InputError({.code = Code::kOutputExists,
                      .what = "the file for the logits is there already",
                      .where = concat("--out ", path.string()),
                      .why = "expected no such name yet",
                      .fix = "choose another --out, or remove this file"});
  }
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (!std::filesystem::is_directory(parent, error)) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a command line flag has a value that cannot be used",
                      .where = concat("--out ", path.string()),
                      .why = concat("expected a name in a directory that is there, got no directory ", parent.string()),
                      .fix = "make the directory, or name one in another"});
  }
}

/// What a forward needs of a model, however far it was taken.
struct Prepared {
  std::shared_ptr<LanguageModel> model;
  std::int64_t vocab;
  std::vector<Diagnostic> findings;
};

Prepared prepare(const ForwardFlags& flags, const DeviceMesh& mesh) {
  ParallelizeOptions options = flags.options();
  options.shard_dim = flags.shard.policy();
  options.shard_dims = declared_dims(flags.shard.dims);
  if (flags.stage != "shard") {
    const auto how = flags.stage == "eager" ? Materialization::kEager : Materialization::kMeta;
    UnshardedModel whole = load_unsharded(flags.model, mesh, options, how);
    return {std::move(whole.model), whole.checkpoint.config().integer("vocab_size"), std::move(whole.findings)};
  }
  ParallelModel parallel = parallelize(flags.model, mesh, options);
  return {std::move(parallel.model), parallel.checkpoint.config().integer("vocab_size"), std::move(parallel.findings)};
}

void forward_on(const ForwardFlags& flags, const DeviceMesh& mesh, const Console& console) {
  at::set_num_threads(flags.ranks.threads);
  const Prepared prepared = prepare(flags, mesh);
  LanguageModel& model = *prepared.model;
  ForwardInputs inputs;
  agree(mesh, "tokens", [&] {
    inputs = read_forward_inputs(flags.tokens, flags.data_dtype, flags.count, model, prepared.vocab);
  });
  const at::NoGradGuard no_grad;
  model.eval();
  const SequenceInfo info{.decoder_ids_BT =
                              inputs.decoder_ids.defined() ? inputs.decoder_ids.to(mesh.device()) : inputs.decoder_ids};
  const at::Tensor logits = model.forward(inputs.ids.to(mesh.device()), info).to(at::kCPU, at::kFloat).contiguous();
  at::Tensor loss;
  if (inputs.labels.defined()) {
    const std::int64_t targets = std::max<std::int64_t>(1, model.count_targets(inputs.labels));
    loss = model.loss_sum(logits, inputs.labels) / static_cast<double>(targets);
  }
  agree(mesh, "weights", require_mappings_intact); // else the logits of a cut file would be written
  agree(mesh, "write", [&] {
    if (mesh.rank() == 0) {
      print_findings(console.err, prepared.findings);
      write_outputs(flags.out, logits, loss);
      console.out.text << concat("logits  ", to_string(logits.sizes().vec()), " F32  ", flags.out.string());
      if (loss.defined()) {
        console.out.text << concat("  loss ", loss.item<float>());
      }
      console.out.text << "\n";
    }
  });
}

/// What is not sharded is whole on one rank, without an adapter.
void require_stage(const ForwardFlags& flags) {
  if (flags.stage != "shard" && (rank_count(flags.ranks) != 1 || !flags.adapter.empty())) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a command line flag has a value that cannot be used",
                      .where = concat("--stage ", flags.stage),
                      .why = concat("expected one rank and no --adapter, got ",
                                    rank_count(flags.ranks),
                                    " ranks",
                                    flags.adapter.empty() ? "" : " and --adapter"),
                      .fix = "leave --stage out, which shards"});
  }
}

} // namespace

void add_forward(CLI::App& app, Verb& chosen) {
  const auto flags = std::make_shared<ForwardFlags>();
  CLI::App* verb = app.add_subcommand("forward", "Write a model's logits for given tokens");
  verb->add_option("DIR", flags->model, "Hugging Face checkpoint directory")->required();
  verb->add_option("--tokens", flags->tokens, "Raw token file, or safetensors with input_ids")->required();
  verb->add_option("--out", flags->out, "File for the logits")->required();
  verb->add_option("--count", flags->count, "First tokens of a raw file to use; 0: all")
      ->check(whole_number(0, 1'000'000'000))
      ->capture_default_str();
  add_token_dtype_flag(*verb, flags->data_dtype);
  verb->add_option(
          "--stage",
          flags->stage,
          "How far the model is taken first: eager (built with bytes), load (filled from the meta device), shard")
      ->check(one_of({"eager", "load", "shard"}))
      ->capture_default_str();
  add_compute_flags(*verb, *flags);
  add_shard_dim_flags(*verb, flags->shard);
  add_rank_flags(*verb, flags->ranks);
  verb->footer(kForwardExamples);
  verb->callback([flags, &chosen] {
    chosen = [flags](const Console& console) {
      flags->options(); // a flag that is wrong shows before ranks are started
      require_new_file(flags->out);
      require_stage(*flags);
      return run_ranks(flags->ranks, console, [&](const DeviceMesh& mesh) { forward_on(*flags, mesh, console); });
    };
  });
}

} // namespace tieshard::cli
