#include "kernels.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <type_traits>

#include "types.h"
#include "vectors.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace attention_residuals::kernels {
namespace {

constexpr int64_t kStreamedBytes = int64_t(8) << 20;

// Tokens that a thread takes at a time. It depends on the shape alone, for the gradient of a query is one sum a chunk.
int64_t chunk_tokens(int64_t tokens) { return std::clamp<int64_t>(tokens / 32, 1, 64); }

// Calls body(chunk, begin, end) for all chunks of tokens, which may run in any order, on at most `threads` threads.
template <class Body>
void for_each_chunk(int64_t tokens, int threads, const Body& body) {
  const int64_t size = chunk_tokens(tokens), chunks = (tokens + size - 1) / size;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && chunks > 1 && !omp_in_parallel())
#endif
  for (int64_t chunk = 0; chunk < chunks; ++chunk) body(chunk, chunk * size, std::min(tokens, (chunk + 1) * size));
}

// Memory of one thread, aligned, kept from call to call: what the kernels need beyond their operands.
class Scratch {
 public:
  template <class C>
  C* take(int64_t count) {
    const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(C) + 63) / 64 * 64;
    if (used_ + bytes > size_) {  // only the first time: later calls of this shape find it large enough
      blocks_.emplace_back(new char[std::max(bytes, size_) * 2 + 64]);
      size_ = std::max(bytes, size_) * 2;
      used_ = 0;
    }
    char* base = blocks_.back().get();
    base += (64 - reinterpret_cast<std::uintptr_t>(base) % 64) % 64;
    char* here = base + used_;
    used_ += bytes;
    return reinterpret_cast<C*>(here);
  }

  // Everything taken may be taken again; only the largest block is kept.
  void reset() {
    if (blocks_.size() > 1) blocks_.erase(blocks_.begin(), blocks_.end() - 1);
    used_ = 0;
  }

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
  std::size_t size_ = 0, used_ = 0;
};

Scratch& thread_scratch() {
  thread_local Scratch scratch;
  scratch.reset();
  return scratch;
}

// Row t in C: the memory itself where type and stride allow it, else a copy in `buffer`.
template <class V, class C>
inline const C* row(const Rows& rows, int64_t t, int64_t width, C* buffer) {
  const V* from = reinterpret_cast<const V*>(rows.data) + rows.offset(t);
  if constexpr (std::is_same_v<V, C>) {
    if (rows.feature_stride == 1) return from;
  }
  if (rows.feature_stride == 1)
    widen(from, buffer, width);
  else
    for (int64_t d = 0; d < width; ++d) buffer[d] = to_compute<C>(from[d * rows.feature_stride]);
  return buffer;
}

// Sums of squares to inverse root mean squares, in place.
template <class C>
inline void inverse_rms(C* squares, int64_t count, int64_t width, double eps) {
  const C per_feature = C(1) / C(width);
  for (int64_t i = 0; i < count; ++i) squares[i] = C(1) / std::sqrt(squares[i] * per_feature + C(eps));
}

// The RMSNorm of `row` in the type V at `out`; `buffer` may be `row`'s own where that is not read again.
template <class V, class C>
inline void normalise(const C* row, const Norm<V, C>& norm, V* out, C* buffer, int64_t width) {
  C rstd = inner_product(row, row, width);
  inverse_rms(&rstd, 1, width, norm.eps);
  if constexpr (std::is_same_v<V, C>) {
    scaled_product(row, norm.weight, rstd, out, width);
  } else {
    scaled_product(row, norm.weight, rstd, buffer, width);
    narrow(buffer, out, width);
  }
}

// a + b in the type V at `out`; the row as it was rounded, at `out` too or in `buffer`.
template <class V, class C>
inline const C* add_rows(const C* a, const C* b, V* out, C* buffer, int64_t width) {
  if constexpr (std::is_same_v<V, C>) {
    for (int64_t d = 0; d < width; ++d) out[d] = a[d] + b[d];
    return out;
  } else {
    for (int64_t d = 0; d < width; ++d) buffer[d] = a[d] + b[d];
    narrow(buffer, out, width);
    widen(out, buffer, width);
    return buffer;
  }
}

// Adds up the sums [chunks, rows, D] of all chunks, in their order.
template <class C>
void add_chunks(const C* partial, int64_t chunks, int64_t rows, int64_t width, C* out) {
  std::vector<double> sum(width);
  for (int64_t r = 0; r < rows; ++r) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      for (int64_t d = 0; d < width; ++d) sum[d] += partial[(chunk * rows + r) * width + d];
    for (int64_t d = 0; d < width; ++d) out[r * width + d] = C(sum[d]);
  }
}

// Whether rows of this many bytes in all leave the caches before they are read again, and can be stored past them.
template <class C, class O>
bool past_cache(int64_t bytes, int64_t width, const std::vector<O*>& rows) {
  bool streamed = std::is_same_v<O, C> && width % Vector<C>::lanes == 0 && bytes >= kStreamedBytes;
  for (const O* row : rows) streamed = streamed && is_aligned(row);
  return streamed;
}

// Tokens that are worked on together: their inner products first, then all their softmaxes, then their sums, so that
// no step waits for another. As many as leave their rows in the nearest cache.
inline int64_t batch_tokens(int64_t row_bytes) { return std::clamp<int64_t>((int64_t(24) << 10) / row_bytes, 1, 16); }

}  // namespace

template <class V, class C, class O>
void mix(const Shape& shape, const std::vector<Rows>& sources, const C* folded, const Part<C>& part, double eps,
         double gain, const std::vector<O*>& out, C* maximum, C* total, const Norm<V, C>& norm,
         const Addition<V>& addition, int threads) {
  const auto [count, queries, tokens, width] = shape;
  const int64_t batch = batch_tokens((count + queries) * width * int64_t(sizeof(C)));
  // One mixture is read at once; several wait for their turn.
  const bool streamed = queries > 1 && past_cache<C>(int64_t(sizeof(O)) * queries * tokens * width, width, out);
  for_each_chunk(tokens, threads, [&](int64_t, int64_t begin, int64_t end) {
    Scratch& scratch = thread_scratch();
    C* copies = scratch.take<C>(batch * count * width);
    C* results = scratch.take<C>(queries * width);
    C* logits = scratch.take<C>(batch * count * queries);
    C* weights = scratch.take<C>(batch * count * queries);
    C* rstd = scratch.take<C>(batch * count);
    C* kept = scratch.take<C>(batch * queries);
    const C** values = scratch.take<const C*>(batch * count);
    const C** columns = scratch.take<const C*>(queries);
    C** sums = scratch.take<C*>(queries);
    for (int64_t r = 0; r < queries; ++r) columns[r] = folded + r * width;

    for (int64_t first = begin; first < end; first += batch) {
      const int64_t together = std::min(batch, end - first), pairs = count * queries;
      for (int64_t s = 0; s < together; ++s) {
        for (int64_t i = s * count; i < (s + 1) * count; ++i)
          values[i] = row<V>(sources[i - s * count], first + s, width, copies + i * width);
        if (addition.out) {
          const int64_t last = (s + 1) * count - 1;
          const C* other = row<V>(*addition.rows, first + s, width, results);
          values[last] = add_rows(values[last], other, addition.out + (first + s) * width, copies + last * width, width);
        }
        inner_products(values + s * count, count, columns, queries, width, logits + s * pairs, rstd + s * count);
      }
      inverse_rms(rstd, together * count, width, eps);
      for (int64_t i = 0; i < together * count; ++i)
        for (int64_t r = 0; r < queries; ++r) logits[i * queries + r] *= rstd[i];
      for (int64_t s = 0; s < together; ++s)
        for (int64_t r = 0; r < queries; ++r) {
          const int64_t t = first + s;
          C highest = part.mixed ? part.maximum[t] : logits[s * pairs + r];
          for (int64_t k = s * pairs + r; k < (s + 1) * pairs; k += queries)
            highest = logits[k] > highest ? logits[k] : highest;
          maximum[r * tokens + t] = highest;
          for (int64_t k = s * pairs + r; k < (s + 1) * pairs; k += queries) weights[k] = logits[k] - highest;
          kept[s * queries + r] = part.mixed ? part.maximum[t] - highest : C(0);
        }
      for (int64_t k = 0; k < together * pairs; ++k) weights[k] = exp_nonpositive(weights[k]);
      for (int64_t k = 0; k < together * queries; ++k) kept[k] = exp_nonpositive(kept[k]);
      for (int64_t s = 0; s < together; ++s) {
        const int64_t t = first + s;
        for (int64_t r = 0; r < queries; ++r) {
          C& scale = kept[s * queries + r];
          scale = part.mixed ? scale * part.total[t] : C(0);
          C sum = scale;
          for (int64_t k = s * pairs + r; k < (s + 1) * pairs; k += queries) sum += weights[k];
          total[r * tokens + t] = sum;
          const C factor = C(gain) / sum;
          scale = count ? scale * factor : C(gain);
          for (int64_t k = s * pairs + r; k < (s + 1) * pairs; k += queries) weights[k] *= factor;
          if constexpr (std::is_same_v<O, C>)
            sums[r] = out[r] + t * width;
          else
            sums[r] = results + r * width;
        }
        const C* carried = part.mixed ? part.mixed + t * width : nullptr;
        const C* const* here = values + s * count;
        const C* const* none = nullptr;
        if (carried) {
          weighted_sums<C, Start::kScaled>(sums, 1, &carried, kept + s, none, here, count, weights + s * pairs, width);
          if (norm.out) normalise(sums[0], norm, norm.out + t * width, results, width);
        } else if (streamed)
          weighted_sums<C, Start::kZero, true>(sums, queries, none, kept, none, here, count, weights + s * pairs, width);
        else
          weighted_sums<C, Start::kZero>(sums, queries, none, kept, none, here, count, weights + s * pairs, width);
        if constexpr (!std::is_same_v<O, C>)
          for (int64_t r = 0; r < queries; ++r) narrow(results + r * width, out[r] + t * width, width);
      }
    }
  });
}

template <class V, class C, class G>
void mix_backward(const Shape& shape, const std::vector<Rows>& sources, const std::vector<Rows>& running,
                  const C* folded, const std::vector<ReadGradient<C>>& reads, double eps, const std::vector<V*>& grads,
                  C* grad_folded, int threads) {
  const auto [count, queries, tokens, width] = shape;
  const int64_t terms = 2 * queries;  // the gradients of the mixtures, then the folded queries
  const int64_t size = chunk_tokens(tokens), chunks = (tokens + size - 1) / size;
  const int64_t batch = batch_tokens((count + queries) * width * int64_t(sizeof(C)));
  std::unique_ptr<C[]> partial(new C[chunks * queries * width]);
  const bool streamed = past_cache<C>(int64_t(sizeof(V)) * count * tokens * width, width, grads);

  for_each_chunk(tokens, threads, [&](int64_t chunk, int64_t begin, int64_t end) {
    Scratch& scratch = thread_scratch();
    const int64_t pairs = count * queries;
    C* copies = scratch.take<C>(batch * count * width);
    C* grad_copies = scratch.take<C>(batch * queries * width);
    C* running_copies = scratch.take<C>(count * width);
    C* results = scratch.take<C>(count * width);
    C* products = scratch.take<C>(batch * count * terms);
    C* exponentials = scratch.take<C>(batch * pairs);
    C* rstd = scratch.take<C>(batch * count);
    C* along = scratch.take<C>(terms * count);    // weights of `inputs` in each source's gradient
    C* along_source = scratch.take<C>(count);     // weight of the source itself
    C* along_folded = scratch.take<C>(pairs);     // weights of the sources in the gradient of `folded`
    C* ones = scratch.take<C>(queries);
    C* zeros = scratch.take<C>(width);
    std::fill(zeros, zeros + width, C(0));
    const C** values = scratch.take<const C*>(batch * count);
    const C** inputs = scratch.take<const C*>(batch * terms);
    const C** added = scratch.take<const C*>(count);
    C** outputs = scratch.take<C*>(count);
    C** folded_sums = scratch.take<C*>(queries);
    for (int64_t r = 0; r < queries; ++r) {
      folded_sums[r] = partial.get() + (chunk * queries + r) * width;
      std::fill(folded_sums[r], folded_sums[r] + width, C(0));
      ones[r] = C(1);
    }
    for (int64_t first = begin; first < end; first += batch) {
      const int64_t together = std::min(batch, end - first);
      for (int64_t s = 0; s < together; ++s) {
        for (int64_t i = s * count; i < (s + 1) * count; ++i)
          values[i] = row<V>(sources[i - s * count], first + s, width, copies + i * width);
        for (int64_t r = 0; r < queries; ++r) {
          C* buffer = grad_copies + (s * queries + r) * width;
          inputs[s * terms + r] = row<G>(reads[r].rows, first + s, width, buffer);
          inputs[s * terms + queries + r] = folded + r * width;
        }
        inner_products(values + s * count, count, inputs + s * terms, terms, width, products + s * count * terms,
                       rstd + s * count);
      }
      inverse_rms(rstd, together * count, width, eps);
      for (int64_t s = 0; s < together; ++s)
        for (int64_t i = s * count; i < (s + 1) * count; ++i)
          for (int64_t r = 0; r < queries; ++r) {
            C& logit = products[i * terms + queries + r];
            logit *= rstd[i];
            exponentials[i * queries + r] = logit - reads[r].maximum[first + s];
          }
      for (int64_t k = 0; k < together * pairs; ++k) exponentials[k] = exp_nonpositive(exponentials[k]);

      for (int64_t s = 0; s < together; ++s) {
        const int64_t t = first + s;
        const C* token_products = products + s * count * terms;
        const C* token_exponentials = exponentials + s * pairs;
        const C* token_rstd = rstd + s * count;
        std::fill(along_source, along_source + count, C(0));
        for (int64_t r = 0; r < queries; ++r) {
          const C inverse = C(1) / reads[r].total[t], gain = C(reads[r].gain);
          const auto& read = reads[r];
          C own = C(0);
          for (int64_t i = 0; i < count; ++i)
            own += token_exponentials[i * queries + r] * inverse * token_products[i * terms + r];
          C delta = own;
          if (read.delta)
            delta = read.elsewhere ? own + read.delta[t] : read.delta[t];
          else if (read.mixture) {
            const C product = inner_product(inputs[s * terms + r], read.mixture + t * width, width);
            delta = read.share ? own + product * read.share[t] : product / gain;
            read.made[t] = read.share ? own : delta;
          }
          for (int64_t i = 0; i < count; ++i) {
            const C weight = token_exponentials[i * queries + r] * inverse * gain;
            const C grad_logit = weight * (token_products[i * terms + r] - delta);
            const C logit = token_products[i * terms + queries + r];
            along[r * count + i] = weight;
            along[(queries + r) * count + i] = grad_logit * token_rstd[i];
            along_folded[i * queries + r] = grad_logit * token_rstd[i];
            along_source[i] -= grad_logit * logit * token_rstd[i] * token_rstd[i] / C(width);
          }
        }
        for (int64_t i = 0; i < count; ++i) {
          added[i] = running[i].data ? row<V>(running[i], t, width, running_copies + i * width) : zeros;
          if constexpr (std::is_same_v<V, C>)
            outputs[i] = grads[i] + t * width;
          else
            outputs[i] = results + i * width;
        }
        const C* const* rows = values + s * count;
        const C* const* none = nullptr;
        const C* const* inputs_here = inputs + s * terms;
        if (streamed)
          weighted_sums<C, Start::kScaledAndAdded, true>(outputs, count, rows, along_source, added, inputs_here, terms,
                                                         along, width);
        else
          weighted_sums<C, Start::kScaledAndAdded>(outputs, count, rows, along_source, added, inputs_here, terms, along,
                                                   width);
        weighted_sums<C, Start::kScaled>(folded_sums, queries, const_cast<const C* const*>(folded_sums), ones, none,
                                         rows, count, along_folded, width);
        if constexpr (!std::is_same_v<V, C>)
          for (int64_t i = 0; i < count; ++i) narrow(results + i * width, grads[i] + t * width, width);
      }
    }
  });
  add_chunks(partial.get(), chunks, queries, width, grad_folded);
}

template <class V, class C>
void norm_backward(int64_t tokens, int64_t width, const Rows& grad, const Rows& mixed, const C* weight, double eps,
                   V* grad_mixed, C* products, C* grad_weight, int threads) {
  const int64_t size = chunk_tokens(tokens), chunks = (tokens + size - 1) / size;
  std::unique_ptr<C[]> partial(new C[chunks * width]);
  for_each_chunk(tokens, threads, [&](int64_t chunk, int64_t begin, int64_t end) {
    Scratch& scratch = thread_scratch();
    C* grad_copy = scratch.take<C>(width);
    C* mixed_copy = scratch.take<C>(width);
    C* result = scratch.take<C>(width);
    C* sum = partial.get() + chunk * width;
    std::fill(sum, sum + width, C(0));
    for (int64_t t = begin; t < end; ++t) {
      const C* incoming = row<V>(grad, t, width, grad_copy);
      const C* h = row<C>(mixed, t, width, mixed_copy);
      C rstd = inner_product(h, h, width);
      inverse_rms(&rstd, 1, width, eps);
      const C along = inner_product_of_three(incoming, weight, h, width) * rstd * rstd * rstd / C(width);
      V* out = grad_mixed + t * width;
      if constexpr (std::is_same_v<V, C>) {
        norm_gradients(incoming, weight, h, rstd, along, out, sum, width);
        products[t] = inner_product(out, h, width);
      } else {  // the product is that of the gradient as others will see it
        norm_gradients(incoming, weight, h, rstd, along, result, sum, width);
        narrow(result, out, width);
        widen(out, result, width);
        products[t] = inner_product(result, h, width);
      }
    }
  });
  add_chunks(partial.get(), chunks, 1, width, grad_weight);
}

template <class V, class W, class C>
void row_products(int64_t tokens, int64_t width, const Rows& a, const Rows& b, C* out, int threads) {
  for_each_chunk(tokens, threads, [&](int64_t, int64_t begin, int64_t end) {
    Scratch& scratch = thread_scratch();
    C* left_copy = scratch.take<C>(width);
    C* right_copy = scratch.take<C>(width);
    for (int64_t t = begin; t < end; ++t) {
      const C* left = row<V>(a, t, width, left_copy);
      const C* right = row<W>(b, t, width, right_copy);
      out[t] = inner_product(left, right, width);
    }
  });
}

#define INSTANTIATE_BACKWARD(V, C, G)                                                                                 \
  template void mix_backward<V, C, G>(const Shape&, const std::vector<Rows>&, const std::vector<Rows>&, const C*,     \
                                      const std::vector<ReadGradient<C>>&, double, const std::vector<V*>&, C*, int);
#define INSTANTIATE(V, C)                                                                                             \
  INSTANTIATE_BACKWARD(V, C, V)                                                                                       \
  template void mix<V, C, C>(const Shape&, const std::vector<Rows>&, const C*, const Part<C>&, double, double,        \
                             const std::vector<C*>&, C*, C*, const Norm<V, C>&, const Addition<V>&, int);             \
  template void norm_backward<V, C>(int64_t, int64_t, const Rows&, const Rows&, const C*, double, V*, C*, C*, int);   \
  template void row_products<V, C, C>(int64_t, int64_t, const Rows&, const Rows&, C*, int);
#define INSTANTIATE_NARROW(V, C)                                                                                      \
  INSTANTIATE(V, C)                                                                                                   \
  INSTANTIATE_BACKWARD(V, C, C)                                                                                       \
  template void mix<V, C, V>(const Shape&, const std::vector<Rows>&, const C*, const Part<C>&, double, double,        \
                             const std::vector<V*>&, C*, C*, const Norm<V, C>&, const Addition<V>&, int);

INSTANTIATE(double, double)
INSTANTIATE(float, float)
INSTANTIATE_NARROW(Half, float)
INSTANTIATE_NARROW(BFloat16, float)

}  // namespace attention_residuals::kernels
