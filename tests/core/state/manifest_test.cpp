#include "tieshard/core/state/manifest.h"

#include <nlohmann/json.hpp>

#include "tieshard/core/base/json.h"

#include "tests/core/base/refusal.h"
#include "tests/core/state/example_manifest.h"

namespace tieshard {
namespace {

using Pointer = Json::json_pointer;

/// example_manifest() as JSON with one value replaced.
std::string with(const std::string& pointer, const Json& value) {
  Json document = Json::parse(to_json(example_manifest()));
  document[Pointer(pointer)] = value;
  return document.dump();
}

std::string without(const std::string& member) {
  Json document = Json::parse(to_json(example_manifest()));
  document.erase(member);
  return document.dump();
}

void expect_malformed(const std::string& text, const std::vector<std::string>& named) {
  expect_refusal<InputError>(Code::kManifestMalformed, named, [&] { parse_manifest(text, "manifest.json"); });
}

TEST(Manifest, ComesBackAsItWasWritten) {
  const Manifest manifest = example_manifest();
  EXPECT_EQ(parse_manifest(to_json(manifest), "manifest.json"), manifest);
  EXPECT_EQ(to_json(parse_manifest(to_json(manifest), "manifest.json")), to_json(manifest));
}

TEST(Manifest, WithNothingInItsListsComesBackToo) {
  const Manifest manifest{.id = std::string(32, '0')};
  EXPECT_EQ(parse_manifest(to_json(manifest), "manifest.json"), manifest);
}

TEST(Manifest, IsIndentedWithOneRecordALineAndAFinalNewline) {
  const std::string text = to_json(example_manifest());
  EXPECT_THAT(text, testing::StartsWith("{\n  \"version\": 1,\n  \"id\": \"0011"));
  EXPECT_THAT(text, testing::HasSubstr("\n    {\"name\":\"dp_shard\",\"size\":2}\n  ],\n"));
  EXPECT_THAT(text, testing::EndsWith("\n  ]\n}\n"));
}

TEST(Manifest, KeepsNamesThatJsonHasToEscape) {
  Manifest manifest = example_manifest();
  manifest.parameters[2].fqn = "a\"b\\c\n\u00fc";
  EXPECT_EQ(parse_manifest(to_json(manifest), "manifest.json"), manifest);
}

TEST(Manifest, FindsAParameterByItsNameOnly) {
  const Manifest manifest = example_manifest();
  EXPECT_EQ(manifest.find("norm.weight"), &manifest.parameters[1]);
  EXPECT_EQ(manifest.find("head.weight"), nullptr); // an alias
}

TEST(Manifest, OfALaterVersionIsRefusedBeforeAnythingElseInIt) {
  expect_malformed(R"({"version": 2, "new": {}})",
                   {"manifest.json, version", "expected 1, got 2", "version of tieshard"});
  expect_malformed(without("version"), {"version", "expected this member, got none"});
}

TEST(Manifest, IsRefusedWithThePathOfEachWrongType) {
  expect_malformed("[]", {"expected an object, got a list"});
  expect_malformed(with("/step", "200"), {"manifest.json, step", "expected a whole number", "got \"200\""});
  expect_malformed(with("/step", -1), {"manifest.json, step", "got -1"});
  expect_malformed(with("/step", 18446744073709551615U), {"manifest.json, step"});
  expect_malformed(with("/step", 1.5), {"manifest.json, step", "got 1.5"});
  expect_malformed(with("/id", "xyz"), {"manifest.json, id", "32 hexadecimal digits"});
  expect_malformed(with("/mesh", 3), {"mesh", "expected a list, got 3"});
  expect_malformed(with("/mesh/1/size", 0), {"mesh[1].size", "from 1"});
  expect_malformed(with("/optimizer", Json()), {"optimizer", "expected a string, got null"});
  expect_malformed(with("/parameters/0", "name"), {"parameters[0]", "expected an object"});
  expect_malformed(with("/parameters/1/fqn", ""), {"parameters[1].fqn"});
  expect_malformed(with("/parameters/1/dtype", "F31"), {"parameters[1].dtype", "F31"});
  expect_malformed(with("/parameters/0/shape/1", -4), {"parameters[0].shape[1]", "got -4"});
  expect_malformed(with("/parameters/2/trainable", 1), {"parameters[2].trainable", "expected true or false, got 1"});
  expect_malformed(with("/parameters/0/optimizer", Json::array()), {"parameters[0].optimizer", "an object"});
  expect_malformed(with("/parameters/0/optimizer/moments/1", 7), {"parameters[0].optimizer.moments[1]"});
  expect_malformed(with("/parameters/0/optimizer/counters/step", -7), {"parameters[0].optimizer.counters.step"});
  expect_malformed(with("/files/1/bytes", -1), {"files[1].bytes"});
  expect_malformed(with("/files/0/xxh128", "AA"), {"files[0].xxh128", "32 hexadecimal digits"});
}

TEST(Manifest, IsRefusedWithoutAMemberAndWithOneThatVersionOneDoesNotHave) {
  for (const char* member : {"id", "step", "mesh", "optimizer", "parameters", "ties", "files"}) {
    expect_malformed(without(member), {concat("manifest.json, ", member), "got none"});
  }
  expect_malformed(with("/more", 1), {"\"more\" too"});
  expect_malformed(with("/files/0/sha256", ""), {"files[0]", "\"sha256\" too"});
}

TEST(Manifest, ShardsNoDimensionThatAParameterDoesNotHave) {
  expect_malformed(with("/parameters/1/dim", 1), {"parameters[1].dim", "from -1 to 0"});
  expect_malformed(with("/parameters/2/dim", 0), {"parameters[2].dim", "from -1 to -1"});
  expect_malformed(with("/parameters/0/dim", -2), {"parameters[0].dim"});
}

TEST(Manifest, HoldsNoSizeThatDoesNotFit) {
  const std::int64_t large = std::int64_t{1} << 40;
  expect_malformed(with("/parameters/0/shape", {large, large}), {"parameters[0].shape", "2^63"});
  expect_malformed(with("/mesh", {{{"name", "a"}, {"size", large}}, {{"name", "b"}, {"size", large}}}), {"mesh"});
}

TEST(Manifest, NamesFilesOfItsDirectoryOnly) {
  for (const char* name : {"/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\\b", "manifest.json", ""}) {
    expect_malformed(with("/files/0/name", name), {"files[0].name"});
  }
  expect_malformed(with("/files/0/name", std::string("a\0b", 3)), {"files[0].name"});
  EXPECT_EQ(parse_manifest(with("/files/0/name", "adapter/x"), "manifest.json").files[0].name, "adapter/x");
}

TEST(Manifest, SaysNothingTwice) {
  const Json document = Json::parse(to_json(example_manifest()));
  expect_malformed(with("/parameters/1", document["parameters"][0]), {"parameters[1].fqn", "\"embed.weight\" again"});
  expect_malformed(with("/files/1", document["files"][0]), {"files[1].name", "again"});
  expect_malformed(with("/ties/1", document["ties"][0]), {"ties[1].alias", "\"head.weight\" again"});
  expect_malformed(with("/mesh/0", document["mesh"][1]), {"mesh[1].name", "\"dp_shard\" again"});
  expect_malformed(with("/parameters/0/optimizer/moments/1", "exp_avg"), {"moments[1]", "\"exp_avg\" again"});
  expect_refusal<InputError>(Code::kJsonDuplicateKey, {"step"}, [] {
    parse_manifest(R"({"version": 1, "step": 1, "step": 2})", "manifest.json");
  });
}

TEST(Manifest, TiesAnAliasToAParameter) {
  expect_malformed(with("/ties/0/canonical", "nothing"), {"ties[0].canonical", "got \"nothing\""});
  expect_malformed(with("/ties/0/alias", "norm.weight"), {"ties[0].alias", "got \"norm.weight\""});
}

} // namespace
} // namespace tieshard
