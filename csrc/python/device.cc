// SPDX-License-Identifier: Apache-2.0
// The device as a whole: registration, backend, seeds, and running what is pending.
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
#include "csrc/trace/api/register_device.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/place.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/shape/cpu_forms.h"

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

py::dict StatisticsDict() {
  trace::Statistics s = Session::Get().statistics();
  py::dict result;
  result["records"] = s.records;
  result["replayed"] = s.replayed;
  result["runs"] = s.runs;
  result["compiles"] = s.compiles;
  result["cache_hits"] = s.cache_hits;
  result["host_fallbacks"] = s.host_fallbacks;
  result["plans_of_pending"] = s.plans_of_pending;
  result["planned_of_pending"] = s.planned_of_pending;
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
  m.def("wait_for_programs", [] { Session::Get().WaitForPrograms(); });
  m.def("meta_answers_for_cpu", &trace::MetaAnswersForCpu::IsOn);
  m.def("gpus_run_ops", [] { return trace::FirstPlace().is_cuda(); });
  m.def("shutdown", [] { Session::Get().Shutdown(); });
  m.def("manual_seed", [](uint64_t seed) { Session::Get().ManualSeed(seed); }, py::arg("seed"));
  m.def("initial_seed", [] { return Session::Get().InitialSeed(); });
  m.def("get_rng_state", &RngState);
  m.def("set_rng_state", &SetRngState, py::arg("state"));
  m.def("statistics", &StatisticsDict);
}

}  // namespace spmd::python
