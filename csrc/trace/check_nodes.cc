// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/check_nodes.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "csrc/trace/autograd_shortcuts.h"
#include "csrc/trace/make_node.h"

namespace spmd::trace {

namespace {

using autograd::variable_list;

// The differentiable results.
variable_list ResultsOf(const std::vector<at::Tensor>& results) { return results; }
template <typename Result>
variable_list ResultsOf(const Result& result) {
  return {Differentiable(result)};
}

bool SameEdges(const autograd::Node& a, const autograd::Node& b) {
  return std::equal(a.next_edges().begin(), a.next_edges().end(), b.next_edges().begin(),
                    b.next_edges().end(), [](const autograd::Edge& x, const autograd::Edge& y) {
                      return x.function == y.function && x.input_nr == y.input_nr;
                    });
}

bool SameTensors(const variable_list& a, const variable_list& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) {
                      return x.defined() == y.defined() && (!x.defined() || at::equal(x, y));
                    });
}

template <typename Op, typename Schema = typename Op::schema>
struct Check;

template <typename Op, typename Result, typename... Args>
struct Check<Op, Result(Args...)> {
  static bool Agrees(bool is_view, Args... args) {
    static_assert(Derivative<Op>::kKnown);
    // Only views have a kernel for ADInplaceOrView.
    c10::DispatchKeySet keys(c10::DispatchKey::CPU);
    if (is_view) keys = keys.add(c10::DispatchKey::ADInplaceOrView);
    const auto below = [](const auto&... same) -> Result {
      const at::AutoDispatchBelowADInplaceOrView guard;
      return Op::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), same...);
    };
    const auto mine = CallWithNode<Op>(below, args...);
    const Result reference = Op::redispatch(ToPyTorchsKernel(keys), args...);
    const variable_list theirs = ResultsOf(reference);
    const auto their_node = theirs[0].grad_fn();
    if (their_node == nullptr) return false;
    const autograd::Node& my_node = *mine.node;
    if (typeid(my_node) != typeid(*their_node) || !SameEdges(my_node, *their_node) ||
        my_node.num_inputs() != their_node->num_inputs()) {
      return false;
    }
    const c10::AutoGradMode no_grad(false);
    variable_list grads;
    for (const at::Tensor& result : theirs) grads.push_back(result.detach().add(1));
    variable_list same = grads;
    return SameTensors((*mine.node)(std::move(same)), (*their_node)(std::move(grads)));
  }
};

class Checks {
 public:
  Checks();

  bool Differs(const std::string& op) const {
    const auto it = agrees_.find(op);
    return it != agrees_.end() && !it->second;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [op, agrees] : agrees_) names.push_back(op);
    return names;
  }

 private:
  template <typename Op, typename... Args>
  void Compare(Args&&... args) {
    Note<Op>([&](const OpInfo& op) {
      return Check<Op>::Agrees(op.is_view, std::forward<Args>(args)...);
    });
  }
  // For an op whose node the CPU does not make.
  template <typename Op>
  void CompareSchema(std::string_view schema) {
    Note<Op>([&](const OpInfo&) { return schema == Op::schema_str; });
  }
  template <typename Op, typename Agree>
  void Note(Agree&& agree) {
    const std::string overload = Op::overload_name;
    const std::string op = overload.empty() ? Op::name : absl::StrCat(Op::name, ".", overload);
    try {
      agrees_[op] = agree(GetOp(op));
    } catch (const std::exception&) {
      agrees_[op] = false;
    }
  }

  std::map<std::string, bool> agrees_;
};

Checks::Checks() {
  const c10::InferenceMode no_inference(false);
  const c10::AutoGradMode grad_mode(true);
  const auto numbers = [](at::IntArrayRef sizes) {
    int64_t n = 1;
    for (const int64_t size : sizes) n *= size;
    const at::Tensor t = at::arange(1, n + 1, at::kFloat).div(n).view(sizes);
    return t.requires_grad_();
  };
  const at::Tensor x = numbers({2, 4}), y = numbers({2, 4}), row = numbers({4});
  const std::vector<c10::SymInt> flat = {8}, wide = {3, 2, 4}, parts = {1, 3}, last = {4};

  Compare<ops::add_Tensor>(x, y, 2);
  Compare<ops::sub_Tensor>(x, y, 2);
  Compare<ops::mul_Tensor>(x, y);
  Compare<ops::div_Tensor>(x, y);
  Compare<ops::neg>(x);
  Compare<ops::silu>(x);
  Compare<ops::gelu>(x, "tanh");
  Compare<ops::exp>(x);
  Compare<ops::relu>(x);
  Compare<ops::sigmoid>(x);
  Compare<ops::tanh>(x);
  CompareSchema<ops::linear>("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  Compare<ops::native_layer_norm>(x, last, row, row, 1e-5);
  CompareSchema<ops::_scaled_dot_product_fused_attention_overrideable>(
      "_scaled_dot_product_fused_attention_overrideable(Tensor query, Tensor key, Tensor value, "
      "Tensor? attn_bias=None, float dropout_p=0.0, bool is_causal=False, bool "
      "return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor "
      "cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor philox_seed, Tensor "
      "philox_offset, Tensor debug_attn_mask)");
  Compare<ops::clone>(x, std::nullopt);
  Compare<ops::view>(x, flat);
  Compare<ops::_unsafe_view>(x, flat);
  Compare<ops::_reshape_copy>(x, flat);
  Compare<ops::expand>(x, wide, false);
  Compare<ops::t>(x);
  Compare<ops::transpose_int>(x, 0, 1);
  Compare<ops::permute>(x, std::vector<int64_t>{1, 0});
  Compare<ops::unsqueeze>(x, 1);
  Compare<ops::squeeze_dim>(numbers({2, 1}), 1);
  Compare<ops::select_int>(x, 1, 2);
  Compare<ops::slice_Tensor>(x, 1, 1, 4, 2);
  Compare<ops::split_Tensor>(x, 3, 1);
  Compare<ops::split_with_sizes>(x, parts, 1);
  Compare<ops::unbind_int>(x, 1);
}

const Checks& TheChecks() {
  static const Checks checks;
  return checks;
}

}  // namespace

bool IsVerifiedVersion() {
  constexpr std::array<std::pair<int, int>, 3> kVerified = {{{2, 11}, {2, 12}, {2, 13}}};
  return std::find(kVerified.begin(), kVerified.end(),
                   std::pair(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR)) != kVerified.end();
}

bool NodeDiffers(const std::string& op) { return TheChecks().Differs(op); }

std::vector<std::string> CheckedNodes() { return TheChecks().Names(); }

}  // namespace spmd::trace
