// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/simulated_backend.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "csrc/runtime/aten_backend.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

class SimulatedBackend : public AtenBackend {
 public:
  SimulatedBackend(std::string name, Simulated simulated, bool planning)
      : name_(std::move(name)), simulated_(std::move(simulated)), planning_(planning) {}

  const std::string& name() const override { return name_; }
  int64_t num_devices() const override { return simulated_.devices; }
  bool elastic() const override { return false; }
  const machine::Machine& machine() const override { return simulated_.machine; }
  Place place(int64_t) const override { return {c10::Device(planning_ ? c10::kMeta : c10::kCPU)}; }
  bool has_one_place() const override { return true; }
  bool planning() const override { return planning_; }
  std::string Describe() const override {
    const int64_t bytes = simulated_.machine.memory_bytes;
    return absl::StrCat(name_, ": ", num_devices(), " simulated devices, ", simulated_.wiring, ", ",
                        bytes == 0
                            ? std::string("unlimited memory")
                            : absl::StrCat(static_cast<double>(bytes) / (1 << 30), " GiB each"),
                        planning_ ? "; shapes only, nothing is computed" : "");
  }

 private:
  std::string name_;
  Simulated simulated_;
  bool planning_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> MakeSimulated(
    const backends::BackendRequest& request, absl::string_view otherwise,
    absl::FunctionRef<absl::StatusOr<Simulated>(absl::string_view name)> find) {
  absl::string_view machine = request.arguments;
  const bool unlimited = absl::ConsumeSuffix(&machine, ":plan:unlimited");
  bool planning = unlimited;
  if (machine == "plan" || absl::EndsWith(machine, ":plan")) {
    planning = true;
    machine.remove_suffix(machine == "plan" ? 4 : 5);
  }
  SPMD_ASSIGN_OR_RETURN(Simulated simulated, find(machine.empty() ? otherwise : machine));
  if (unlimited) simulated.machine.memory_bytes = 0;
  if (request.devices.has_value() && *request.devices != simulated.devices) {
    return absl::InvalidArgumentError(
        absl::StrCat("backend '", request.name, "': a ", simulated.machine.name, " ",
                     simulated.noun, " has ", simulated.devices, " devices, not ", *request.devices,
                     "; name another ", simulated.noun, " instead of a number of devices"));
  }
  const absl::string_view kind = absl::string_view(request.name).substr(0, request.name.find(':'));
  std::string name = absl::StrCat(kind, ":", simulated.machine.name, planning ? ":plan" : "",
                                  unlimited ? ":unlimited" : "");
  return std::shared_ptr<Backend>(
      std::make_shared<SimulatedBackend>(std::move(name), std::move(simulated), planning));
}

}  // namespace spmd::runtime
