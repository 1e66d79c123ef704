// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/api/register_reshard.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "csrc/trace/api/lanes.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/pytorch/autograd_shortcuts.h"
#include "csrc/trace/pytorch/make_node.h"
#include "csrc/trace/recorder/region.h"

namespace spmd::trace {

struct KnownMark {
  MarkPtr mark;
  std::atomic<bool> fits{false};  // a tensor of the spec's rank was resharded
};

namespace {

// Marks by their texts, so that a text is read once, and a spec checked once.
class KnownMarks {
 public:
  explicit KnownMarks(ReadMark read) : read_(std::move(read)) {}

  std::shared_ptr<KnownMark> Find(absl::string_view mesh, absl::string_view spec) {
    {
      absl::MutexLock lock(&mutex_);
      if (const auto it = marks_.find(mesh); it != marks_.end()) {
        if (const auto found = it->second.find(spec); found != it->second.end()) {
          return found->second;
        }
      }
    }
    auto known = std::make_shared<KnownMark>();
    known->mark = read_(std::string(mesh), std::string(spec));
    absl::MutexLock lock(&mutex_);
    if (++count_ > kMost) {
      marks_.clear();  // of a program whose shardings never repeat
      count_ = 1;
    }
    marks_[mesh][spec] = known;
    return known;
  }

 private:
  static constexpr int kMost = 1024;

  const ReadMark read_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, absl::flat_hash_map<std::string, std::shared_ptr<KnownMark>>>
      marks_ ABSL_GUARDED_BY(mutex_);
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

KnownMarks* known_marks = nullptr;  // set once, before the first call

at::Tensor ReshardOnDevice(const at::Tensor& x, std::string_view mesh, std::string_view spec) {
  const std::shared_ptr<KnownMark> known =
      known_marks->Find({mesh.data(), mesh.size()}, {spec.data(), spec.size()});
  Session& session = Session::Get();
  at::Tensor result =
      ValueOrThrow(MakingShards::Now() ? session.ReshardApart(x, known->mark, known->fits, {}, {})
                                       : session.Reshard(x, known->mark, known->fits));
  known->fits = true;
  return result;
}

using TheOp = at::Tensor(const at::Tensor&, std::string_view, std::string_view);

const c10::TypedOperatorHandle<TheOp>& Reshard() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("spmd::reshard", "").typed<TheOp>();
  return op;
}

// The gradient gets the same sharding.
struct ReshardBackward final : autograd::Node {
  explicit ReshardBackward(autograd::edge_list edges) : Node(std::move(edges)) {}

  std::string name() const override { return "ReshardBackward"; }
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    return {Reshard().call(gradients[0], mesh, spec)};
  }

  std::string mesh, spec;
};

// Does what PyTorch's generated kernels do. A tangent gets the same sharding, too.
at::Tensor ReshardWithGradient(c10::DispatchKeySet keys, const at::Tensor& x, std::string_view mesh,
                               std::string_view spec) {
  const bool gradient = c10::AutogradState::get_tls_state().get_grad_mode() && x.requires_grad();
  decltype(NewNode<ReshardBackward>({})) node;
  if (gradient) {
    node = NewNode<ReshardBackward>(EdgesOf(x));
    node->mesh = mesh;
    node->spec = spec;
  }
  at::Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return Reshard().redispatch(keys & c10::after_autograd_keyset, x, mesh, spec);
  }();
  if (gradient) SetHistory(result, node);
  if (HasTangent(x)) {
    result._set_fw_grad(Reshard().call(x._fw_grad(/*level=*/0), mesh, spec), /*level=*/0,
                        /*is_inplace_op=*/false);
  }
  return result;
}

// --- lanes ---

// True if the device's kernel is the next that sees an op on `t`, apart from autograd's. Autocast
// leaves these ops alone, and BackendSelect, which every thread includes, is about ops that create
// tensors from none.
bool IsPlain(const at::Tensor& t) {
  const c10::DispatchKeySet keys =
      c10::impl::computeDispatchKeySet(t.key_set(),
                                       c10::DispatchKeySet(c10::DispatchKeySet::FULL)) -
      c10::autocast_dispatch_keyset - c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  return keys.highestPriorityTypeId() == c10::DispatchKey::AutogradPrivateUse1 && IsNext(keys) &&
         !HasTangent(t);
}

std::vector<at::Tensor> AllLanes(absl::Span<const at::Tensor> tensors,
                                 absl::Span<const LaneFormPtr> forms, bool to);

// The gradients are put together as the tensors were taken apart. It is one node for all arguments
// of a region, because PyTorch's engine spends more on a node than recording does.
struct LanesBackward final : autograd::Node {
  explicit LanesBackward(autograd::edge_list edges) : Node(std::move(edges)) {}

  std::string name() const override { return "LanesBackward"; }
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    for (size_t k = 0; k < gradients.size(); ++k) {
      if (!task_should_compute_output(k)) gradients[k].reset();
    }
    return AllLanes(gradients, forms, !to);
  }

  std::vector<LaneFormPtr> forms;
  bool to = false;
};

at::Tensor InThreeOps(const at::Tensor& x, const LaneForm& form, bool to) {
  at::Tensor t = x;
  if (to) {
    const MakingShards making;
    t = Reshard().call(t, form.mesh, form.spec);
    if (!form.apart.empty()) t = t.reshape({form.apart.data(), form.apart.size()});
    return form.order.empty() ? t : t.permute(form.order);
  }
  if (!form.order.empty()) t = t.permute(form.back);
  if (!form.apart.empty()) t = t.reshape({form.whole.data(), form.whole.size()});
  return Reshard().call(t, form.mesh, form.spec);
}

at::Tensor BelowAutograd(const at::Tensor& x, const LaneForm& form, bool to) {
  KnownMark& known = *form.mark;
  at::Tensor result = ValueOrThrow(
      to ? Session::Get().ReshardApart(x, known.mark, known.fits, form.apart, form.order)
         : Session::Get().ReshardTogether(x, known.mark, known.fits, form.whole, form.back));
  known.fits = true;
  return result;
}

// Gives `result`, which has the value of `x`, the gradient function of `x`. False if it has none of
// its own.
bool ShareHistory(const at::Tensor& x, const at::Tensor& result) {
  const autograd::AutogradMeta* const meta = MetaOf(x);
  if (meta == nullptr || meta->is_view_ || meta->grad_fn_ == nullptr) return false;
  c10::TensorImpl* const impl = result.unsafeGetTensorImpl();
  impl->set_autograd_meta(std::make_unique<autograd::AutogradMeta>(
      impl, /*requires_grad=*/false, autograd::Edge(meta->grad_fn_, meta->output_nr_)));
  return true;
}

// Tensors that are not defined stay so.
std::vector<at::Tensor> AllLanes(absl::Span<const at::Tensor> tensors,
                                 absl::Span<const LaneFormPtr> forms, bool to) {
  std::vector<at::Tensor> results(tensors.size());
  std::vector<size_t> differentiated;  // of those of which this makes one step
  autograd::edge_list edges;
  const bool gradients = c10::AutogradState::get_tls_state().get_grad_mode();
  for (size_t k = 0; k < tensors.size(); ++k) {
    const at::Tensor& x = tensors[k];
    if (!x.defined()) continue;
    if (!IsPlain(x)) {
      results[k] = InThreeOps(x, *forms[k], to);
      continue;
    }
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      results[k] = BelowAutograd(x, *forms[k], to);
    }
    if (!gradients || !x.requires_grad()) continue;
    if (!to && forms[k]->apart.empty() && ShareHistory(x, results[k])) continue;
    differentiated.push_back(k);
    edges.push_back(EdgeOf(x));
  }
  if (differentiated.empty()) return results;
  const auto node = NewNode<LanesBackward>(std::move(edges));
  node->to = to;
  for (const size_t k : differentiated) {
    node->forms.push_back(forms[k]);
    SetHistory(results[k], node);
  }
  return results;
}

}  // namespace

LaneFormPtr MakeLaneForm(std::string mesh, std::string spec, Dims whole, Dims apart,
                         std::vector<int64_t> order) {
  std::vector<int64_t> back(order.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) {
    const bool fits = order[i] >= 0 && order[i] < static_cast<int64_t>(back.size());
    if (fits) back[order[i]] = static_cast<int64_t>(i);
  }
  if ((!apart.empty() && NumElements(apart) != NumElements(whole)) ||
      std::find(back.begin(), back.end(), -1) != back.end() ||
      (!order.empty() && order.size() != (apart.empty() ? whole : apart).size())) {
    throw std::invalid_argument("lanes: sizes and order do not belong together");
  }
  LaneForm form{std::move(mesh),  std::move(spec),  nullptr,        std::move(whole),
                std::move(apart), std::move(order), std::move(back)};
  form.mark = known_marks->Find(form.mesh, form.spec);
  return std::make_shared<const LaneForm>(std::move(form));
}

std::vector<at::Tensor> ToLanes(absl::Span<const at::Tensor> wholes,
                                absl::Span<const LaneFormPtr> forms) {
  return AllLanes(wholes, forms, /*to=*/true);
}

at::Tensor FromLanes(const at::Tensor& lanes, const LaneFormPtr& form) {
  return AllLanes({&lanes, 1}, {&form, 1}, /*to=*/false)[0];
}

void RegisterReshard(ReadMark read) {
  known_marks = new KnownMarks(std::move(read));
  // Never destroyed: the dispatcher may outlive static objects of this library.
  auto* device = new torch::Library(torch::Library::IMPL, "spmd", c10::DispatchKey::PrivateUse1,
                                    __FILE__, __LINE__);
  device->impl("reshard", TORCH_FN(ReshardOnDevice));
  auto* autograd = new torch::Library(torch::Library::IMPL, "spmd",
                                      c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd->impl("reshard", TORCH_FN(ReshardWithGradient));
}

}  // namespace spmd::trace
