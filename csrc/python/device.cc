// SPDX-License-Identifier: Apache-2.0
// The device as a whole: registration, backend, seeds, and running what is pending.
#include "csrc/trace/device.h"

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/core/Generator.h"
#include "csrc/python/errors.h"
#include "csrc/python/frames.h"
#include "csrc/python/init.h"
#include "csrc/trace/cpu_forms.h"
#include "csrc/trace/meta_kernels.h"
#include "csrc/trace/multi_tensor_adam.h"
#include "csrc/trace/session.h"
#include "torch/csrc/autograd/python_variable.h"

namespace spmd::python {
namespace {

using trace::Session;

void Register(std::vector<std::string> library_folders) {
  trace::RegisterDevice();
  Session::Get().SetPythonHooks(MakePythonHooks(std::move(library_folders)));
}

std::shared_ptr<runtime::Backend> TheBackend() { return ValueOrThrow(Session::Get().backend()); }

at::Tensor RngState() {
  at::Generator generator = at::globalContext().defaultGenerator(trace::TheDevice());
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void SetRngState(const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(trace::TheDevice());
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// The tensors of `list`; nullopt if one has a class of its own, which may define what happens to
// it.
std::optional<std::vector<at::Tensor>> OrdinaryTensors(const py::sequence& list) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(list.size());
  for (const py::handle item : list) {
    if (!THPVariable_CheckExact(item.ptr())) return std::nullopt;
    tensors.push_back(THPVariable_Unpack(item.ptr()));
  }
  return tensors;
}

bool StepAdam(const py::sequence& params, const py::sequence& grads, const py::sequence& exp_avgs,
              const py::sequence& exp_avg_sqs, const py::sequence& max_exp_avg_sqs,
              const py::sequence& counters, double step, bool maximize, bool amsgrad,
              std::optional<double> shrink, std::optional<double> decay, double first_weight,
              double beta2, double second_weight, double root_correction, double eps,
              double step_size) {
  trace::AdamLists lists;
  for (const auto& [from, to] :
       {std::pair(&params, &lists.params), std::pair(&grads, &lists.grads),
        std::pair(&exp_avgs, &lists.exp_avgs), std::pair(&exp_avg_sqs, &lists.exp_avg_sqs),
        std::pair(&max_exp_avg_sqs, &lists.max_exp_avg_sqs),
        std::pair(&counters, &lists.counters)}) {
    std::optional<std::vector<at::Tensor>> tensors = OrdinaryTensors(*from);
    if (!tensors.has_value()) return false;
    *to = *std::move(tensors);
  }
  return trace::StepAdam(lists,
                         {maximize, amsgrad, shrink, decay, first_weight, beta2, second_weight,
                          root_correction, eps, step_size},
                         step);
}

py::dict StatisticsDict() {
  trace::Statistics s = Session::Get().statistics();
  py::dict result;
  result["records"] = s.records;
  result["replayed"] = s.replayed;
  result["runs"] = s.runs;
  result["compiles"] = s.compiles;
  result["cache_hits"] = s.cache_hits;
  result["disk_hits"] = s.disk_hits;
  result["host_fallbacks"] = s.host_fallbacks;
  return result;
}

}  // namespace

void init_device(py::module& m) {
  m.def("register_device", &Register, py::arg("library_folders"));
  m.def(
      "set_default_backend",
      [](const std::string& name, std::optional<int64_t> devices) {
        ThrowIfError(Session::Get().SetDefaultBackend(name, devices));
      },
      py::arg("name"), py::arg("devices"));
  m.def("backend_name", [] { return TheBackend()->name(); });
  m.def("describe_backend", [] { return TheBackend()->Describe(); });
  m.def("device_count", [] { return ValueOrThrow(Session::Get().DeviceCount()); });
  m.def("device_count_is_a_limit",
        [] { return !TheBackend()->elastic() || Session::Get().device_count_was_set(); });
  m.def("sync", [](bool wait) { ThrowIfError(Session::Get().Sync(wait)); }, py::arg("wait"));
  m.def("step_adam", &StepAdam, py::arg("params"), py::arg("grads"), py::arg("exp_avgs"),
        py::arg("exp_avg_sqs"), py::arg("max_exp_avg_sqs"), py::arg("counters"), py::kw_only(),
        py::arg("step"), py::arg("maximize"), py::arg("amsgrad"), py::arg("shrink"),
        py::arg("decay"), py::arg("first_weight"), py::arg("beta2"), py::arg("second_weight"),
        py::arg("root_correction"), py::arg("eps"), py::arg("step_size"));
  m.def("meta_kernels_in_cpp", &trace::MetaKernelsInCpp);
  m.def("meta_kernels_of_dispatcher", &trace::MetaKernelsOfDispatcher);
  m.def("meta_answers_for_cpu", &trace::MetaAnswersForCpu::IsOn);
  m.def("shutdown", [] { Session::Get().Shutdown(); });
  m.def("manual_seed", [](uint64_t seed) { Session::Get().ManualSeed(seed); }, py::arg("seed"));
  m.def("initial_seed", [] { return Session::Get().InitialSeed(); });
  m.def("get_rng_state", &RngState);
  m.def("set_rng_state", &SetRngState, py::arg("state"));
  m.def("statistics", &StatisticsDict);
}

}  // namespace spmd::python
