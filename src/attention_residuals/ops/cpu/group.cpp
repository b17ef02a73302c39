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

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LeftRead {
  std::vector<int64_t> slots;
  Tensor grad, maximum, total, delta;
  double gain;
};

// The first `count` tensors to themselves; see ops/once.py.
struct Once : torch::autograd::Function<Once> {
  static variable_list forward(AutogradContext*, int64_t count, at::TensorList tensors) {
    variable_list results;
    for (const Tensor& tensor : tensors.slice(0, count)) results.push_back(tensor.clone());
    return results;
  }

  static variable_list backward(AutogradContext*, variable_list) {
    TORCH_CHECK(false, "a read is differentiable once; a second derivative through it is not implemented");
  }
};

// `results` of a backward, an error to differentiate: where a graph is made, they depend on all of `inputs`.
variable_list once_differentiable(variable_list results, const variable_list& inputs) {
  if (!at::GradMode::is_enabled()) return results;
  const int64_t count = static_cast<int64_t>(results.size());
  for (const Tensor& input : inputs)
    if (input.defined()) results.push_back(input);
  return Once::apply(count, at::TensorList(results));
}

class Exchange : public torch::CustomClassHolder {
 public:
  Exchange(const Tensor& folded, at::ScalarType type, double eps) : folded(folded), type(type), eps(eps) {}

  const Tensor folded;
  const at::ScalarType type;
  const double eps;

  std::vector<Tensor> take(int64_t r, at::TensorList sources) {
    if (!parts_.count(r)) {
      at::NoGradGuard guard;
      auto [values, maxima, totals] = mix(sources, folded, eps, 1.0, true);
      for (int64_t n = 0; n < folded.size(0); ++n) parts_[n] = {values[n], maxima[n], totals[n]};
    }
    return std::move(parts_.extract(r).mapped());
  }

  void leave(int64_t r, LeftRead read) { reads_of_this_pass().emplace(r, std::move(read)); }

  Tensor pull(int64_t slot, const Tensor& source, const Tensor& running) {
    Chosen reads;
    for (const auto& entry : reads_of_this_pass()) {
      const std::vector<int64_t>& slots = entry.second.slots;
      if (std::find(slots.begin(), slots.end(), slot) != slots.end()) reads.push_back(&entry);
    }
    return gradients({source}, {running}, reads)[0];
  }

  std::pair<std::vector<Tensor>, Tensor> close(at::TensorList sources, at::TensorList running) {
    Chosen reads;
    for (const auto& entry : reads_of_this_pass()) reads.push_back(&entry);
    std::vector<Tensor> grads = gradients(sources, running, reads);
    Tensor grad_folded = grad_folded_.defined() ? grad_folded_ : at::zeros_like(folded);
    parts_.clear();
    reads_.clear();
    grad_folded_ = Tensor();
    return {grads, grad_folded};
  }

 private:
  using Reads = std::multimap<int64_t, LeftRead>;  // a query may have been read with more than once
  using Chosen = std::vector<const Reads::value_type*>;

  std::map<int64_t, std::vector<Tensor>> parts_;
  int pass_ = -1;
  Reads reads_;
  Tensor grad_folded_;

  Reads& reads_of_this_pass() {
    const int current = torch::autograd::get_current_graph_task_id();
    if (current != pass_) {
      pass_ = current;
      reads_.clear();
      grad_folded_ = Tensor();
    }
    return reads_;
  }

  std::vector<Tensor> gradients(at::TensorList sources, at::TensorList running, const Chosen& reads) {
    if (reads.empty()) return running.vec();
    std::vector<Tensor> rows, grads, maxima, totals, deltas;
    std::vector<double> gains;
    for (const auto* entry : reads) {
      const LeftRead& read = entry->second;
      rows.push_back(folded.detach()[entry->first]);
      grads.push_back(read.grad);
      maxima.push_back(read.maximum);
      totals.push_back(read.total);
      deltas.push_back(read.delta);
      gains.push_back(read.gain);
    }
    const Tensor queries = rows.size() == 1 ? rows[0].unsqueeze(0) : at::stack(rows);
    auto [results, grad] = mix_backward(sources, running, queries, grads, maxima, totals, deltas, gains, eps,
                                        at::GradMode::is_enabled() ? Reuse::kNothing : Reuse::kOperands);
    results.push_back(grad);
    variable_list inputs = sources.vec();
    inputs.insert(inputs.end(), running.begin(), running.end());
    inputs.insert(inputs.end(), grads.begin(), grads.end());
    inputs.push_back(folded);
    results = once_differentiable(std::move(results), inputs);
    grad = std::move(results.back());
    results.pop_back();
    if (!grad_folded_.defined()) grad_folded_ = at::zeros_like(folded);
    for (size_t n = 0; n < reads.size(); ++n) grad_folded_[reads[n]->first].add_(grad[n]);
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
    auto [grads, grad_folded] = kept(ctx)->close(ctx->get_saved_variables(), running);
    variable_list results{Tensor(), grad_folded};
    results.insert(results.end(), grads.begin(), grads.end());
    return results;
  }
};

struct Publish : torch::autograd::Function<Publish> {
  static Tensor forward(AutogradContext* ctx, const ExchangePointer& exchange, int64_t slot, const Tensor& link,
                        const Tensor& output, const std::optional<Tensor>& partial_sum) {
    keep(ctx, exchange);
    ctx->saved_data["slot"] = slot;
    ctx->saved_data["is_sum"] = partial_sum.has_value();
    Tensor source = partial_sum ? *partial_sum + output : output;
    // Detached: a checkpoint that stops early throws out of the saving, and a saved output would then hold this node.
    ctx->save_for_backward({source.detach()});
    return source;
  }

  static variable_list backward(AutogradContext* ctx, variable_list running) {
    const Tensor source = ctx->get_saved_variables()[0];
    const Tensor grad = kept(ctx)->pull(ctx->saved_data["slot"].toInt(), source, running[0]);
    return {Tensor(), Tensor(), Tensor(), grad, ctx->saved_data["is_sum"].toBool() ? grad : Tensor()};
  }
};

struct Read : torch::autograd::Function<Read> {
  static Tensor forward(AutogradContext* ctx, const ExchangePointer& exchange, int64_t r,
                        const std::vector<Tensor>& part, const std::vector<int64_t>& slots, double gain,
                        double norm_eps, const Tensor& link, const std::optional<Tensor>& norm, at::TensorList local) {
    keep(ctx, exchange);
    ctx->saved_data["r"] = r;
    ctx->saved_data["slots"] = slots;
    ctx->saved_data["gain"] = gain;
    ctx->saved_data["norm_eps"] = norm_eps;
    auto [mixed, maximum, total, normed] = extend(local, exchange->folded.narrow(0, r, 1), part, norm, exchange->eps,
                                                  norm_eps, gain, exchange->type, Reuse::kOperands);
    // Detached as above.
    variable_list saved{mixed.detach(), maximum, total, norm.value_or(Tensor()), link};
    saved.insert(saved.end(), local.begin(), local.end());
    ctx->save_for_backward(saved);
    return norm ? normed : mixed.to(exchange->type);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Tensor grad = grads[0], grad_norm;
    if (grad.defined()) {
      const variable_list saved = ctx->get_saved_variables();
      const Tensor &mixed = saved[0], &norm = saved[3];
      const double gain = ctx->saved_data["gain"].toDouble();
      Tensor delta;
      // What this read tells each of its sources depends on all of them, and on its query.
      variable_list inputs{grad, saved[4]};
      inputs.insert(inputs.end(), saved.begin() + 5, saved.end());
      if (norm.defined()) {
        std::tie(grad, delta, grad_norm) = norm_backward(grad, mixed, norm, ctx->saved_data["norm_eps"].toDouble());
        inputs.push_back(norm);
        const variable_list results = once_differentiable({grad, grad_norm}, inputs);
        grad = results[0];
        grad_norm = results[1];
      } else {
        delta = row_products(grad, mixed);
        grad = once_differentiable({grad}, inputs)[0];
      }
      if (gain != 1.0) delta.div_(gain);
      kept(ctx)->leave(ctx->saved_data["r"].toInt(),
                       {ctx->saved_data["slots"].toIntVector(), grad, saved[1], saved[2], delta, gain});
    }
    variable_list results(8 + ctx->saved_data["slots"].toIntVector().size());
    results[7] = grad_norm;
    return results;
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

  Tensor read(int64_t r, const std::vector<int64_t>& slots, const std::vector<Tensor>& local, double gain,
              const std::optional<Tensor>& norm, double norm_eps) const {
    return Read::apply(exchange_, r, exchange_->take(r, common_), slots, gain, norm_eps, link_, norm,
                       at::TensorList(local));
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
