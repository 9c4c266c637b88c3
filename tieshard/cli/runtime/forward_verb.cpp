#include "tieshard/cli/runtime/forward_verb.h"

#include <filesystem>
#include <memory>
#include <span>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/cli/lora_flag.h"
#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/runtime/ranks.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/io/mapped_guard.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/tensors/torch_dtype.h"
#include "tieshard/runtime/train/parallelize.h"
#include "tieshard/runtime/train/token_data.h"

namespace tieshard::cli {
namespace {

constexpr const char* kForwardExamples =
    "Examples:\n"
    "  tieshard forward smollm2/ --tokens tokens.bin --count 64 --out logits.safetensors\n"
    "  tieshard forward smollm2/ --tokens batch.safetensors --out logits.safetensors --ranks 2\n"
    "\n"
    "TOKENS is a raw token file (one sequence) or a safetensors file with input_ids I64 [batch, sequence] and, if the\n"
    "loss is wanted, labels of the same shape (-100: no target). OUT gets logits F32 [batch, sequence, vocab] and loss "
    "F32 [].";

struct ForwardFlags {
  RankFlags ranks;
  std::filesystem::path model;
  std::filesystem::path tokens;
  std::filesystem::path out;
  std::string dtype = "float32";
  std::string data_dtype = "auto";
  std::int64_t count = 0;
  std::filesystem::path adapter{};
  std::string lora_tied{};
  OpenFlags open{};
  LoadFlags load{};
};

struct Inputs {
  at::Tensor ids;           ///< int64 [B, T]
  at::Tensor labels;        ///< undefined, or int64 [B, T]
  at::Tensor decoder_ids{}; ///< of an encoder-decoder, int64 [B, T]
};

at::Tensor read_integers(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) {
    return {};
  }
  if (entry->dtype != DType::kI64 || entry->shape.size() != 2 || numel(entry->shape) == 0) {
    throw InputError(
        {.code = Code::kDataMalformed,
         .what = "a tensor of the token file is not usable",
         .where = concat(file.file().path().string(), ", ", name),
         .why =
             concat("expected I64 [batch, sequence], got ", tieshard::name(entry->dtype), " ", to_string(entry->shape)),
         .fix = "store the ids as int64 with two dimensions, neither of them 0"});
  }
  at::Tensor values = at::empty(entry->shape, at::kLong);
  file.file().read_at(file.header().data_start + entry->begin,
                      std::as_writable_bytes(std::span(values.mutable_data_ptr<std::int64_t>(),
                                                       static_cast<std::size_t>(values.numel()))));
  return values;
}

void require_in_vocab(const at::Tensor& ids, std::int64_t vocab, const std::string& where) {
  const auto low = ids.min().item<std::int64_t>();
  const auto high = ids.max().item<std::int64_t>();
  if (low < 0 || high >= vocab) {
    throw InputError({.code = Code::kTokenOutOfRange,
                      .what = "a token is not in the model's vocabulary",
                      .where = where,
                      .why = concat("expected 0 to ", vocab - 1, ", got ", low, " to ", high),
                      .fix = "tokenise the text with this model's tokenizer"});
  }
}

void require_labels(const Inputs& inputs, std::int64_t vocab, const std::string& where) {
  const at::Tensor targets = inputs.labels.masked_select(inputs.labels != kIgnoredLabel);
  if (targets.numel() > 0) {
    require_in_vocab(targets, vocab, where + ", labels");
  }
  const at::Tensor& predicting = inputs.decoder_ids.defined() ? inputs.decoder_ids : inputs.ids;
  if (inputs.labels.sizes() != predicting.sizes()) {
    throw InputError(
        {.code = Code::kDataMalformed,
         .what = "labels and the tokens that predict them have different shapes",
         .where = where,
         .why =
             concat("expected ", to_string(predicting.sizes().vec()), ", got ", to_string(inputs.labels.sizes().vec())),
         .fix = "give one label for each token, -100 where there is no target"});
  }
}

Inputs read_inputs(const ForwardFlags& flags, std::int64_t vocab) {
  if (flags.tokens.extension() != ".safetensors") {
    const TokenDtype dtype = token_dtype_flag(flags.data_dtype);
    return {TokenData::open(flags.tokens, {.dtype = dtype, .sequence = 1, .vocab_size = vocab}).head(flags.count), {}};
  }
  const SafetensorsFile file = SafetensorsFile::open(flags.tokens);
  Inputs inputs{
      read_integers(file, "input_ids"), read_integers(file, "labels"), read_integers(file, "decoder_input_ids")};
  if (!inputs.ids.defined()) {
    throw InputError({.code = Code::kDataMalformed,
                      .what = "the token file has no input_ids",
                      .where = flags.tokens.string(),
                      .fix = "store the tokens as input_ids, I64 [batch, sequence]"});
  }
  require_in_vocab(inputs.ids, vocab, flags.tokens.string() + ", input_ids");
  if (inputs.decoder_ids.defined()) {
    require_in_vocab(inputs.decoder_ids, vocab, flags.tokens.string() + ", decoder_input_ids");
  }
  if (inputs.labels.defined()) {
    require_labels(inputs, vocab, flags.tokens.string());
  }
  return inputs;
}

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

void forward_on(const ForwardFlags& flags, at::ScalarType dtype, const DeviceMesh& mesh, const Console& console) {
  at::set_num_threads(flags.ranks.threads);
  ParallelizeOptions options{.param_dtype = dtype};
  options.resolve = flags.open.options();
  options.load = load_options(flags.load, flags.ranks.threads);
  if (!flags.adapter.empty()) {
    options.adapter = AdapterOptions{.directory = flags.adapter, .tied = tied_target_flag(flags.lora_tied)};
  }
  ParallelModel parallel = parallelize(flags.model, mesh, options);
  Inputs inputs;
  agree(mesh, "tokens", [&] { inputs = read_inputs(flags, parallel.checkpoint.config().integer("vocab_size")); });
  const at::NoGradGuard no_grad;
  parallel.model->eval();
  const SequenceInfo info{.decoder_ids_BT =
                              inputs.decoder_ids.defined() ? inputs.decoder_ids.to(mesh.device()) : inputs.decoder_ids};
  const at::Tensor logits =
      parallel.model->forward(inputs.ids.to(mesh.device()), info).to(at::kCPU, at::kFloat).contiguous();
  at::Tensor loss;
  if (inputs.labels.defined()) {
    const std::int64_t targets = std::max<std::int64_t>(1, parallel.model->count_targets(inputs.labels));
    loss = parallel.model->loss_sum(logits, inputs.labels) / static_cast<double>(targets);
  }
  agree(mesh, "weights", require_mappings_intact); // else the logits of a cut file would be written
  agree(mesh, "write", [&] {
    if (mesh.rank() == 0) {
      print_findings(console.err, parallel.findings);
      write_outputs(flags.out, logits, loss);
      console.out.text << concat("logits  ", to_string(logits.sizes().vec()), " F32  ", flags.out.string());
      if (loss.defined()) {
        console.out.text << concat("  loss ", loss.item<float>());
      }
      console.out.text << "\n";
    }
  });
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
  add_adapter_flags(*verb, flags->adapter, flags->lora_tied);
  verb->add_option("--dtype", flags->dtype, "Of parameters and computation")->capture_default_str();
  add_open_flags(*verb, flags->open);
  add_load_flags(*verb, flags->load);
  add_rank_flags(*verb, flags->ranks);
  verb->footer(kForwardExamples);
  verb->callback([flags, &chosen] {
    chosen = [flags](const Console& console) {
      const at::ScalarType dtype = to_torch(dtype_flag("--dtype", flags->dtype));
      require_new_file(flags->out);
      return run_ranks(
          flags->ranks, console, [&](const DeviceMesh& mesh) { forward_on(*flags, dtype, mesh, console); });
    };
  });
}

} // namespace tieshard::cli
