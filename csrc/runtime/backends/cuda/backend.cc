// SPDX-License-Identifier: Apache-2.0
// GPUs through PyTorch's own device-generic interfaces, so that nothing of CUDA is needed to
// compile this file. "cuda", "cuda:8": the devices are assigned to the GPUs in blocks, several
// virtual ones to one GPU if necessary.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "absl/strings/str_cat.h"
#include "csrc/machine/machine.h"
#include "csrc/runtime/aten_backend.h"
#include "csrc/runtime/backend_factory.h"
#include "csrc/util/status.h"

namespace spmd::runtime::backends::cuda {
namespace {

class CudaBackend : public AtenBackend {
 public:
  CudaBackend(int64_t gpus, std::optional<int64_t> devices)
      : name_("cuda"),
        gpus_(gpus),
        num_devices_(devices.value_or(gpus)),
        elastic_(!devices.has_value() && gpus == 1),
        machine_(machine::Nominal()) {
    machine_.name = "cuda";
    const int64_t per_gpu = (num_devices_ + gpus_ - 1) / gpus_;
    const auto [free_bytes, total_bytes] = at::getDeviceAllocator(c10::kCUDA)->getMemoryInfo(0);
    (void)free_bytes;
    machine_.memory_bytes = static_cast<int64_t>(total_bytes) / per_gpu;
  }

  const std::string& name() const override { return name_; }
  int64_t num_devices() const override { return num_devices_; }
  bool elastic() const override { return elastic_; }
  const machine::Machine& machine() const override { return machine_; }
  Place place(int64_t id) const override {
    const int64_t gpu = id < num_devices_ ? id * gpus_ / num_devices_ : 0;
    return {c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu))};
  }
  bool has_one_place() const override { return gpus_ == 1; }
  // Virtual devices of one GPU share tiles, so a limit per device would refuse programs that fit.
  int64_t memory_limit() const override { return num_devices_ > gpus_ ? 0 : machine_.memory_bytes; }
  std::string Describe() const override {
    return absl::StrCat("cuda: ", num_devices_, " devices on ", gpus_, " GPU",
                        gpus_ == 1 ? "" : "s");
  }

 private:
  std::string name_;
  int64_t gpus_;
  int64_t num_devices_;
  bool elastic_;
  machine::Machine machine_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> Make(const BackendRequest& request) {
  SPMD_ASSIGN_OR_RETURN(std::optional<int64_t> devices, RequestedDevices(request));
  const int64_t gpus = at::detail::getCUDAHooks().getNumGPUs();
  if (gpus < 1) {
    return absl::UnavailableError(absl::StrCat(
        "backend '", request.name, "': this PyTorch finds no CUDA device ",
        at::detail::getCUDAHooks().hasCUDA() ? "(is a driver installed and a GPU visible?)"
                                             : "(it is built without CUDA)",
        "; use backend 'cpu', or install a CUDA build of PyTorch"));
  }
  c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();  // initializes the runtime
  return std::shared_ptr<Backend>(std::make_shared<CudaBackend>(gpus, devices));
}

}  // namespace spmd::runtime::backends::cuda
