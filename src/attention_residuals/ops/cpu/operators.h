// The operators of ops/operators.py for CPU tensors; see there. An undefined tensor in a list is None.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <vector>

namespace attention_residuals {

using at::Tensor;

// Whether results may lie where operands lay: the mixture in that of the part, a gradient in the running one, if
// that is nobody else's.
enum class Reuse { kNothing, kOperands };

std::tuple<std::vector<Tensor>, Tensor, Tensor> mix(at::TensorList sources, const Tensor& folded, double eps,
                                                    double gain, bool wide);

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> extend(at::TensorList local, const std::optional<Tensor>& partial_sum,
                                                          const Tensor& folded, at::TensorList part,
                                                          const std::optional<Tensor>& norm, double eps,
                                                          double norm_eps, double gain, at::ScalarType type,
                                                          Reuse reuse);

std::tuple<std::vector<Tensor>, Tensor, std::vector<Tensor>> mix_backward(
    at::TensorList sources, at::TensorList running, const Tensor& folded, at::TensorList grads, at::TensorList maxima,
    at::TensorList totals, at::TensorList deltas, at::TensorList mixtures, at::TensorList shares,
    at::ArrayRef<double> gains, double eps, bool elsewhere, Reuse reuse);

std::tuple<Tensor, Tensor, Tensor> norm_backward(const Tensor& grad, const Tensor& mixed, const Tensor& weight,
                                                 double eps);

Tensor row_products(const Tensor& grad, const Tensor& mixed);

}  // namespace attention_residuals
