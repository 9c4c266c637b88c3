#include "tieshard/core/data/megatron_index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::uint64_t kHeader = 9 + 8 + 1 + 8 + 8;
constexpr std::uint64_t kBytesOfSequence = 4 + 8;
constexpr std::uint64_t kBytesOfDocument = 8;
constexpr std::size_t kElementsAtOnce = 16 << 10;

InputError malformed(const std::string& where, const std::string& why) {
  return InputError({.code = Code::kDataMalformed,
                     .what = "a Megatron index cannot be used",
                     .where = where,
                     .why = why,
                     .fix = "write .bin and .idx again with Megatron's preprocess_data.py, and copy both"});
}

std::optional<TokenType> type_of(std::uint8_t code) {
  switch (code) {
    case 1:
      return TokenType::kUint8;
    case 2:
      return TokenType::kInt8;
    case 3:
      return TokenType::kInt16;
    case 4:
      return TokenType::kInt32;
    case 5:
      return TokenType::kInt64;
    case 8:
      return TokenType::kUint16;
    default:
      return std::nullopt;
  }
}

template <typename Number>
Number number_at(const ReadIndexBytes& read, std::uint64_t offset) {
  Number number{};
  read(offset, std::as_writable_bytes(std::span(&number, 1))); // little-endian, like the machine
  return number;
}

/// An array of the index, one element after the other.
template <typename Number>
class Elements {
 public:
  Elements(const ReadIndexBytes& read, std::uint64_t begin, std::uint64_t count)
      : read_(read), next_(begin), left_(count) {}

  /// Nothing behind the last.
  std::optional<Number> next() {
    if (at_ == piece_.size()) {
      piece_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(left_, kElementsAtOnce)));
      at_ = 0;
      if (piece_.empty()) {
        return std::nullopt;
      }
      const auto bytes = std::as_writable_bytes(std::span(piece_));
      read_(next_, bytes);
      next_ += bytes.size();
      left_ -= piece_.size();
    }
    return piece_[at_++];
  }

 private:
  const ReadIndexBytes& read_;
  std::uint64_t next_;
  std::uint64_t left_;
  std::vector<Number> piece_;
  std::size_t at_ = 0;
};

struct Header {
  TokenType type = TokenType::kUint16;
  std::uint64_t sequences = 0;
  std::uint64_t documents = 0; ///< indices: one more than documents, for the end
};

Header read_header(const ReadIndexBytes& read, std::uint64_t index_bytes, const std::string& where) {
  std::array<std::byte, kMagic.size()> magic{};
  if (index_bytes >= kHeader) {
    read(0, magic);
  }
  if (!is_megatron_index(magic)) {
    throw malformed(where, concat("expected MMIDIDX and a header of ", kHeader, " bytes, got something else"));
  }
  const auto version = number_at<std::uint64_t>(read, kMagic.size());
  if (version != 1) {
    throw malformed(where, concat("expected version 1, got ", version));
  }
  const auto code = number_at<std::uint8_t>(read, kMagic.size() + 8);
  const std::optional<TokenType> type = type_of(code);
  if (!type) {
    throw malformed(where, concat("expected the code of an integer (1 to 5, or 8), got ", int{code}));
  }
  const Header header{.type = *type,
                      .sequences = number_at<std::uint64_t>(read, kMagic.size() + 9),
                      .documents = number_at<std::uint64_t>(read, kMagic.size() + 17)};
  const std::uint64_t rest = index_bytes - kHeader;
  if (header.sequences > rest / kBytesOfSequence || header.documents > rest / kBytesOfDocument ||
      header.sequences * kBytesOfSequence + header.documents * kBytesOfDocument != rest) {
    throw malformed(where,
                    concat("expected ",
                           header.sequences,
                           " sequences of ",
                           kBytesOfSequence,
                           " bytes and ",
                           header.documents,
                           " document indices of ",
                           kBytesOfDocument,
                           " behind the header, got ",
                           rest,
                           " bytes"));
  }
  return header;
}

/// Walks sequences and documents side by side.
class Walk {
 public:
  Walk(const ReadIndexBytes& read, const Header& header, bool keep, const std::string& where)
      : header_(header),
        keep_(keep),
        where_(where),
        lengths_(read, kHeader, header.sequences),
        pointers_(read, kHeader + header.sequences * 4, header.sequences),
        indices_(read, kHeader + header.sequences * kBytesOfSequence, header.documents) {}

  MegatronIndex run(std::uint64_t data_bytes) {
    const std::int64_t bytes_of_token = width(header_.type);
    const auto most = static_cast<std::int64_t>(data_bytes) / bytes_of_token;
    document_ = indices_.next();
    if (document_.value_or(-1) != 0) {
      throw malformed(where_, "expected a first document that begins at sequence 0, got another or none");
    }
    for (std::uint64_t sequence = 0; sequence < header_.sequences; ++sequence) {
      begin_documents(static_cast<std::int64_t>(sequence));
      const std::int32_t length = *lengths_.next();
      const std::int64_t pointer = *pointers_.next();
      if (length < 0 || length > most - index_.layout.tokens || pointer != index_.layout.tokens * bytes_of_token) {
        throw malformed(where_,
                        concat("sequence ",
                               sequence,
                               ": expected it at byte ",
                               index_.layout.tokens * bytes_of_token,
                               " and within the .bin of ",
                               data_bytes,
                               " bytes, got ",
                               length,
                               " tokens at byte ",
                               pointer));
      }
      index_.layout.tokens += length;
    }
    begin_documents(static_cast<std::int64_t>(header_.sequences));
    end_document();
    if (document_ || last_ != static_cast<std::int64_t>(header_.sequences)) {
      throw malformed(where_,
                      concat("expected document indices that rise from 0 to the ",
                             header_.sequences,
                             " sequences, got ",
                             document_.value_or(last_)));
    }
    require_all_of(data_bytes);
    index_.layout.format = TokenFormat::kMegatron;
    index_.layout.type = header_.type;
    return std::move(index_);
  }

 private:
  /// Documents that begin with this sequence; of several, all but the last have no token.
  void begin_documents(std::int64_t sequence) {
    while (document_ == sequence) {
      end_document();
      start_ = index_.layout.tokens;
      last_ = sequence;
      document_ = indices_.next();
    }
  }

  void end_document() {
    if (start_ >= 0 && start_ < index_.layout.tokens) {
      ++index_.documents;
      if (keep_) {
        index_.document_starts.push_back(start_);
      }
    }
    start_ = -1;
  }

  void require_all_of(std::uint64_t data_bytes) const {
    const auto bytes = static_cast<std::uint64_t>(index_.layout.tokens * width(header_.type));
    if (bytes != data_bytes) {
      throw malformed(where_, concat("expected a .bin of ", bytes, " bytes, got ", data_bytes));
    }
  }

  const Header& header_;
  bool keep_;
  const std::string& where_;
  Elements<std::int32_t> lengths_;
  Elements<std::int64_t> pointers_;
  Elements<std::int64_t> indices_;
  std::optional<std::int64_t> document_; ///< sequence that the next document begins with
  std::int64_t start_ = -1;              ///< token of the document that runs; -1: none
  std::int64_t last_ = -1;
  MegatronIndex index_;
};

} // namespace

bool is_megatron_index(std::span<const std::byte> head) {
  return head.size() >= kMagic.size() && std::memcmp(head.data(), kMagic.data(), kMagic.size()) == 0;
}

MegatronIndex parse_megatron_index(const ReadIndexBytes& read,
                                   std::uint64_t index_bytes,
                                   std::uint64_t data_bytes,
                                   bool keep,
                                   const std::string& where) {
  const Header header = read_header(read, index_bytes, where);
  return Walk(read, header, keep, where).run(data_bytes);
}

} // namespace tieshard
