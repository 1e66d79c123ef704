// SPDX-License-Identifier: Apache-2.0
// What the hooks around an optimizer's step call.
#include <vector>

#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/value/buffer.h"
#include "torch/csrc/autograd/python_variable.h"
#include "torch/csrc/autograd/variable.h"

namespace spmd::python {
namespace {

using trace::Session;

bool IsOurs(py::handle object) {
  return THPVariable_Check(object.ptr()) &&
         THPVariable_Unpack(object.ptr()).device().type() == trace::kDeviceType;
}

bool HasOurs(py::handle groups) {
  for (const py::handle group : py::reinterpret_borrow<py::list>(groups)) {
    for (const py::handle param : group["params"]) {
      if (IsOurs(param)) return true;
    }
  }
  return false;
}

// Does nothing for optimizers of other devices.
int64_t OptimizerBegins(py::handle optimizer) {
  if (!HasOurs(optimizer.attr("param_groups"))) return 0;
  return ValueOrThrow(Session::Get().OptimizerBegins(optimizer.ptr()));
}

// The gradients on the device that the optimizer's parameters hold.
std::vector<at::Tensor> GradientsOf(py::handle optimizer) {
  std::vector<at::Tensor> gradients;
  for (const py::handle group : py::reinterpret_borrow<py::list>(optimizer.attr("param_groups"))) {
    for (const py::handle param : group["params"]) {
      if (!THPVariable_Check(param.ptr())) continue;
      const at::Tensor& gradient = THPVariable_Unpack(param.ptr()).grad();
      if (trace::Buffer::IsOurs(gradient)) gradients.push_back(gradient);
    }
  }
  return gradients;
}

}  // namespace

void init_optimizers(py::module& m) {
  m.def("optimizer_begins", &OptimizerBegins, py::arg("optimizer"));
  m.def("optimizer_stepped", [](py::handle optimizer) {
    ThrowIfError(Session::Get().OptimizerStepped(optimizer.ptr(), GradientsOf(optimizer)));
  });
  m.def("run_waiting_step", [] { ThrowIfError(Session::Get().RunWaitingStep()); });
  m.def("is_lost", [](const at::Tensor& tensor) { return Session::Get().IsLost(tensor); });
}

}  // namespace spmd::python
