#include "tieshard/core/checkpoint/other_weights.h"

#include "tieshard/core/checkpoint/checkpoint.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/checkpoint/checkpoint_files.h"

namespace tieshard {
namespace {

class OtherWeights : public testing::Test {
 protected:
  void expect_refused(Code code, const std::vector<std::string>& named) {
    expect_refusal<InputError>(code, named, [this] { Checkpoint::open(dir.path()); });
  }

  TempDir dir;
};

TEST_F(OtherWeights, OfPickledFilesAreRefusedWithTheCommandThatConvertsThem) {
  dir.write("config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})");
  dir.write("pytorch_model-00001-of-00002.bin", "x");
  dir.write("pytorch_model.bin.index.json", "{}");
  expect_refused(Code::kNoWeights,
                 {"pytorch_model.bin.index.json",
                  "from transformers import LlamaForCausalLM as M",
                  "save_pretrained(sys.argv[2])\" '" + dir.path().string() + "'",
                  "-safetensors'"});
}

TEST_F(OtherWeights, OfAPickledFileAloneAreNotTakenForAMissingConfig) {
  dir.write("pytorch_model.bin", "x");
  expect_refused(Code::kNoWeights, {"pytorch_model.bin", "AutoModelForCausalLM"});
}

TEST_F(OtherWeights, PutNoForeignTextIntoTheCommand) {
  dir.write("config.json", R"({"architectures": ["os; os.abort"]})");
  dir.write("pytorch_model.bin", "x");
  expect_refused(Code::kNoWeights, {"import AutoModelForCausalLM as M"});
}

TEST_F(OtherWeights, OfAnAdapterAreRefusedNamingItsBaseModel) {
  dir.write("adapter_config.json", R"({"base_model_name_or_path": "some/base", "peft_type": "LORA"})");
  dir.write("adapter_model.safetensors", "x");
  expect_refused(
      Code::kPeftAdapter,
      {"base_model_name_or_path", "some/base", "tieshard merge-adapter BASE", "merge_and_unload", "-merged'"});
}

TEST_F(OtherWeights, OfAnAdapterWithAConfigThatCannotBeReadAreRefusedAlike) {
  dir.write("adapter_config.json", "{");
  dir.write("config.json", "{}");
  expect_refused(Code::kPeftAdapter, {"not named by adapter_config.json"});
}

TEST_F(OtherWeights, BesideAModelAreWarnedOf) {
  dir.write("config.json", "{}");
  dir.write(kSingleFile, u8_file({{"v", "V"}}));
  EXPECT_TRUE(Checkpoint::open(dir.path()).findings().empty());
  dir.write("adapter_config.json", R"({"base_model_name_or_path": "some/base"})");
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  ASSERT_EQ(checkpoint.findings().size(), 1U);
  EXPECT_EQ(checkpoint.findings()[0].code, Code::kPeftAdapter);
  EXPECT_EQ(checkpoint.findings()[0].level, Level::kWarning);
}

TEST_F(OtherWeights, OfAnAdapterUnderAModelsFileNameAreRefusedAlike) {
  dir.write(kSingleFile, u8_file({{"base_model.model.q.lora_A.weight", "V"}}));
  expect_refused(Code::kPeftAdapter, {"base_model.model.q.lora_A.weight", "not named by adapter_config.json"});
  dir.write("config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})");
  dir.write("adapter_config.json", R"({"base_model_name_or_path": "some/base"})");
  expect_refused(Code::kPeftAdapter, {"base_model.model.q.lora_A.weight", "some/base", "merge_and_unload"});
}

TEST_F(OtherWeights, BesideAMissingConfigAreNotWhatIsSaid) {
  dir.write(kSingleFile, u8_file({{"v", "V"}}));
  dir.write("pytorch_model.bin", "x");
  expect_refused(Code::kConfigMissing, {"config.json"});
}

} // namespace
} // namespace tieshard
