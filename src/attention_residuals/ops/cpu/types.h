// The narrow types, as bits: conversions that vectorise, rounding to nearest, ties to even.
#pragma once

#include <cstdint>
#include <cstring>

namespace attention_residuals::kernels {

struct BFloat16 {
  uint16_t bits;
};
using Half = _Float16;

inline float widened(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

inline BFloat16 narrowed(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return {static_cast<uint16_t>(is_nan ? 0x7FC0u : rounded >> 16)};
}

template <class C, class V>
inline C to_compute(V value) {
  return static_cast<C>(value);
}
template <>
inline float to_compute<float, BFloat16>(BFloat16 value) {
  return widened(value);
}

template <class V, class C>
inline void widen(const V* from, C* to, int64_t count) {
  for (int64_t d = 0; d < count; ++d) to[d] = to_compute<C>(from[d]);
}

inline void narrow(const float* from, Half* to, int64_t count) {
  for (int64_t d = 0; d < count; ++d) to[d] = static_cast<Half>(from[d]);
}
inline void narrow(const float* from, BFloat16* to, int64_t count) {
  for (int64_t d = 0; d < count; ++d) to[d] = narrowed(from[d]);
}

}  // namespace attention_residuals::kernels
