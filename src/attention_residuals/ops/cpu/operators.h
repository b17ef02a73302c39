// The operators of ops/operators.py for CPU tensors; see there. An undefined tensor in `running` is no gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

namespace attention_residuals {

std::tuple<std::vector<at::Tensor>, at::Tensor, at::Tensor> mix(at::TensorList sources, const at::Tensor& folded,
                                                                at::TensorList part, double eps, double gain,
                                                                bool wide);

std::tuple<std::vector<at::Tensor>, at::Tensor> mix_backward(at::TensorList sources, at::TensorList running,
                                                             const at::Tensor& folded, at::TensorList grads,
                                                             at::TensorList maxima, at::TensorList totals,
                                                             at::TensorList deltas, at::ArrayRef<double> gains,
                                                             double eps);

at::Tensor row_products(const at::Tensor& grad, const at::Tensor& mixed);

}  // namespace attention_residuals
