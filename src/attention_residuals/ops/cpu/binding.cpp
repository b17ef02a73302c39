// The CPU kernels of torch.ops.attention_residuals: what they do is in kernels.h, the schemas in ops/operators.py.

#include <ATen/Parallel.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels.h"
#include "operators.h"
#include "types.h"

namespace attention_residuals {
namespace {

using kernels::ReadGradient;
using kernels::Rows;
using kernels::Shape;

// A tensor [..., D] as rows, in place: leading dimensions become one stride where they can, else an offset a row.
Rows rows_of(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  Rows rows{static_cast<char*>(const_cast<void*>(tensor.const_data_ptr())), 0, tensor.stride(last), {}};
  bool collapses = true;
  std::optional<int64_t> next;  // the stride that the next dimension outwards must have
  for (int64_t k = last - 1; k >= 0; --k) {
    if (tensor.size(k) == 1) continue;
    if (!next) rows.row_stride = tensor.stride(k);
    collapses = collapses && (!next || tensor.stride(k) == *next);
    next = tensor.stride(k) * tensor.size(k);
  }
  if (collapses) return rows;
  int64_t tokens = 1;
  for (int64_t k = 0; k < last; ++k) tokens *= tensor.size(k);
  rows.offsets.resize(tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    int64_t rest = t, offset = 0;
    for (int64_t k = last - 1; k >= 0; --k) {
      offset += rest % tensor.size(k) * tensor.stride(k);
      rest /= tensor.size(k);
    }
    rows.offsets[t] = offset;
  }
  return rows;
}

std::vector<Rows> rows_of(at::TensorList tensors) {
  std::vector<Rows> rows;
  rows.reserve(tensors.size());
  for (const Tensor& tensor : tensors) rows.push_back(rows_of(tensor));
  return rows;
}

Shape shape_of(const Tensor& source, int64_t sources, int64_t queries) {
  const int64_t width = source.size(-1);
  return {sources, queries, source.numel() / width, width};
}

template <class T>
std::vector<T*> pointers(std::vector<Tensor>& tensors) {
  std::vector<T*> result;
  for (Tensor& tensor : tensors) result.push_back(static_cast<T*>(tensor.mutable_data_ptr()));
  return result;
}

// Whether nobody else can see the memory of `grad`, which fits as a gradient of `source`: what the engine asks before it
// adds in place.
bool is_ours_alone(const Tensor& grad, const Tensor& source) {
  return grad.defined() && grad.use_count() == 1 && grad.storage().use_count() == 1 && grad.is_contiguous() &&
         grad.scalar_type() == source.scalar_type() && grad.sizes() == source.sizes();
}

// Calls body(V{}, C{}) with the types of the sources and of the arithmetic.
template <class Body>
void with_types(at::ScalarType type, const Body& body) {
  switch (type) {
    case at::kDouble: return body(double{}, double{});
    case at::kFloat: return body(float{}, float{});
    case at::kHalf: return body(kernels::Half{}, float{});
    case at::kBFloat16: return body(kernels::BFloat16{}, float{});
    default: TORCH_CHECK(false, "sources have type ", type, "; a read needs a floating type");
  }
}

}  // namespace

std::tuple<std::vector<Tensor>, Tensor, Tensor> mix(at::TensorList sources, const Tensor& folded, double eps,
                                                    double gain, bool wide) {
  const Tensor& like = sources[0];
  const at::ScalarType type = like.scalar_type();
  const Shape shape = shape_of(like, sources.size(), folded.size(0));
  const Tensor folded_rows = folded.contiguous();
  const auto wide_options = folded.options();
  std::vector<Tensor> mixed;
  for (int64_t r = 0; r < shape.queries; ++r)
    mixed.push_back(at::empty(like.sizes(), wide ? wide_options : wide_options.dtype(type)));
  Tensor maximum = at::empty({shape.queries, shape.tokens}, wide_options);
  Tensor total = at::empty({shape.queries, shape.tokens}, wide_options);
  if (shape.tokens == 0) return {mixed, maximum, total};
  with_types(type, [&](auto v, auto c) {
    using V = decltype(v);
    using C = decltype(c);
    const auto run = [&](auto o) {
      using O = decltype(o);
      kernels::mix<V, C, O>(shape, rows_of(sources), folded_rows.const_data_ptr<C>(), {}, eps, gain, pointers<O>(mixed),
                            maximum.mutable_data_ptr<C>(), total.mutable_data_ptr<C>(), {}, {}, at::get_num_threads());
    };
    if (wide)
      run(C{});
    else
      run(V{});
  });
  return {mixed, maximum, total};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> extend(at::TensorList local, const std::optional<Tensor>& partial_sum,
                                                          const Tensor& folded, at::TensorList part,
                                                          const std::optional<Tensor>& norm, double eps,
                                                          double norm_eps, double gain, at::ScalarType type,
                                                          Reuse reuse) {
  const Tensor values = part[0].contiguous();
  const Shape shape = shape_of(values, local.size(), 1);
  const Tensor folded_rows = folded.contiguous();
  const Tensor weight = norm ? norm->contiguous() : Tensor();
  const auto narrow_options = folded.options().dtype(type);
  std::vector<Tensor> mixed{reuse == Reuse::kOperands ? values : at::empty(values.sizes(), folded.options())};
  Tensor maximum = at::empty({1, shape.tokens}, folded.options());
  Tensor total = at::empty({1, shape.tokens}, folded.options());
  Tensor normed = at::empty(norm ? values.sizes() : at::IntArrayRef{0}, narrow_options);
  Tensor source = at::empty(partial_sum ? values.sizes() : at::IntArrayRef{0}, narrow_options);
  if (shape.tokens == 0) return {mixed[0], maximum, total, normed, source};
  Rows sum;
  if (partial_sum) sum = rows_of(*partial_sum);
  with_types(type, [&](auto v, auto c) {
    using V = decltype(v);
    using C = decltype(c);
    const kernels::Part<C> carried{values.const_data_ptr<C>(), part[1].const_data_ptr<C>(), part[2].const_data_ptr<C>()};
    kernels::Norm<V, C> to_apply;
    if (norm) to_apply = {weight.const_data_ptr<C>(), norm_eps, static_cast<V*>(normed.mutable_data_ptr())};
    kernels::Addition<V> addition;
    if (partial_sum) addition = {&sum, static_cast<V*>(source.mutable_data_ptr())};
    kernels::mix<V, C, C>(shape, rows_of(local), folded_rows.const_data_ptr<C>(), carried, eps, gain,
                          pointers<C>(mixed), maximum.mutable_data_ptr<C>(), total.mutable_data_ptr<C>(), to_apply,
                          addition, at::get_num_threads());
  });
  return {mixed[0], maximum, total, normed, source};
}

std::tuple<std::vector<Tensor>, Tensor, std::vector<Tensor>> mix_backward(
    at::TensorList sources, at::TensorList running, const Tensor& folded, at::TensorList grads, at::TensorList maxima,
    at::TensorList totals, at::TensorList deltas, at::TensorList mixtures, at::TensorList shares,
    at::ArrayRef<double> gains, double eps, bool elsewhere, Reuse reuse) {
  const Shape shape = shape_of(sources[0], sources.size(), folded.size(0));
  const Tensor folded_rows = folded.contiguous();
  std::vector<Tensor> results, made;
  for (size_t i = 0; i < sources.size(); ++i) {
    const bool in_place = reuse == Reuse::kOperands && !running.empty() && is_ours_alone(running[i], sources[i]);
    results.push_back(in_place ? running[i] : at::empty(sources[i].sizes(), sources[i].options()));
  }
  for (const Tensor& mixture : mixtures)
    if (mixture.defined()) made.push_back(at::empty({shape.tokens}, folded.options()));
  Tensor grad_folded = at::empty(folded.sizes(), folded.options());
  if (shape.tokens == 0) return {results, grad_folded.zero_(), made};
  std::vector<Rows> running_rows(sources.size(), Rows{nullptr, 0, 0, {}});
  for (size_t i = 0; i < running.size(); ++i)
    if (running[i].defined()) running_rows[i] = rows_of(running[i]);
  std::vector<Tensor> mixture_rows;
  for (const Tensor& mixture : mixtures)
    mixture_rows.push_back(mixture.defined() ? mixture.to(folded.scalar_type()).contiguous() : mixture);
  with_types(sources[0].scalar_type(), [&](auto v, auto c) {
    using V = decltype(v);
    using C = decltype(c);
    std::vector<ReadGradient<C>> reads;
    size_t unknown = 0;
    for (int64_t r = 0; r < shape.queries; ++r) {
      const bool known = !deltas.empty() && deltas[r].defined();
      reads.push_back({rows_of(grads[r]), maxima[r].const_data_ptr<C>(), totals[r].const_data_ptr<C>(),
                       known ? deltas[r].const_data_ptr<C>() : nullptr, gains[r], elsewhere});
      if (mixture_rows.empty() || !mixture_rows[r].defined()) continue;
      reads.back().mixture = mixture_rows[r].const_data_ptr<C>();
      reads.back().share = shares.empty() ? nullptr : shares[r].const_data_ptr<C>();
      reads.back().made = made[unknown++].mutable_data_ptr<C>();
    }
    const auto run = [&](auto g) {
      kernels::mix_backward<V, C, decltype(g)>(shape, rows_of(sources), running_rows, folded_rows.const_data_ptr<C>(),
                                               reads, eps, pointers<V>(results), grad_folded.mutable_data_ptr<C>(),
                                               at::get_num_threads());
    };
    if (grads[0].scalar_type() == sources[0].scalar_type())
      run(V{});
    else
      run(C{});
  });
  return {results, grad_folded, made};
}

std::tuple<Tensor, Tensor, Tensor> norm_backward(const Tensor& grad, const Tensor& mixed, const Tensor& weight,
                                                 double eps) {
  const int64_t width = grad.size(-1), tokens = grad.numel() / width;
  const Tensor weight_row = weight.contiguous();
  Tensor grad_mixed = at::empty(grad.sizes(), grad.options());
  Tensor products = at::empty({tokens}, mixed.options());
  Tensor grad_weight = at::empty({width}, mixed.options());
  if (tokens == 0) return {grad_mixed, products, grad_weight.zero_()};
  with_types(grad.scalar_type(), [&](auto v, auto c) {
    using V = decltype(v);
    using C = decltype(c);
    kernels::norm_backward<V, C>(tokens, width, rows_of(grad), rows_of(mixed), weight_row.const_data_ptr<C>(), eps,
                                 static_cast<V*>(grad_mixed.mutable_data_ptr()), products.mutable_data_ptr<C>(),
                                 grad_weight.mutable_data_ptr<C>(), at::get_num_threads());
  });
  return {grad_mixed, products, grad_weight};
}

Tensor row_products(const Tensor& grad, const Tensor& mixed) {
  const int64_t width = grad.size(-1), tokens = grad.numel() / width;
  Tensor out = at::empty({tokens}, mixed.options());
  if (tokens == 0) return out;
  with_types(grad.scalar_type(), [&](auto v, auto c) {
    using V = decltype(v);
    using C = decltype(c);
    kernels::row_products<V, C, C>(tokens, width, rows_of(grad), rows_of(mixed), out.mutable_data_ptr<C>(),
                                               at::get_num_threads());
  });
  return out;
}

namespace {

std::vector<Tensor> undefined_for_none(const c10::List<std::optional<Tensor>>& list) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < list.size(); ++i) tensors.push_back(list.get(i).value_or(Tensor()));
  return tensors;
}

std::tuple<std::vector<Tensor>, Tensor, std::vector<Tensor>> mix_backward_boxed(
    at::TensorList sources, const c10::List<std::optional<Tensor>>& running, const Tensor& folded, at::TensorList grads,
    at::TensorList maxima, at::TensorList totals, const c10::List<std::optional<Tensor>>& deltas,
    const c10::List<std::optional<Tensor>>& mixtures, const c10::List<std::optional<Tensor>>& shares,
    const c10::List<std::optional<Tensor>>& carried, at::ArrayRef<double> gains, double eps, bool elsewhere) {
  auto [results, grad_folded, made] =
      mix_backward(sources, undefined_for_none(running), folded, grads, maxima, totals, undefined_for_none(deltas),
                   undefined_for_none(mixtures), undefined_for_none(shares), gains, eps, elsewhere, Reuse::kNothing);
  for (size_t r = 0; r < carried.size(); ++r)
    if (const std::optional<Tensor> earlier = carried.get(r)) grad_folded[r].add_(earlier->sum(0));
  return {results, grad_folded.unsqueeze(0), made};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> extend_boxed(at::TensorList local,
                                                                const std::optional<Tensor>& partial_sum,
                                                                const Tensor& folded, at::TensorList part,
                                                                const std::optional<Tensor>& norm, double eps,
                                                                double norm_eps, double gain, at::ScalarType type) {
  auto results = extend(local, partial_sum, folded, part, norm, eps, norm_eps, gain, type, Reuse::kNothing);
  if (local.empty() && gain == 1) std::get<0>(results) = at::empty({0}, part[0].options());
  return results;
}

std::tuple<Tensor, Tensor> advance(const Tensor& output, const Tensor& partial_sum, const Tensor& folded, int64_t r,
                                   const Tensor& values, const Tensor& maxima, const Tensor& totals,
                                   const Tensor& norm, double eps, double norm_eps, double gain) {
  const Shape shape = shape_of(values, 1, 1);
  const Tensor part = values.contiguous(), folded_rows = folded.contiguous(), weight = norm.contiguous();
  Tensor normed = at::empty(values.sizes(), output.options()), source = at::empty(values.sizes(), output.options());
  if (shape.tokens == 0) return {normed, source};
  Tensor mixed = at::empty(values.sizes(), values.options());
  Tensor statistics = at::empty({2, shape.tokens}, values.options());
  const Rows sum = rows_of(partial_sum);
  with_types(output.scalar_type(), [&](auto v, auto c) {
    using V = decltype(v);
    using C = decltype(c);
    const kernels::Part<C> carried{part.const_data_ptr<C>(), maxima.const_data_ptr<C>() + r * shape.tokens,
                                   totals.const_data_ptr<C>() + r * shape.tokens};
    const kernels::Norm<V, C> to_apply{weight.const_data_ptr<C>(), norm_eps,
                                       static_cast<V*>(normed.mutable_data_ptr())};
    C* numbers = statistics.mutable_data_ptr<C>();
    kernels::mix<V, C, C>(shape, {rows_of(output)}, folded_rows.const_data_ptr<C>() + r * shape.width, carried, eps, gain,
                          {mixed.mutable_data_ptr<C>()}, numbers, numbers + shape.tokens, to_apply,
                          {&sum, static_cast<V*>(source.mutable_data_ptr())}, at::get_num_threads());
  });
  return {normed, source};
}

template <class C>
Tensor fold_rows_as(at::TensorList queries, at::TensorList key_weights, at::ScalarType type) {
  Tensor folded = at::empty({int64_t(queries.size()), queries[0].numel()}, queries[0].options().dtype(type));
  const int64_t width = folded.size(1);
  C* out = folded.mutable_data_ptr<C>();
  const auto converted = [type](const Tensor& vector, Tensor& copy) {
    if (vector.scalar_type() == type && vector.is_contiguous()) return vector.const_data_ptr<C>();
    copy = vector.to(type).contiguous();
    return copy.const_data_ptr<C>();
  };
  for (size_t r = 0; r < queries.size(); ++r) {
    Tensor query_copy, weight_copy;
    const C *query = converted(queries[r], query_copy), *weight = converted(key_weights[r], weight_copy);
    for (int64_t d = 0; d < width; ++d) *out++ = query[d] * weight[d];
  }
  return folded;
}

Tensor fold_rows(at::TensorList queries, at::TensorList key_weights, at::ScalarType type) {
  return type == at::kDouble ? fold_rows_as<double>(queries, key_weights, type)
                             : fold_rows_as<float>(queries, key_weights, type);
}

}  // namespace

TORCH_LIBRARY_IMPL(attention_residuals, CPU, m) {
  m.impl("mix", TORCH_FN(mix));
  m.impl("extend", TORCH_FN(extend_boxed));
  m.impl("advance", TORCH_FN(advance));
  m.impl("mix_backward", TORCH_FN(mix_backward_boxed));
  m.impl("norm_backward", TORCH_FN(norm_backward));
  m.impl("fold_rows", TORCH_FN(fold_rows));
  m.impl("row_products", TORCH_FN(row_products));
}

}  // namespace attention_residuals
