// Vectors of the machine's width, and the three loops over rows of D numbers that a read is made of.
//
// Every sum over D has one order, whatever the number of rows, tokens or threads: a token's result is the same bits in
// any batch.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace attention_residuals::kernels {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kBlock = 4;  // rows on either side of a block of inner products: its 16 sums and 8 operands fit 32 registers
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kBlock = 2;
#else
constexpr int kVectorBytes = 16;
constexpr int kBlock = 2;
#endif
constexpr int kSteps = 2;  // vectors of each row in flight in a weighted sum

template <class C>
struct Vector {
  typedef C Type __attribute__((vector_size(kVectorBytes)));
  typedef C Loose __attribute__((vector_size(kVectorBytes), aligned(alignof(C)), may_alias));
  static constexpr int64_t lanes = kVectorBytes / sizeof(C);
};

template <class C>
inline typename Vector<C>::Type load(const C* from) {
  return *reinterpret_cast<const typename Vector<C>::Loose*>(from);
}

template <class C>
inline void store(C* to, typename Vector<C>::Type value) {
  *reinterpret_cast<typename Vector<C>::Loose*>(to) = value;
}

// A store past the caches, for rows that are not read again soon: it does not fetch the line first. `to` is aligned.
template <class C>
inline void store_past_cache(C* to, typename Vector<C>::Type value) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
#else
  store(to, value);
#endif
}

inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes == 0; }

// The lanes of a vector, halved until one is left.
template <class C>
inline C sum_lanes(typename Vector<C>::Type value) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<C, float>)
    return _mm512_reduce_add_ps((__m512)value);
  else
    return _mm512_reduce_add_pd((__m512d)value);
#else
  C lane[Vector<C>::lanes];
  std::memcpy(lane, &value, sizeof(lane));
  for (int64_t half = Vector<C>::lanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
#endif
}

// products[i * stride + j] = <a_i, b_j> for A x B rows; with kSquares also squares[i] = <a_i, a_i>.
template <class C, int A, int B, bool kSquares>
inline void inner_products_block(const C* const* a, const C* const* b, int64_t width, C* products, int64_t stride,
                                 C* squares) {
  using V = typename Vector<C>::Type;
  constexpr int64_t lanes = Vector<C>::lanes;
  V sums[A][B] = {};
  V square_sums[A] = {};
  int64_t d = 0;
  for (; d + lanes <= width; d += lanes) {
    V left[A];
    for (int i = 0; i < A; ++i) left[i] = load(a[i] + d);
    for (int j = 0; j < B; ++j) {
      const V right = load(b[j] + d);
      for (int i = 0; i < A; ++i) sums[i][j] += left[i] * right;
    }
    if (kSquares)
      for (int i = 0; i < A; ++i) square_sums[i] += left[i] * left[i];
  }
  for (int i = 0; i < A; ++i) {
    for (int j = 0; j < B; ++j) {
      C sum = sum_lanes<C>(sums[i][j]);
      for (int64_t e = d; e < width; ++e) sum += a[i][e] * b[j][e];
      products[i * stride + j] = sum;
    }
    if (kSquares) {
      C sum = sum_lanes<C>(square_sums[i]);
      for (int64_t e = d; e < width; ++e) sum += a[i][e] * a[i][e];
      squares[i] = sum;
    }
  }
}

template <class C, int A>
inline void inner_products_rows(const C* const* a, const C* const* b, int64_t columns, int64_t width, C* products,
                                C* squares) {
  constexpr int kColumns = A == 1 ? 4 : kBlock;
  int64_t j = 0;
  if (columns >= kColumns) {
    inner_products_block<C, A, kColumns, true>(a, b, width, products, columns, squares);
    for (j = kColumns; j + kColumns <= columns; j += kColumns)
      inner_products_block<C, A, kColumns, false>(a, b + j, width, products + j, columns, squares);
  } else {
    inner_products_block<C, A, 1, true>(a, b, width, products, columns, squares);
    j = 1;
  }
  for (; j + 2 <= columns; j += 2)
    inner_products_block<C, A, 2, false>(a, b + j, width, products + j, columns, squares);
  for (; j < columns; ++j) inner_products_block<C, A, 1, false>(a, b + j, width, products + j, columns, squares);
}

// products[rows, columns] of all a with all b, and squares[rows] of the a.
template <class C>
inline void inner_products(const C* const* a, int64_t rows, const C* const* b, int64_t columns, int64_t width,
                           C* products, C* squares) {
  int64_t i = 0;
  for (; i + kBlock <= rows; i += kBlock)
    inner_products_rows<C, kBlock>(a + i, b, columns, width, products + i * columns, squares + i);
  for (; i < rows; ++i) inner_products_rows<C, 1>(a + i, b, columns, width, products + i * columns, squares + i);
}

template <class C>
inline C inner_product(const C* a, const C* b, int64_t width) {
  C product, unused;
  inner_products_block<C, 1, 1, false>(&a, &b, width, &product, 1, &unused);
  return product;
}

// sum_d a_d b_d c_d.
template <class C>
inline C inner_product_of_three(const C* a, const C* b, const C* c, int64_t width) {
  constexpr int64_t lanes = Vector<C>::lanes;
  typename Vector<C>::Type sums = {};
  int64_t d = 0;
  for (; d + lanes <= width; d += lanes) sums += load(a + d) * load(b + d) * load(c + d);
  C sum = sum_lanes<C>(sums);
  for (; d < width; ++d) sum += a[d] * b[d] * c[d];
  return sum;
}

// out = a * b * factor.
template <class C>
inline void scaled_product(const C* a, const C* b, C factor, C* out, int64_t width) {
  for (int64_t d = 0; d < width; ++d) out[d] = a[d] * factor * b[d];
}

// Of out = h rstd weight, with `along` = <grad weight, h> rstd^3 / D: the gradient of h, and that of the weight added up.
template <class C>
inline void norm_gradients(const C* grad, const C* weight, const C* h, C rstd, C along, C* grad_h, C* grad_weight,
                           int64_t width) {
  for (int64_t d = 0; d < width; ++d) {
    const C incoming = grad[d] * rstd, value = h[d];
    grad_weight[d] += incoming * value;
    grad_h[d] = incoming * weight[d] - value * along;
  }
}

// What a weighted sum begins with.
enum class Start { kZero, kScaled, kScaledAndAdded };

// For O rows from row `first` on: out_o = start_o scale_o + added_o + sum_k weights[k * stride + first + o] in_k, V vectors from feature d on.
template <class C, int O, int V, Start kStart, bool kPastCache>
inline void weighted_sums_step(C* const* out, const C* const* start, const C* scale, const C* const* added,
                               const C* const* in, int64_t terms, const C* weights, int64_t stride, int64_t first, int64_t d) {
  constexpr int64_t lanes = Vector<C>::lanes;
  typename Vector<C>::Type sums[O][V];
  for (int o = 0; o < O; ++o)
    for (int v = 0; v < V; ++v) {
      if constexpr (kStart == Start::kZero)
        sums[o][v] = typename Vector<C>::Type{};
      else
        sums[o][v] = load(start[first + o] + d + v * lanes) * scale[first + o];
      if constexpr (kStart == Start::kScaledAndAdded) sums[o][v] += load(added[first + o] + d + v * lanes);
    }
  for (int64_t k = 0; k < terms; ++k) {
    typename Vector<C>::Type term[V];
    for (int v = 0; v < V; ++v) term[v] = load(in[k] + d + v * lanes);
    for (int o = 0; o < O; ++o)
      for (int v = 0; v < V; ++v) sums[o][v] += term[v] * weights[k * stride + first + o];
  }
  for (int o = 0; o < O; ++o)
    for (int v = 0; v < V; ++v) {
      if constexpr (kPastCache)
        store_past_cache(out[first + o] + d + v * lanes, sums[o][v]);
      else
        store(out[first + o] + d + v * lanes, sums[o][v]);
    }
}

template <class C, int O, Start kStart, bool kPastCache>
inline void weighted_sums_block(C* const* out, const C* const* start, const C* scale, const C* const* added,
                                const C* const* in, int64_t terms, const C* weights, int64_t stride, int64_t first, int64_t width) {
  constexpr int64_t lanes = Vector<C>::lanes;
  constexpr int kVectors = O <= 2 ? 2 * kSteps : kSteps;
  int64_t d = 0;
  for (; d + kVectors * lanes <= width; d += kVectors * lanes)
    weighted_sums_step<C, O, kVectors, kStart, kPastCache>(out, start, scale, added, in, terms, weights, stride, first, d);
  for (; d + lanes <= width; d += lanes)
    weighted_sums_step<C, O, 1, kStart, kPastCache>(out, start, scale, added, in, terms, weights, stride, first, d);
  for (; d < width; ++d)
    for (int o = 0; o < O; ++o) {
      C sum = C(0);
      if constexpr (kStart != Start::kZero) sum = start[first + o][d] * scale[first + o];
      if constexpr (kStart == Start::kScaledAndAdded) sum += added[first + o][d];
      for (int64_t k = 0; k < terms; ++k) sum += in[k][d] * weights[k * stride + first + o];
      out[first + o][d] = sum;
    }
}

// The same for any number of rows, all features; weights are [terms, rows].
template <class C, Start kStart, bool kPastCache = false>
inline void weighted_sums(C* const* out, int64_t rows, const C* const* start, const C* scale, const C* const* added,
                          const C* const* in, int64_t terms, const C* weights, int64_t width) {
  int64_t o = 0;
  const auto block = [&](auto count) {
    constexpr int kRows = decltype(count)::value;
    weighted_sums_block<C, kRows, kStart, kPastCache>(out, start, scale, added, in, terms, weights, rows, o, width);
    o += kRows;
  };
  while (o + 4 <= rows) block(std::integral_constant<int, 4>{});
  while (o + 2 <= rows) block(std::integral_constant<int, 2>{});
  while (o < rows) block(std::integral_constant<int, 1>{});
}

// e^x for x <= 0 or NaN, to about one rounding, 0 below the normal numbers: free of branches, so loops of it vectorise.
inline float exp_nonpositive(float x) {
  const float shift = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to a whole number
  const float clamped = x < -87.0f ? -87.0f : x;
  const float n = (clamped * 1.44269504088896341f + shift) - shift;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return x < -87.0f ? 0.0f : p * power;
}

inline double exp_nonpositive(double x) { return std::exp(x); }

}  // namespace attention_residuals::kernels
