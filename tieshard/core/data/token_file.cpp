#include "tieshard/core/data/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/data/megatron_index.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

InputError malformed(const std::string& what, const fs::path& path, const std::string& why, const std::string& fix) {
  return InputError({.code = Code::kDataMalformed, .what = what, .where = path.string(), .why = why, .fix = fix});
}

fs::path with_ending(fs::path path, const char* ending) {
  path += ending;
  return path;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Where tokens and index lie.
struct Places {
  fs::path data;
  std::optional<fs::path> index{}; ///< a file of that name is there
};

Places find(const fs::path& path) {
  Places places{.data = path};
  if (path.extension() == ".idx") {
    places.data = fs::path(path).replace_extension(".bin");
  } else if (!is_file(path) && is_file(with_ending(path, ".bin")) && is_file(with_ending(path, ".idx"))) {
    places.data = with_ending(path, ".bin");
  }
  if (places.data.extension() == ".bin") {
    const fs::path index = fs::path(places.data).replace_extension(".idx");
    places.index = is_file(index) ? std::optional(index) : std::nullopt;
  }
  return places;
}

std::vector<std::byte> head_of(const File& file, std::uint64_t most) {
  std::vector<std::byte> head(static_cast<std::size_t>(std::min<std::uint64_t>(most, file.size())));
  file.read_at(0, head);
  return head;
}

bool begins_with(std::span<const std::byte> head, std::string_view text) {
  return head.size() >= text.size() && std::memcmp(head.data(), text.data(), text.size()) == 0;
}

/// What other programs write, and nobody means to train on as numbers.
void refuse_other_formats(const File& file, std::span<const std::byte> head) {
  constexpr std::array<std::pair<std::string_view, const char*>, 3> kOthers{
      {{"\x93NUMPY", "a NumPy array (.npy)"}, {"PK\x03\x04", "a ZIP archive (.npz, .pt)"}, {"PAR1", "a Parquet file"}}};
  for (const auto& [magic, what] : kOthers) {
    if (begins_with(head, magic)) {
      throw malformed(
          "a token file is of another format",
          file.path(),
          concat("expected tokens, got ", what),
          "write its tokens as raw uint16 or uint32, as tools/tokenize_text.py does; if it holds such, give "
          "--data-format raw");
    }
  }
}

/// Read as uint16, the upper half of every small uint32 token is a token 0: half of the text, and nothing else would
/// tell.
void refuse_wider_tokens(const File& file, const TokenLayout& layout) {
  const std::int64_t looked_at = std::min<std::int64_t>(layout.tokens, 4096);
  if (layout.type != TokenType::kUint16 || looked_at < 8) {
    return;
  }
  std::vector<std::uint16_t> start(static_cast<std::size_t>(looked_at));
  file.read_at(layout.begin, std::as_writable_bytes(std::span(start)));
  bool odd_zero = true;
  bool even_zero = true;
  for (std::size_t index = 0; index < start.size(); ++index) {
    (index % 2 == 1 ? odd_zero : even_zero) &= start[index] == 0;
  }
  if (odd_zero && !even_zero) {
    throw malformed("a token file looks like uint32 and is read as uint16",
                    file.path(),
                    concat("every second of the first ", looked_at, " tokens is 0"),
                    "give --data-dtype uint32");
  }
}

TokenLayout raw_layout(const File& file, const TokenFileOptions& options) {
  const bool wide =
      options.dtype == TokenDtype::kUint32 || (options.dtype == TokenDtype::kAuto && options.vocab_size > 65536);
  TokenLayout layout{.format = TokenFormat::kRaw, .type = wide ? TokenType::kUint32 : TokenType::kUint16};
  const auto bytes = static_cast<std::int64_t>(file.size());
  if (bytes % width(layout.type) != 0) {
    throw malformed("a token file holds no whole number of tokens",
                    file.path(),
                    concat("expected a multiple of ", width(layout.type), " bytes, got ", bytes),
                    "give --data-dtype uint16 or uint32 as the file was written, or write it again");
  }
  layout.tokens = bytes / width(layout.type);
  refuse_wider_tokens(file, layout);
  return layout;
}

/// A format that was asked for is that of the content, else nobody knows which of the two is meant.
void require_format(const TokenFileOptions& options, TokenFormat found, const fs::path& path) {
  if (options.format != TokenFormat::kAuto && options.format != found) {
    throw malformed("a token file is not of the format that was given",
                    path,
                    concat("expected ", name(options.format), ", got ", name(found)),
                    concat("leave --data-format out, or give ", name(found)));
  }
}

void require_dtype(const TokenFileOptions& options, TokenType found, const fs::path& path) {
  if (options.dtype == TokenDtype::kAuto) {
    return;
  }
  const TokenType given = options.dtype == TokenDtype::kUint16 ? TokenType::kUint16 : TokenType::kUint32;
  if (given != found) {
    throw malformed("a token file is not of the dtype that was given",
                    path,
                    concat("expected ", name(given), ", got ", name(found), " as the file itself says"),
                    "leave --data-dtype out: it is for raw files");
  }
}

MegatronIndex read_index(const fs::path& path, std::uint64_t data_bytes, bool keep) {
  const File file = File::open_for_reading(path);
  const auto read = [&file](std::uint64_t offset, std::span<std::byte> out) { file.read_at(offset, out); };
  return parse_megatron_index(read, file.size(), data_bytes, keep, path.string());
}

/// Whether an index is there and is to be believed. @throws InputError data-malformed for one that is neither
bool has_index(const Places& places, const TokenFileOptions& options) {
  if (!places.index) {
    if (options.format == TokenFormat::kMegatron) {
      throw malformed("a Megatron file has no index",
                      places.data,
                      "expected a file .idx beside the .bin, got none",
                      "copy both files");
    }
    return false;
  }
  const File file = File::open_for_reading(*places.index);
  const std::vector<std::byte> head = head_of(file, 9);
  if (is_megatron_index(head)) {
    return true;
  }
  if (options.format == TokenFormat::kRaw || options.format == TokenFormat::kLlmC) {
    return false; // it is something else's
  }
  throw malformed("a file beside the tokens looks like their index and is none",
                  *places.index,
                  begins_with(head, "TNTIDX") ? "expected MMIDIDX, got the older TNTIDX" : "expected MMIDIDX",
                  "write .bin and .idx again with Megatron's preprocess_data.py, or give --data-format raw");
}

std::int64_t token_at(const std::byte* at, TokenType type) {
  const auto as = [at]<typename Number>(Number number) {
    std::memcpy(&number, at, sizeof(number)); // little-endian, like the machine
    return static_cast<std::int64_t>(number);
  };
  switch (type) {
    case TokenType::kUint8:
      return as(std::uint8_t{});
    case TokenType::kInt8:
      return as(std::int8_t{});
    case TokenType::kInt16:
      return as(std::int16_t{});
    case TokenType::kUint16:
      return as(std::uint16_t{});
    case TokenType::kInt32:
      return as(std::int32_t{});
    case TokenType::kUint32:
      return as(std::uint32_t{});
    case TokenType::kInt64:
      return as(std::int64_t{});
  }
  return -1;
}

} // namespace

std::vector<fs::path> files_of_tokens(const fs::path& path) {
  const Places places = find(path);
  return places.index ? std::vector{places.data, *places.index} : std::vector{places.data};
}

TokenFile TokenFile::open(const fs::path& path, const TokenFileOptions& options) {
  const Places places = find(path);
  File file = File::open_for_reading(places.data);
  if (has_index(places, options)) {
    require_format(options, TokenFormat::kMegatron, places.data);
    MegatronIndex index = read_index(*places.index, file.size(), options.keep_documents);
    require_dtype(options, index.layout.type, places.data);
    TokenFile tokens(std::move(file), index.layout, options.vocab_size);
    tokens.documents_ = index.documents;
    tokens.document_starts_ = std::move(index.document_starts);
    return tokens;
  }
  const std::vector<std::byte> head = head_of(file, kLlmCHeader);
  if (const auto layout = parse_llmc_header(head, file.size(), places.data.string())) {
    require_format(options, TokenFormat::kLlmC, places.data);
    require_dtype(options, layout->type, places.data);
    return {std::move(file), *layout, options.vocab_size};
  }
  require_format(options, TokenFormat::kRaw, places.data);
  if (options.format == TokenFormat::kAuto) {
    refuse_other_formats(file, head);
  }
  const TokenLayout layout = raw_layout(file, options);
  return {std::move(file), layout, options.vocab_size};
}

void TokenFile::read(std::int64_t first, std::span<std::int64_t> out) const {
  const auto size = static_cast<std::size_t>(width(layout_.type));
  std::vector<std::byte> raw(out.size() * size);
  file_.read_at(layout_.begin + static_cast<std::uint64_t>(first) * size, raw);
  for (std::size_t index = 0; index < out.size(); ++index) {
    const std::int64_t token = token_at(raw.data() + index * size, layout_.type);
    if (token < 0 || token >= vocab_size_) {
      throw InputError(
          {.code = Code::kTokenOutOfRange,
           .what = "a token is not in the model's vocabulary",
           .where = concat(path().string(), ", token ", format_count(first + static_cast<std::int64_t>(index))),
           .why = concat("expected ", token < 0 ? "0 or above" : concat("below ", vocab_size_), ", got ", token),
           .fix = "tokenise the text with this model's tokenizer; check --data-dtype"});
    }
    out[index] = token;
  }
}

} // namespace tieshard
