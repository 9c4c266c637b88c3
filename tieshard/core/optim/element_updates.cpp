// Compiled without errno of sqrt, without traps and without fused products (CMakeLists.txt): the loops vectorise, and
// give the same bits in every vector width.

#include "tieshard/core/optim/element_updates.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tieshard/core/base/float_formats.h"

namespace tieshard {
namespace {

/// Elements of a loop of fixed length, which compilers vectorise at -O2.
constexpr std::size_t kBlock = 64;

// One element: its new value from the old one `w`, the gradient `g` and its moments, which change.

template <bool kAmsgrad>
struct AdamWElement {
  static constexpr int kMoments = kAmsgrad ? 3 : 2;
  AdamWUpdate u;

  [[gnu::always_inline]] float operator()(float w, float g, float& mean, float& square, float& largest) const {
    mean = u.beta1 * mean + u.one_minus_beta1 * g;
    square = u.beta2 * square + u.one_minus_beta2 * (g * g);
    if constexpr (kAmsgrad) {
      largest = square > largest || square != square ? square : largest;
    }
    const float root = std::sqrt(kAmsgrad ? largest : square) / u.root_correction + u.eps;
    return u.decay * w - u.step_size * mean / root;
  }
};

template <bool kMomentum, bool kNesterov>
struct SgdElement {
  static constexpr int kMoments = kMomentum ? 1 : 0;
  SgdUpdate u;

  [[gnu::always_inline]] float operator()(float w, float g, float& buffer, float&, float&) const {
    const float slope = g + u.weight_decay * w;
    if constexpr (!kMomentum) {
      return w - u.lr * slope;
    }
    buffer = u.momentum * buffer + u.taken * slope;
    return w - u.lr * (kNesterov ? slope + u.momentum * buffer : buffer);
  }
};

struct LionElement {
  static constexpr int kMoments = 1;
  LionUpdate u;

  [[gnu::always_inline]] float operator()(float w, float g, float& mean, float&, float&) const {
    const float blend = u.beta1 * mean + u.one_minus_beta1 * g;
    const float sign = blend > 0.0F ? 1.0F : blend < 0.0F ? -1.0F : blend; // 0 of 0, NaN of NaN
    mean = u.beta2 * mean + u.one_minus_beta2 * g;
    return u.decay * w - u.lr * sign;
  }
};

/// Parameter and gradient in float32.
struct InFloat32 {
  using Elements = Float32Elements;

  [[gnu::always_inline]] static float load(const Elements& elements, std::size_t at) {
    return elements.parameter[at];
  }
  [[gnu::always_inline]] static float gradient(const Elements& elements, std::size_t at) {
    return elements.gradient[at];
  }
  [[gnu::always_inline]] void store(const Elements& elements, std::size_t at, float value) const {
    elements.parameter[at] = value;
  }
};

/// In bfloat16, rounded to nearest.
struct InBFloat16 {
  using Elements = BFloat16Elements;

  [[gnu::always_inline]] static float load(const Elements& elements, std::size_t at) {
    return BFloat16Format::decode(elements.parameter[at]);
  }
  [[gnu::always_inline]] static float gradient(const Elements& elements, std::size_t at) {
    return BFloat16Format::decode(elements.gradient[at]);
  }
  [[gnu::always_inline]] void store(const Elements& elements, std::size_t at, float value) const {
    elements.parameter[at] = BFloat16Format::encode(value);
  }
};

/// In bfloat16 with float32 master weights.
struct WithMaster : InBFloat16 {
  [[gnu::always_inline]] static float load(const Elements& elements, std::size_t at) {
    return elements.master[at];
  }
  [[gnu::always_inline]] void store(const Elements& elements, std::size_t at, float value) const {
    elements.master[at] = value;
    elements.parameter[at] = BFloat16Format::encode(value);
  }
};

/// In bfloat16, rounded at random. Within one run the upper half of the index is one number.
struct AtRandom : InBFloat16 {
  std::uint32_t first = 0;  ///< lower half of the index of element 0
  std::uint32_t before = 0; ///< the key, xored in before and between the two multiplications
  std::uint32_t between = 0;

  [[gnu::always_inline]] std::uint32_t noise(std::size_t at) const {
    std::uint32_t x = (first + static_cast<std::uint32_t>(at)) ^ before;
    x = (x ^ (x >> 16)) * 0x7FEB352DU; // lowbias32 of Wellons' "hash prospector"
    x ^= between;
    x = (x ^ (x >> 15)) * 0x846CA68BU;
    return x >> 16;
  }
  [[gnu::always_inline]] void store(const Elements& elements, std::size_t at, float value) const {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U; // noise could carry it into the sign
    elements.parameter[at] = static_cast<std::uint16_t>(select(nan, (bits >> 16) | 0x0040U, (bits + noise(at)) >> 16));
  }
};

template <typename Element, typename Access>
[[gnu::always_inline]] inline void update_range(const Element& element,
                                                const Access& access,
                                                const typename Access::Elements& elements,
                                                std::size_t begin,
                                                std::size_t length) {
  float* const* moments = elements.moments;
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < length; ++i) {
    const std::size_t at = begin + i;
    float first = 0;
    float second = 0;
    float third = 0;
    if constexpr (Element::kMoments > 0) {
      first = moments[0][at];
    }
    if constexpr (Element::kMoments > 1) {
      second = moments[1][at];
    }
    if constexpr (Element::kMoments > 2) {
      third = moments[2][at];
    }
    const float value = element(Access::load(elements, at), Access::gradient(elements, at), first, second, third);
    if constexpr (Element::kMoments > 0) {
      moments[0][at] = first;
    }
    if constexpr (Element::kMoments > 1) {
      moments[1][at] = second;
    }
    if constexpr (Element::kMoments > 2) {
      moments[2][at] = third;
    }
    access.store(elements, at, value);
  }
}

template <typename Element, typename Access>
[[gnu::always_inline]] inline void update_all(
    Element element, Access access, typename Access::Elements elements) { // copies: nothing stored can alias them
  std::size_t begin = 0;
  for (; begin + kBlock <= elements.count; begin += kBlock) {
    update_range(element, access, elements, begin, kBlock);
  }
  update_range(element, access, elements, begin, elements.count - begin);
}

template <typename Element, typename Access>
void update_on_any_core(const Element& element, const Access& access, const typename Access::Elements& elements) {
  update_all(element, access, elements);
}

#if defined(__x86_64__)

template <typename Element, typename Access>
[[gnu::target("avx2")]] void update_with_avx2(const Element& element,
                                              const Access& access,
                                              const typename Access::Elements& elements) {
  update_all(element, access, elements);
}

template <typename Element, typename Access>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq")]] void update_with_avx512(
    const Element& element, const Access& access, const typename Access::Elements& elements) {
  update_all(element, access, elements);
}

/// 0: any core of x86-64; 1: with AVX2; 2: with AVX-512.
int vector_level() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return 2;
  }
  return __builtin_cpu_supports("avx2") ? 1 : 0;
}

#endif

template <typename Element, typename Access>
void update_best(const Element& element, const Access& access, const typename Access::Elements& elements) {
#if defined(__x86_64__)
  static const int level = vector_level();
  if (level == 2) {
    return update_with_avx512(element, access, elements);
  }
  if (level == 1) {
    return update_with_avx2(element, access, elements);
  }
#endif
  update_on_any_core(element, access, elements);
}

template <typename Element>
void update_as(const Element& element, const Float32Elements& elements) {
  update_best(element, InFloat32{}, elements);
}

BFloat16Elements tail_of(BFloat16Elements elements, std::size_t done) {
  elements.parameter += done;
  elements.gradient += done;
  for (float*& moment : elements.moments) {
    moment = moment == nullptr ? nullptr : moment + done;
  }
  elements.rounding->index += done;
  elements.count -= done;
  return elements;
}

template <typename Element>
void update_at_random(const Element& element, BFloat16Elements elements) {
  while (elements.count > 0) {
    const StochasticRounding rounding = *elements.rounding;
    const std::uint64_t key = mix(rounding.key, rounding.index >> 32);
    AtRandom access;
    access.first = static_cast<std::uint32_t>(rounding.index);
    access.before = static_cast<std::uint32_t>(key);
    access.between = static_cast<std::uint32_t>(key >> 32);
    BFloat16Elements run = elements;
    run.count =
        static_cast<std::size_t>(std::min<std::uint64_t>(elements.count, (std::uint64_t{1} << 32) - access.first));
    update_best(element, access, run);
    elements = tail_of(elements, run.count);
  }
}

template <typename Element>
void update_as(const Element& element, const BFloat16Elements& elements) {
  if (elements.master != nullptr) {
    return update_best(element, WithMaster{}, elements);
  }
  if (elements.rounding) {
    return update_at_random(element, elements);
  }
  update_best(element, InBFloat16{}, elements);
}

template <typename Elements>
void update_adamw(const AdamWUpdate& rule, const Elements& elements) {
  if (rule.amsgrad) {
    return update_as(AdamWElement<true>{rule}, elements);
  }
  update_as(AdamWElement<false>{rule}, elements);
}

template <typename Elements>
void update_sgd(const SgdUpdate& rule, const Elements& elements) {
  if (rule.momentum == 0.0F) {
    return update_as(SgdElement<false, false>{rule}, elements);
  }
  if (rule.nesterov) {
    return update_as(SgdElement<true, true>{rule}, elements);
  }
  update_as(SgdElement<true, false>{rule}, elements);
}

} // namespace

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a + 0x9E3779B97F4A7C15ULL * (b + 1); // then the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

AdamWUpdate adamw_update(const AdamWSettings& settings, std::int64_t step) {
  const auto steps = static_cast<double>(step);
  return {.decay = static_cast<float>(1.0 - settings.lr * settings.weight_decay),
          .beta1 = static_cast<float>(settings.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - settings.beta1),
          .beta2 = static_cast<float>(settings.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - settings.beta2),
          .step_size = static_cast<float>(settings.lr / (1.0 - std::pow(settings.beta1, steps))),
          .root_correction = static_cast<float>(std::sqrt(1.0 - std::pow(settings.beta2, steps))),
          .eps = static_cast<float>(settings.eps),
          .amsgrad = settings.amsgrad};
}

void update(const AdamWUpdate& rule, const Float32Elements& elements) {
  update_adamw(rule, elements);
}

void update(const AdamWUpdate& rule, const BFloat16Elements& elements) {
  update_adamw(rule, elements);
}

void update(const SgdUpdate& rule, const Float32Elements& elements) {
  update_sgd(rule, elements);
}

void update(const SgdUpdate& rule, const BFloat16Elements& elements) {
  update_sgd(rule, elements);
}

void update(const LionUpdate& rule, const Float32Elements& elements) {
  update_as(LionElement{rule}, elements);
}

void update(const LionUpdate& rule, const BFloat16Elements& elements) {
  update_as(LionElement{rule}, elements);
}

} // namespace tieshard
