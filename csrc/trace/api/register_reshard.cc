// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/api/register_reshard.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <memory>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/pytorch/autograd_keys.h"
#include "csrc/trace/pytorch/make_node.h"
#include "csrc/trace/recorder/region.h"

namespace spmd::trace {

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

using ReshardOp = at::Tensor(const at::Tensor&, std::string_view, std::string_view);

const c10::TypedOperatorHandle<ReshardOp>& TheReshard() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("spmd::reshard", "").typed<ReshardOp>();
  return op;
}

// The gradient gets the same sharding.
struct ReshardBackward final : autograd::TraceableFunction {
  explicit ReshardBackward(autograd::edge_list edges) : TraceableFunction(std::move(edges)) {}

  std::string name() const override { return "ReshardBackward"; }
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    return {TheReshard().call(gradients[0], mesh, spec)};
  }

  std::string mesh, spec;
};

// Does what PyTorch's generated kernels do. A tangent gets the same sharding, too.
at::Tensor ReshardWithGradient(c10::DispatchKeySet keys, const at::Tensor& x, std::string_view mesh,
                               std::string_view spec) {
  const bool gradient = c10::AutogradState::get_tls_state().get_grad_mode() && x.requires_grad();
  decltype(NewNode<ReshardBackward>({})) node;
  if (gradient) {
    node = NewNode<ReshardBackward>(autograd::collect_next_edges(x));
    node->mesh = mesh;
    node->spec = spec;
  }
  at::Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return TheReshard().redispatch(keys & c10::after_autograd_keyset, x, mesh, spec);
  }();
  if (gradient) {
    autograd::set_history(result, node);
    ShowNode(node);
  }
  if (HasTangent(x)) {
    compat::SetTangent(result, TheReshard().call(compat::TangentOf(x), mesh, spec));
  }
  return result;
}

}  // namespace

at::Tensor Reshard(const at::Tensor& x, std::string_view mesh, std::string_view spec) {
  return TheReshard().call(x, mesh, spec);
}

std::shared_ptr<KnownMark> FindMark(absl::string_view mesh, absl::string_view spec) {
  return known_marks->Find(mesh, spec);
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
