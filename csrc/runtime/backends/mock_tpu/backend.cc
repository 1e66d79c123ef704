// SPDX-License-Identifier: Apache-2.0
// A simulated TPU slice: its devices, memory and links, with arithmetic on the CPU:
// "mock_tpu:v4-16". "mock_tpu:v5p-2048:plan" knows shapes only and computes nothing.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/machine/tpu.h"
#include "csrc/runtime/aten_backend.h"
#include "csrc/runtime/backend_factory.h"
#include "csrc/util/status.h"

namespace spmd::runtime::backends::mock_tpu {
namespace {

constexpr absl::string_view kDefaultSlice = "v5e-8";

class MockTpuBackend : public AtenBackend {
 public:
  MockTpuBackend(machine::TpuSlice slice, bool planning)
      : name_(absl::StrCat("mock_tpu:", slice.name, planning ? ":plan" : "")),
        slice_(std::move(slice)),
        planning_(planning) {}

  const std::string& name() const override { return name_; }
  int64_t num_devices() const override { return slice_.num_devices(); }
  bool elastic() const override { return false; }
  const machine::Machine& machine() const override { return slice_.machine; }
  Place place(int64_t) const override { return {c10::Device(planning_ ? c10::kMeta : c10::kCPU)}; }
  bool has_one_place() const override { return true; }
  bool planning() const override { return planning_; }
  std::string Describe() const override {
    return absl::StrCat(name_, ": ", num_devices(), " simulated devices, topology ",
                        absl::StrJoin(slice_.topology, "×"), ", ",
                        slice_.machine.memory_bytes / (double{1} * (1 << 30)), " GiB each",
                        planning_ ? "; shapes only, nothing is computed" : "");
  }

 private:
  std::string name_;
  machine::TpuSlice slice_;
  bool planning_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> Make(const BackendRequest& request) {
  absl::string_view slice_name = request.arguments;
  bool planning = false;
  if (slice_name == "plan" || absl::EndsWith(slice_name, ":plan")) {
    planning = true;
    slice_name.remove_suffix(slice_name == "plan" ? 4 : 5);
  }
  SPMD_ASSIGN_OR_RETURN(machine::TpuSlice slice,
                        machine::ParseTpuSlice(slice_name.empty() ? kDefaultSlice : slice_name));
  if (request.devices.has_value() && *request.devices != slice.num_devices()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "backend '", request.name, "': a ", slice.name, " slice has ", slice.num_devices(),
        " devices, not ", *request.devices, "; name another slice instead of a number of devices"));
  }
  return std::shared_ptr<Backend>(std::make_shared<MockTpuBackend>(std::move(slice), planning));
}

}  // namespace spmd::runtime::backends::mock_tpu
