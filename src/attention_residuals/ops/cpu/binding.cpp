// The CPU kernels of torch.ops.attention_residuals: what they do is in kernels.h, the schemas in ops/operators.py.

#include <ATen/Parallel.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "kernels.h"
#include "operators.h"
#include "types.h"

namespace attention_residuals {
namespace {

using at::Tensor;
using kernels::Part;
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

std::tuple<std::vector<Tensor>, Tensor, Tensor> mix(at::TensorList sources, const Tensor& folded, at::TensorList part,
                                                    double eps, double gain, bool wide) {
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
  const std::vector<Rows> rows = rows_of(sources);
  with_types(type, [&](auto v, auto c) {
    using V = decltype(v);
    using C = decltype(c);
    Part<C> carried;
    if (!part.empty()) carried = {part[0].const_data_ptr<C>(), part[1].const_data_ptr<C>(), part[2].const_data_ptr<C>()};
    const auto run = [&](auto o) {
      using O = decltype(o);
      kernels::mix<V, C, O>(shape, rows, folded_rows.const_data_ptr<C>(), carried, eps, gain,
                                        pointers<O>(mixed), maximum.mutable_data_ptr<C>(), total.mutable_data_ptr<C>(),
                                        at::get_num_threads());
    };
    if (wide)
      run(C{});
    else
      run(V{});
  });
  return {mixed, maximum, total};
}

std::tuple<std::vector<Tensor>, Tensor> mix_backward(at::TensorList sources,
                                                     at::TensorList running,
                                                     const Tensor& folded, at::TensorList grads, at::TensorList maxima,
                                                     at::TensorList totals, at::TensorList deltas,
                                                     at::ArrayRef<double> gains, double eps) {
  const Shape shape = shape_of(sources[0], sources.size(), folded.size(0));
  const Tensor folded_rows = folded.contiguous();
  std::vector<Tensor> results;
  for (const Tensor& source : sources) results.push_back(at::empty(source.sizes(), source.options()));
  Tensor grad_folded = at::empty(folded.sizes(), folded.options());
  if (shape.tokens == 0) return {results, grad_folded.zero_()};
  std::vector<Rows> running_rows(sources.size(), Rows{nullptr, 0, 0, {}});
  for (size_t i = 0; i < running.size(); ++i)
    if (running[i].defined()) running_rows[i] = rows_of(running[i]);
  with_types(sources[0].scalar_type(), [&](auto v, auto c) {
    using V = decltype(v);
    using C = decltype(c);
    std::vector<ReadGradient<C>> reads;
    for (int64_t r = 0; r < shape.queries; ++r)
      reads.push_back({rows_of(grads[r]), maxima[r].const_data_ptr<C>(), totals[r].const_data_ptr<C>(),
                       deltas.empty() ? nullptr : deltas[r].const_data_ptr<C>(), gains[r]});
    kernels::mix_backward<V, C>(shape, rows_of(sources), running_rows, folded_rows.const_data_ptr<C>(),
                                            reads, eps, pointers<V>(results), grad_folded.mutable_data_ptr<C>(),
                                            at::get_num_threads());
  });
  return {results, grad_folded};
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

std::tuple<std::vector<Tensor>, Tensor> mix_backward_boxed(
    at::TensorList sources, const c10::List<std::optional<Tensor>>& running, const Tensor& folded, at::TensorList grads,
    at::TensorList maxima, at::TensorList totals, at::TensorList deltas, at::ArrayRef<double> gains, double eps) {
  std::vector<Tensor> added;
  for (size_t i = 0; i < running.size(); ++i) added.push_back(running.get(i).value_or(Tensor()));
  return mix_backward(sources, added, folded, grads, maxima, totals, deltas, gains, eps);
}

}  // namespace

TORCH_LIBRARY_IMPL(attention_residuals, CPU, m) {
  m.impl("mix", TORCH_FN(mix));
  m.impl("mix_backward", TORCH_FN(mix_backward_boxed));
  m.impl("row_products", TORCH_FN(row_products));
}

}  // namespace attention_residuals
