// `EagerGroup` of ops/group.py without Python between the kernels: the same nodes, line by line; explained there.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "operators.h"

namespace attention_residuals {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LeftRead {
  std::vector<int64_t> slots;
  Tensor grad, maximum, total, delta;
  double gain;
};

class Exchange : public torch::CustomClassHolder {
 public:
  Exchange(const Tensor& folded, at::ScalarType type, double eps) : folded(folded.detach()), type(type), eps(eps) {}

  const Tensor folded;
  const at::ScalarType type;
  const double eps;

  std::vector<Tensor> take(int64_t r, at::TensorList sources) {
    if (!parts_.count(r)) {
      at::NoGradGuard guard;
      auto [values, maxima, totals] = mix(sources, folded, {}, eps, 1.0, true);
      for (int64_t n = 0; n < folded.size(0); ++n) parts_[n] = {values[n], maxima[n], totals[n]};
    }
    return std::move(parts_.extract(r).mapped());
  }

  void leave(int64_t r, LeftRead read) { reads_of_this_pass()[r] = std::move(read); }

  Tensor pull(int64_t slot, const Tensor& source, const Tensor& running) {
    std::vector<int64_t> numbers;
    for (const auto& [r, read] : reads_of_this_pass())
      if (std::find(read.slots.begin(), read.slots.end(), slot) != read.slots.end()) numbers.push_back(r);
    return gradients({source}, {running}, numbers)[0];
  }

  std::pair<std::vector<Tensor>, Tensor> close(at::TensorList sources, at::TensorList running) {
    std::vector<int64_t> numbers;
    for (const auto& [r, read] : reads_of_this_pass()) numbers.push_back(r);
    std::vector<Tensor> grads = gradients(sources, running, numbers);
    Tensor grad_folded = grad_folded_.defined() ? grad_folded_ : at::zeros_like(folded);
    parts_.clear();
    reads_.clear();
    grad_folded_ = Tensor();
    return {grads, grad_folded};
  }

 private:
  std::map<int64_t, std::vector<Tensor>> parts_;
  int pass_ = -1;
  std::map<int64_t, LeftRead> reads_;
  Tensor grad_folded_;

  std::map<int64_t, LeftRead>& reads_of_this_pass() {
    const int current = torch::autograd::get_current_graph_task_id();
    if (current != pass_) {
      pass_ = current;
      reads_.clear();
      grad_folded_ = Tensor();
    }
    return reads_;
  }

  std::vector<Tensor> gradients(at::TensorList sources, at::TensorList running, const std::vector<int64_t>& numbers) {
    if (numbers.empty()) return running.vec();
    std::vector<Tensor> rows, grads, maxima, totals, deltas;
    std::vector<double> gains;
    for (const int64_t r : numbers) {
      const LeftRead& read = reads_.at(r);
      rows.push_back(folded[r]);
      grads.push_back(read.grad);
      maxima.push_back(read.maximum);
      totals.push_back(read.total);
      deltas.push_back(read.delta);
      gains.push_back(read.gain);
    }
    const Tensor queries = rows.size() == 1 ? rows[0].unsqueeze(0) : at::stack(rows);
    auto [results, grad] = mix_backward(sources, running, queries, grads, maxima, totals, deltas, gains, eps);
    if (!grad_folded_.defined()) grad_folded_ = at::zeros_like(folded);
    for (size_t n = 0; n < numbers.size(); ++n) grad_folded_[numbers[n]].add_(grad[n]);
    return results;
  }
};

using ExchangePointer = c10::intrusive_ptr<Exchange>;

void keep(AutogradContext* ctx, const ExchangePointer& exchange) {
  ctx->set_materialize_grads(false);
  ctx->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
}

ExchangePointer kept(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Exchange>(ctx->saved_data["exchange"].toCapsule());
}

// What a backward of ours returns, made to refuse a second derivative where one is prepared for.
variable_list once_differentiable(variable_list grads) {
  if (!at::GradMode::is_enabled()) return grads;
  variable_list inputs;
  for (const Tensor& grad : grads)
    if (grad.defined()) inputs.push_back(grad.detach().set_requires_grad(true));
  const int64_t count = static_cast<int64_t>(inputs.size());
  if (count == 0) return grads;
  auto error = std::make_shared<torch::autograd::DelayedError>(
      "a read is differentiable once; a second derivative through it is not implemented", count);
  variable_list outputs = (*error)(std::move(inputs));
  size_t next = 0;
  for (Tensor& grad : grads)
    if (grad.defined()) grad = outputs[next++];
  return grads;
}

struct Open : torch::autograd::Function<Open> {
  static variable_list forward(AutogradContext* ctx, const ExchangePointer& exchange, const Tensor& folded,
                               at::TensorList sources) {
    keep(ctx, exchange);
    ctx->save_for_backward(sources.vec());
    variable_list results{at::empty({0}, folded.options())};
    results.insert(results.end(), sources.begin(), sources.end());
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list running) {
    running.erase(running.begin());
    variable_list results(2);
    {
      at::NoGradGuard guard;
      auto [grads, grad_folded] = kept(ctx)->close(ctx->get_saved_variables(), running);
      results[1] = grad_folded;
      results.insert(results.end(), grads.begin(), grads.end());
    }
    return once_differentiable(std::move(results));
  }
};

struct Publish : torch::autograd::Function<Publish> {
  static Tensor forward(AutogradContext* ctx, const ExchangePointer& exchange, int64_t slot, const Tensor& link,
                        const Tensor& output, const std::optional<Tensor>& partial_sum) {
    keep(ctx, exchange);
    ctx->saved_data["slot"] = slot;
    ctx->saved_data["is_sum"] = partial_sum.has_value();
    Tensor source = partial_sum ? *partial_sum + output : output;
    ctx->save_for_backward({source});
    return source;
  }

  static variable_list backward(AutogradContext* ctx, variable_list running) {
    Tensor grad;
    {
      at::NoGradGuard guard;
      grad = kept(ctx)->pull(ctx->saved_data["slot"].toInt(), ctx->get_saved_variables()[0], running[0]);
    }
    return once_differentiable({Tensor(), Tensor(), Tensor(), grad, ctx->saved_data["is_sum"].toBool() ? grad : Tensor()});
  }
};

struct Read : torch::autograd::Function<Read> {
  static Tensor forward(AutogradContext* ctx, const ExchangePointer& exchange, int64_t r,
                        const std::vector<Tensor>& part, const std::vector<int64_t>& slots, double gain,
                        const Tensor& link, at::TensorList local) {
    keep(ctx, exchange);
    ctx->saved_data["r"] = r;
    ctx->saved_data["slots"] = slots;
    ctx->saved_data["gain"] = gain;
    Tensor mixed = part[0], maximum = part[1], total = part[2];
    if (!local.empty()) {
      auto [row, row_maximum, row_total] = mix(local, exchange->folded.narrow(0, r, 1), part, exchange->eps, gain, true);
      mixed = row[0];
      maximum = row_maximum;
      total = row_total;
    } else if (gain != 1.0) {
      mixed = mixed * gain;
    }
    ctx->save_for_backward({mixed, maximum, total});
    return mixed.to(exchange->type);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor& grad = grads[0];
    if (grad.defined()) {
      at::NoGradGuard guard;
      const variable_list saved = ctx->get_saved_variables();
      const double gain = ctx->saved_data["gain"].toDouble();
      Tensor delta = row_products(grad, saved[0]);
      if (gain != 1.0) delta.div_(gain);
      kept(ctx)->leave(ctx->saved_data["r"].toInt(),
                       {ctx->saved_data["slots"].toIntVector(), grad, saved[1], saved[2], delta, gain});
    }
    return variable_list(6 + ctx->saved_data["slots"].toIntVector().size());
  }
};

class Group : public torch::CustomClassHolder {
 public:
  Group(const std::vector<Tensor>& sources, const Tensor& folded, double eps)
      : exchange_(c10::make_intrusive<Exchange>(folded, sources[0].scalar_type(), eps)) {
    common_ = Open::apply(exchange_, folded, at::TensorList(sources));
    link_ = common_[0];
    common_.erase(common_.begin());
  }

  std::vector<Tensor> common() const { return common_; }

  Tensor publish(int64_t slot, const Tensor& output, const std::optional<Tensor>& partial_sum) const {
    return Publish::apply(exchange_, slot, link_, output, partial_sum);
  }

  Tensor read(int64_t r, const std::vector<int64_t>& slots, const std::vector<Tensor>& local, double gain) const {
    return Read::apply(exchange_, r, exchange_->take(r, common_), slots, gain, link_, at::TensorList(local));
  }

 private:
  ExchangePointer exchange_;
  Tensor link_;
  std::vector<Tensor> common_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(attention_residuals, m) {
  m.class_<Group>("Group")
      .def(torch::init<const std::vector<Tensor>&, const Tensor&, double>())
      .def("common", &Group::common)
      .def("publish", &Group::publish)
      .def("read", &Group::read);
}

}  // namespace attention_residuals
