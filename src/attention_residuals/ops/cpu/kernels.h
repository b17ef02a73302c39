// Reads over depth on a CPU, without torch: tokens over threads, a token's rows from memory once.
//
// V is the type of the sources, C the type statistics and sums are carried in: float, or double for double.
// N sources and R queries; per-token scalars of query r lie at [r * tokens + t].
#pragma once

#include <cstdint>
#include <vector>

namespace attention_residuals::kernels {

// A tensor [T, D] row by row, wherever its rows lie. Strides and offsets count elements.
struct Rows {
  char* data;
  int64_t row_stride;
  int64_t feature_stride;
  std::vector<int64_t> offsets;  // of each row, where no one stride leads from row to row

  int64_t offset(int64_t t) const { return offsets.empty() ? t * row_stride : offsets[t]; }
};

struct Shape {
  int64_t sources, queries, tokens, width;
};

// An earlier read of other sources by the one query, to go on from: its mixture [T, D], maximum and total [T].
template <class C>
struct Part {
  const C* mixed = nullptr;
  const C* maximum = nullptr;
  const C* total = nullptr;
};

// An RMSNorm of each mixture, while that is in cache: out = mixture * rstd * weight in the type of the sources.
template <class V, class C>
struct Norm {
  const C* weight = nullptr;
  double eps = 0;
  V* out = nullptr;
};

// The last source is to be the sum of it and of `rows`, and that to be stored in `out`, contiguous, in V.
template <class V>
struct Addition {
  const Rows* rows = nullptr;
  V* out = nullptr;
};

// out[r] = gain * sum_i softmax_i(<folded_r, v_i> rstd_i) v_i in the type O, contiguous [T, D]; maximum of the logits
// and total of exp(logit - maximum) beside it. With a part, whose memory may be that of `out`, there is one query, no
// source need be left, and a norm may follow.
template <class V, class C, class O>
void mix(const Shape& shape, const std::vector<Rows>& sources, const C* folded, const Part<C>& part, double eps,
         double gain, const std::vector<O*>& out, C* maximum, C* total, const Norm<V, C>& norm, const Addition<V>& addition,
         int threads);

// What the backward knows of query r's read: the gradient of its mixture; statistics over all its sources, also those
// not at hand; and delta = <gradient, mixture> / gain, or its mixture, or neither if all sources are at hand.
template <class C>
struct ReadGradient {
  Rows rows;
  const C* maximum;
  const C* total;
  const C* delta;
  double gain;
  bool elsewhere = false;      // the delta leaves out the sources at hand
  const C* mixture = nullptr;  // contiguous [T, D], to make the delta of where there is none
  const C* share = nullptr;    // [T], if that is not the mixture, but this much of it, from the sources not at hand
  C* made = nullptr;           // the delta, beside a share what the sources at hand have in it
};

// grads[i] = running[i] + the gradient of source i from all R reads, in V, contiguous; running[i].data may be null.
// grads[i] may be where running[i] is. grad_folded [R, D]: over these sources alone.
// The gradients of the mixtures are of type G.
template <class V, class C, class G>
void mix_backward(const Shape& shape, const std::vector<Rows>& sources, const std::vector<Rows>& running,
                  const C* folded, const std::vector<ReadGradient<C>>& reads, double eps, const std::vector<V*>& grads,
                  C* grad_folded, int threads);

// Of the gradient of a norm's output: that of its input `mixed` [T, D], and <that, mixed> a token, and that of its
// weight [D].
template <class V, class C>
void norm_backward(int64_t tokens, int64_t width, const Rows& grad, const Rows& mixed, const C* weight, double eps,
                   V* grad_mixed, C* products, C* grad_weight, int threads);

// out[t] = <a_t, b_t>.
template <class V, class W, class C>
void row_products(int64_t tokens, int64_t width, const Rows& a, const Rows& b, C* out, int threads);

}  // namespace attention_residuals::kernels
