// SPDX-License-Identifier: Apache-2.0
// Any number of virtual devices in this process, all at one place: "cpu", "cpu:16".
#include "absl/strings/str_cat.h"
#include "csrc/machine/machine.h"
#include "csrc/runtime/aten_backend.h"
#include "csrc/runtime/backend_factory.h"
#include "csrc/util/status.h"

namespace spmd::runtime::backends::cpu {
namespace {

constexpr int64_t kDefaultDevices = 8;

class CpuBackend : public AtenBackend {
 public:
  explicit CpuBackend(std::optional<int64_t> devices)
      : name_("cpu"),
        num_devices_(devices.value_or(kDefaultDevices)),
        elastic_(!devices.has_value()) {}

  const std::string& name() const override { return name_; }
  int64_t num_devices() const override { return num_devices_; }
  bool elastic() const override { return elastic_; }
  bool count_is_given() const override { return !elastic_; }
  const machine::Machine& machine() const override { return machine::Nominal(); }
  Place place(int64_t) const override { return {c10::Device(c10::kCPU)}; }
  bool has_one_place() const override { return true; }
  bool runs_in_jobs() const override { return true; }
  int64_t memory_limit() const override { return 0; }
  std::string Describe() const override {
    return absl::StrCat("cpu: ", num_devices_, " virtual devices in this process",
                        elastic_ ? ", more where a mesh asks for them" : "");
  }

 private:
  std::string name_;
  int64_t num_devices_;
  bool elastic_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> Make(const BackendRequest& request) {
  SPMD_ASSIGN_OR_RETURN(std::optional<int64_t> devices, RequestedDevices(request));
  if (!devices.has_value()) devices = request.otherwise;
  return std::shared_ptr<Backend>(std::make_shared<CpuBackend>(devices));
}

}  // namespace spmd::runtime::backends::cpu
