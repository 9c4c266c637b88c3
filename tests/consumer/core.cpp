// Writes a tied checkpoint, opens it again and resolves its tie, with the installed torch-free rooms alone.

#include <array>
#include <cstddef>
#include <filesystem>
#include <iostream>
#include <span>

#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/families/parameter_table.h"
#include "tieshard/core/plan/read_plan.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/ties/tie_registry.h"

int main(int, char** arguments) {
  using namespace tieshard;
  const std::filesystem::path directory = arguments[1];
  const std::array<std::byte, 4 * 6 * 4> zeros{};
  write_text_file(directory / "config.json", R"({"model_type": "llama", "tie_word_embeddings": true})");
  write_safetensors(directory / "model.safetensors",
                    layout_safetensors({{.name = "embed.weight", .dtype = DType::kF32, .shape = {4, 6}}}, {}),
                    [&](const TensorEntry&) { return std::span<const std::byte>(zeros); });

  const ParameterTable table = {{.fqn = "embed.weight", .shape = {4, 6}, .identity = 1},
                                {.fqn = "head.weight", .shape = {4, 6}, .identity = 2}};
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const TieRegistry ties = TieRegistry::from_map({{"head.weight", "embed.weight"}}, table);
  const ShardPlan plan = ShardPlan::build(table, ties, 2);
  const ReadPlan reads = build_read_plan(checkpoint, plan, 1);

  std::cout << ties.canonical("head.weight") << ": rank 1 of 2 reads " << reads.bytes() << " bytes\n";
  const bool right = ties.canonical("head.weight") == "embed.weight" && plan.parameters().size() == 1 &&
                     reads.reads.size() == 1 && reads.bytes() == zeros.size() / 2;
  return right ? 0 : 1;
}
