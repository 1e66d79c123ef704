// SPDX-License-Identifier: Apache-2.0
// What the hooks around an optimizer's step call.
#include <optional>
#include <vector>

#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/compat/python.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/value/buffer.h"
#include "torch/csrc/autograd/variable.h"

namespace spmd::python {
namespace {

using trace::Session;

bool IsOurs(py::handle object) {
  const at::Tensor* const t = compat::TensorOf(object.ptr());
  return t != nullptr && t->device().type() == trace::kDeviceType;
}

// Calls f with each parameter of the optimizer, until it returns true. Whoever derives from
// Optimizer may keep its parameters elsewhere: then there are none here.
template <typename F>
void ForEachParameter(py::handle optimizer, F f) {
  try {
    for (const py::handle group : py::iter(optimizer.attr("param_groups"))) {
      for (const py::handle param : py::iter(group["params"])) {
        if (f(param)) return;
      }
    }
  } catch (const py::error_already_set&) {
  }
}

bool HasOurs(py::handle optimizer) {
  bool has = false;
  ForEachParameter(optimizer, [&](py::handle param) { return has = IsOurs(param); });
  return has;
}

// Nothing for optimizers of other devices. `call` is the frame of the step.
std::optional<int64_t> OptimizerBegins(py::handle optimizer, py::handle call) {
  if (!HasOurs(optimizer)) return std::nullopt;
  return ValueOrThrow(Session::Get().OptimizerBegins(optimizer.ptr(), call.ptr()));
}

// The gradients on the device that the optimizer's parameters hold.
std::vector<at::Tensor> GradientsOf(py::handle optimizer) {
  std::vector<at::Tensor> gradients;
  ForEachParameter(optimizer, [&](py::handle param) {
    const at::Tensor* const t = compat::TensorOf(param.ptr());
    if (t == nullptr) return false;
    const at::Tensor& gradient = t->grad();
    if (trace::Buffer::IsOurs(gradient)) gradients.push_back(gradient);
    return false;
  });
  return gradients;
}

}  // namespace

void init_optimizers(py::module& m) {
  m.def("optimizer_begins", &OptimizerBegins, py::arg("optimizer"), py::arg("call"));
  m.def("optimizer_stepped", [](py::handle optimizer) {
    ThrowIfError(Session::Get().OptimizerStepped(optimizer.ptr(), GradientsOf(optimizer)));
  });
  m.def("run_waiting_step", [] { ThrowIfError(Session::Get().RunWaitingStep()); });
  m.def("is_lost", [](const at::Tensor& tensor) { return Session::Get().IsLost(tensor); });
}

}  // namespace spmd::python
