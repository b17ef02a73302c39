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
  Tensor grad, maximum, total;
  double gain;
  Tensor delta, mixture;  // one of both, or with common sources alone neither
  Tensor sums;            // what the gradients of its sources so far gave its query
};

// The read that follows a published source, r < 0 if that is not known.
struct Ahead {
  int64_t r;
  double gain;
  std::optional<Tensor> norm;
  double norm_eps;
};

using Made = std::vector<Tensor>;  // mixture, maximum, total and normed mixture of a read

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

  Made make(at::TensorList common, at::TensorList local, const Ahead& asked) {
    Made made = extended(local, {}, take(asked.r, common), asked);
    made.pop_back();
    return made;
  }

  Tensor publish(int64_t slot, const Tensor& output, const Tensor& partial_sum, const Ahead& ahead) {
    if (ahead.r < 0 || !parts_.count(ahead.r)) return partial_sum + output;
    Made made = extended({output}, partial_sum, parts_.extract(ahead.r).mapped(), ahead);
    Tensor source = std::move(made.back());
    made.pop_back();
    ahead_[slot] = std::move(made);
    return source;
  }

  Made made(const std::vector<int64_t>& slots, bool announced) {
    if (!announced || !ahead_.count(slots[0])) return {};
    return std::move(ahead_.extract(slots[0]).mapped());
  }

  void leave(int64_t r, LeftRead read) { reads_of_this_pass().emplace(r, std::move(read)); }

  Tensor pull(int64_t slot, const Tensor& source, const Tensor& running) {
    Chosen reads;
    for (auto& entry : reads_of_this_pass()) {
      const std::vector<int64_t>& slots = entry.second.slots;
      if (std::find(slots.begin(), slots.end(), slot) != slots.end()) reads.push_back(&entry);
    }
    return gradients({source}, {running}, reads)[0];
  }

  std::pair<std::vector<Tensor>, Tensor> close(at::TensorList sources, at::TensorList running) {
    Chosen reads;
    for (auto& entry : reads_of_this_pass()) reads.push_back(&entry);
    std::vector<Tensor> grads = gradients(sources, running, reads);
    Tensor grad_folded = at::zeros_like(folded);
    for (const auto* entry : reads) grad_folded[entry->first].add_(entry->second.sums);
    parts_.clear();
    ahead_.clear();
    reads_.clear();
    return {grads, grad_folded};
  }

 private:
  using Reads = std::multimap<int64_t, LeftRead>;  // a query may have been read with more than once
  using Chosen = std::vector<Reads::value_type*>;

  std::map<int64_t, std::vector<Tensor>> parts_;
  std::map<int64_t, Made> ahead_;
  int pass_ = -1;
  Reads reads_;

  Made extended(at::TensorList local, const std::optional<Tensor>& partial_sum, const std::vector<Tensor>& part,
                const Ahead& asked) {
    at::NoGradGuard guard;
    auto [mixture, maximum, total, normed, source] =
        extend(local, partial_sum, folded.narrow(0, asked.r, 1), part, asked.norm, eps, asked.norm_eps, asked.gain, type,
               Reuse::kOperands);
    return {mixture, maximum, total, normed, source};
  }

  Reads& reads_of_this_pass() {
    const int current = torch::autograd::get_current_graph_task_id();
    if (current != pass_) {
      pass_ = current;
      reads_.clear();
    }
    return reads_;
  }

  std::vector<Tensor> gradients(at::TensorList sources, at::TensorList running, const Chosen& reads) {
    if (reads.empty()) return running.vec();
    std::vector<Tensor> rows, grads, maxima, totals, deltas, mixtures;
    std::vector<double> gains;
    for (const auto* entry : reads) {
      const LeftRead& read = entry->second;
      rows.push_back(folded.detach()[entry->first]);
      grads.push_back(read.grad);
      maxima.push_back(read.maximum);
      totals.push_back(read.total);
      deltas.push_back(read.delta);
      mixtures.push_back(read.mixture);
      gains.push_back(read.gain);
    }
    const Tensor queries = rows.size() == 1 ? rows[0].unsqueeze(0) : at::stack(rows);
    auto [results, sums, made] =
        mix_backward(sources, running, queries, grads, maxima, totals, deltas, mixtures, {}, gains, eps, false,
                     at::GradMode::is_enabled() ? Reuse::kNothing : Reuse::kOperands);
    variable_list inputs = sources.vec();
    inputs.insert(inputs.end(), running.begin(), running.end());
    inputs.insert(inputs.end(), grads.begin(), grads.end());
    inputs.push_back(folded);
    size_t unknown = 0, n = 0;
    for (auto* entry : reads) {
      LeftRead& read = entry->second;
      if (read.mixture.defined()) {
        read.delta = made[unknown++];
        read.mixture = Tensor();
      }
      if (read.sums.defined()) {
        inputs.push_back(read.sums);
        sums[n].add_(read.sums.detach());
      }
      ++n;
    }
    results.push_back(sums);
    results = once_differentiable(std::move(results), inputs);
    sums = std::move(results.back());
    results.pop_back();
    for (n = 0; n < reads.size(); ++n) reads[n]->second.sums = sums[n];
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
                        const Tensor& output, const std::optional<Tensor>& partial_sum, const Ahead& ahead) {
    keep(ctx, exchange);
    ctx->saved_data["slot"] = slot;
    ctx->saved_data["is_sum"] = partial_sum.has_value();
    Tensor source = partial_sum ? exchange->publish(slot, output, *partial_sum, ahead) : output;
    // Detached: a checkpoint that stops early throws out of the saving, and a saved output would then hold this node.
    ctx->save_for_backward({source.detach()});
    return source;
  }

  static variable_list backward(AutogradContext* ctx, variable_list running) {
    const Tensor source = ctx->get_saved_variables()[0];
    const Tensor grad = kept(ctx)->pull(ctx->saved_data["slot"].toInt(), source, running[0]);
    return {Tensor(), Tensor(), Tensor(), grad, ctx->saved_data["is_sum"].toBool() ? grad : Tensor(), Tensor()};
  }
};

struct Read : torch::autograd::Function<Read> {
  static Tensor forward(AutogradContext* ctx, const ExchangePointer& exchange, const Ahead& asked, const Made& made,
                        const std::vector<int64_t>& slots, const Tensor& link, const std::optional<Tensor>& norm,
                        at::TensorList local) {
    keep(ctx, exchange);
    ctx->saved_data["r"] = asked.r;
    ctx->saved_data["slots"] = slots;
    ctx->saved_data["gain"] = asked.gain;
    ctx->saved_data["norm_eps"] = asked.norm_eps;
    // Detached as above. A read of the common sources alone has its delta from these.
    const bool needs_mixture = !slots.empty() || norm;
    variable_list saved{needs_mixture ? made[0].detach() : Tensor(), made[1], made[2], norm.value_or(Tensor()), link};
    saved.insert(saved.end(), local.begin(), local.end());
    ctx->save_for_backward(saved);
    return norm ? made[3] : made[0].to(exchange->type);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Tensor grad_norm;
    if (grads[0].defined()) {
      const variable_list saved = ctx->get_saved_variables();
      LeftRead read{ctx->saved_data["slots"].toIntVector(), grads[0], saved[1], saved[2],
                    ctx->saved_data["gain"].toDouble(), Tensor(), saved[0]};
      const Tensor& norm = saved[3];
      // What this read tells each of its sources depends on all of them, and on its query.
      variable_list inputs{read.grad};
      inputs.insert(inputs.end(), saved.begin() + 4, saved.end());
      if (norm.defined()) {
        inputs.push_back(norm);
        auto [grad, delta, grad_weight] =
            norm_backward(read.grad, read.mixture, norm, ctx->saved_data["norm_eps"].toDouble());
        const variable_list results = once_differentiable({grad, grad_weight}, inputs);
        read.grad = results[0];
        grad_norm = results[1];
        read.delta = delta.div_(read.gain);
        read.mixture = Tensor();
      } else {
        read.grad = once_differentiable({read.grad}, inputs)[0];
      }
      kept(ctx)->leave(ctx->saved_data["r"].toInt(), std::move(read));
    }
    variable_list results(6 + ctx->saved_data["slots"].toIntVector().size());
    results[5] = grad_norm;
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

  Tensor publish(int64_t slot, const Tensor& output, const std::optional<Tensor>& partial_sum, int64_t r, double gain,
                 const std::optional<Tensor>& norm, double norm_eps) const {
    return Publish::apply(exchange_, slot, link_, output, partial_sum, Ahead{r, gain, norm, norm_eps});
  }

  Tensor read(int64_t r, const std::vector<int64_t>& slots, const std::vector<Tensor>& local, double gain,
              const std::optional<Tensor>& norm, double norm_eps, bool announced) const {
    const Ahead asked{r, gain, norm, norm_eps};
    Made made = exchange_->made(slots, announced);
    if (made.empty()) made = exchange_->make(common_, local, asked);
    return Read::apply(exchange_, asked, made, slots, link_, norm, at::TensorList(local));
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
