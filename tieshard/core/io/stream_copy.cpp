#include "tieshard/core/io/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace tieshard {

#if defined(__x86_64__) && defined(__GNUC__)

namespace {

constexpr std::size_t kLine = 64; ///< bytes that go to memory together
constexpr std::size_t kAhead = 1024;

/// Whole lines. Pre: `target` is at the begin of one.
void stream_lines(std::byte* target, const std::byte* source, std::size_t lines) {
  for (std::size_t line = 0; line < lines; ++line, target += kLine, source += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(source) + kAhead, _MM_HINT_NTA);
    const auto* const from = reinterpret_cast<const __m128i*>(source);
    auto* const to = reinterpret_cast<__m128i*>(target);
    const __m128i first = _mm_loadu_si128(from);
    const __m128i second = _mm_loadu_si128(from + 1);
    const __m128i third = _mm_loadu_si128(from + 2);
    const __m128i fourth = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, first);
    _mm_stream_si128(to + 1, second);
    _mm_stream_si128(to + 2, third);
    _mm_stream_si128(to + 3, fourth);
  }
  _mm_sfence(); // before anything that says that it is done
}

} // namespace

void stream_copy(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (bytes == 0) { // memcpy takes no null, not even for nothing
    return;
  }
  const std::size_t past = reinterpret_cast<std::uintptr_t>(target) % kLine;
  const std::size_t head = std::min(bytes, past == 0 ? 0 : kLine - past);
  std::memcpy(target, source, head);
  const std::size_t lines = (bytes - head) / kLine;
  stream_lines(target + head, source + head, lines);
  const std::size_t done = head + lines * kLine;
  std::memcpy(target + done, source + done, bytes - done);
}

#else

void stream_copy(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (bytes != 0) {
    std::memcpy(target, source, bytes);
  }
}

#endif

} // namespace tieshard
