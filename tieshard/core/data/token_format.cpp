#include "tieshard/core/data/token_format.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

struct TypeFacts {
  TokenType type;
  std::int64_t width;
  std::string_view name;
};

constexpr std::array<TypeFacts, 7> kTypes{{{TokenType::kUint8, 1, "uint8"},
                                           {TokenType::kInt8, 1, "int8"},
                                           {TokenType::kInt16, 2, "int16"},
                                           {TokenType::kUint16, 2, "uint16"},
                                           {TokenType::kInt32, 4, "int32"},
                                           {TokenType::kUint32, 4, "uint32"},
                                           {TokenType::kInt64, 8, "int64"}}};

constexpr std::int32_t kMagicGpt2 = 20240520;
constexpr std::int32_t kMagicLlama3 = 20240801;
constexpr std::int32_t kMagicEvaluation = 20240522;

std::int32_t field(std::span<const std::byte> head, std::size_t index) {
  std::int32_t value = 0;
  std::memcpy(&value, head.data() + index * sizeof(value), sizeof(value)); // little-endian, like the machine
  return value;
}

InputError malformed(const std::string& where, const std::string& why, const std::string& fix) {
  return InputError({.code = Code::kDataMalformed,
                     .what = "a token file's header cannot be used",
                     .where = where,
                     .why = why,
                     .fix = fix});
}

/// Of a magic number that is known. @throws InputError data-malformed
TokenType type_of(std::int32_t magic, std::int32_t version, const std::string& where) {
  const std::int32_t expected = magic == kMagicGpt2 ? 1 : 7;
  if (version != expected) {
    throw malformed(where,
                    concat("magic ", magic, " is llm.c's; expected version ", expected, ", got ", version),
                    "write the file again with llm.c's write_datafile, or give --data-format raw if it has no header");
  }
  return magic == kMagicGpt2 ? TokenType::kUint16 : TokenType::kUint32;
}

} // namespace

std::int64_t width(TokenType type) {
  return std::ranges::find(kTypes, type, &TypeFacts::type)->width;
}

std::string_view name(TokenType type) {
  return std::ranges::find(kTypes, type, &TypeFacts::type)->name;
}

std::string_view name(TokenFormat format) {
  switch (format) {
    case TokenFormat::kAuto:
      return "auto";
    case TokenFormat::kRaw:
      return "raw";
    case TokenFormat::kLlmC:
      return "llm.c";
    case TokenFormat::kMegatron:
      return "megatron";
  }
  return "?";
}

std::optional<TokenLayout> parse_llmc_header(std::span<const std::byte> head,
                                             std::uint64_t file_bytes,
                                             const std::string& where) {
  if (head.size() < 3 * sizeof(std::int32_t)) {
    return std::nullopt;
  }
  const std::int32_t magic = field(head, 0);
  if (magic == kMagicEvaluation) {
    throw malformed(
        where,
        concat("magic ", magic, " is that of llm.c's multiple-choice evaluations, which hold no running text"),
        "give a file of write_datafile's (magic 20240520 or 20240801)");
  }
  if (magic != kMagicGpt2 && magic != kMagicLlama3) {
    return std::nullopt;
  }
  TokenLayout layout{.format = TokenFormat::kLlmC, .type = type_of(magic, field(head, 1), where), .begin = kLlmCHeader};
  layout.tokens = field(head, 2);
  const auto stored = static_cast<std::int64_t>(file_bytes) - static_cast<std::int64_t>(kLlmCHeader);
  if (layout.tokens < 0 || stored != layout.tokens * width(layout.type)) {
    throw malformed(where,
                    concat("expected ",
                           layout.tokens,
                           " tokens of ",
                           width(layout.type),
                           " bytes behind a header of ",
                           kLlmCHeader,
                           ", got ",
                           file_bytes,
                           " bytes in all"),
                    "copy or write the file again: it is cut, or something was appended");
  }
  return layout;
}

} // namespace tieshard
