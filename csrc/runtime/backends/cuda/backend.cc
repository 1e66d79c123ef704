// SPDX-License-Identifier: Apache-2.0
// GPUs through PyTorch's own device-generic interfaces, so that nothing of CUDA is needed to
// compile this file. "cuda", "cuda:8": the devices are assigned to the GPUs in blocks, several
// virtual ones to one GPU if necessary. In a job each process uses one GPU, the one with its number
// among the processes of the host; they share GPUs if there are fewer.
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/cuda.h>

#include <algorithm>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "csrc/machine/machine.h"
#include "csrc/runtime/aten_backend.h"
#include "csrc/runtime/backend_factory.h"
#include "csrc/runtime/run_on_host.h"
#include "csrc/util/dims.h"
#include "csrc/util/status.h"

namespace spmd::runtime::backends::cuda {
namespace {

// That of the first tensor on a GPU, or the one that is an argument.
c10::Device DeviceOf(const torch::jit::Stack& arguments) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined() && argument.toTensor().is_cuda()) {
      return argument.toTensor().device();
    }
    if (argument.isTensorList()) {
      for (const at::Tensor& t : argument.toTensorVector()) {
        if (t.defined() && t.is_cuda()) return t.device();
      }
    }
    if (argument.isDevice() && argument.toDevice().is_cuda()) return argument.toDevice();
  }
  return c10::Device(c10::kCUDA, 0);
}

class CudaBackend : public AtenBackend {
 public:
  // The devices are on `gpus` GPUs from `first` on, so many on each.
  CudaBackend(int64_t gpus, int64_t first, int64_t num_devices, int64_t per_gpu, bool given)
      : name_("cuda"),
        gpus_(gpus),
        first_(first),
        num_devices_(num_devices),
        per_gpu_(per_gpu),
        given_(given),
        machine_(machine::Nominal()) {
    machine_.name = "cuda";
  }

  const std::string& name() const override { return name_; }
  int64_t num_devices() const override { return num_devices_; }
  bool elastic() const override { return !given_ && gpus_ == 1; }
  bool count_is_given() const override { return given_; }
  // The memory is asked for at first use: that makes a context on the GPU, which a process of a job
  // needs on its own GPU only.
  const machine::Machine& machine() const override {
    absl::call_once(asked_, [this] {
      const auto [free_bytes, total_bytes] =
          at::getDeviceAllocator(c10::kCUDA)->getMemoryInfo(static_cast<c10::DeviceIndex>(first_));
      (void)free_bytes;
      machine_.memory_bytes = static_cast<int64_t>(total_bytes) / per_gpu_;
    });
    return machine_;
  }
  Place place(int64_t id) const override {
    const int64_t gpu = id < num_devices_ ? id * gpus_ / num_devices_ : 0;
    return {c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(first_ + gpu))};
  }
  bool has_one_place() const override { return gpus_ == 1; }
  // Some ops have no kernel for GPUs, some kernels not for all types.
  void Run(const c10::OperatorHandle& op, torch::jit::Stack& stack) const override {
    const torch::jit::Stack arguments = stack;
    if (op.hasComputedKernelForDispatchKey(c10::DispatchKey::CUDA)) {
      try {
        return AtenBackend::Run(op, stack);
      } catch (const c10::NotImplementedError&) {
        stack = arguments;
      }
    }
    RunOnHost(op, stack, DeviceOf(arguments));
  }
  bool runs_in_jobs() const override { return true; }
  // Virtual devices of one GPU share tiles, so a limit per device would refuse programs that fit.
  int64_t memory_limit() const override { return per_gpu_ > 1 ? 0 : machine().memory_bytes; }
  void Synchronize() const override {
    for (int64_t gpu = first_; gpu < first_ + gpus_; ++gpu) torch::cuda::synchronize(gpu);
  }
  std::string Describe() const override {
    return absl::StrCat("cuda: ", num_devices_, " devices on ", gpus_, " GPU",
                        gpus_ == 1 ? "" : "s");
  }

 private:
  std::string name_;
  int64_t gpus_;
  int64_t first_;
  int64_t num_devices_;
  int64_t per_gpu_;
  bool given_;
  mutable absl::once_flag asked_;
  mutable machine::Machine machine_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> Make(const BackendRequest& request) {
  SPMD_ASSIGN_OR_RETURN(std::optional<int64_t> devices, RequestedDevices(request));
  const int64_t gpus = torch::cuda::device_count();
  if (gpus < 1) {
    return absl::UnavailableError(absl::StrCat(
        "backend '", request.name, "': this PyTorch finds no CUDA device ",
        at::hasCUDA() ? "(is a driver installed and a GPU visible?)" : "(it is built without CUDA)",
        "; use backend 'cpu', or install a CUDA build of PyTorch"));
  }
  (void)c10::DeviceGuard(c10::Device(c10::kCUDA));  // initializes the runtime
  if (!devices.has_value()) devices = request.otherwise;
  if (const PartOfJob* const job = request.job) {
    const int64_t count = devices.value_or(job->processes);
    const int64_t sharing = CeilDiv(job->on_host, std::min<int64_t>(gpus, job->on_host));
    return std::make_shared<CudaBackend>(1, job->number_on_host % gpus, count,
                                         count / job->processes * sharing, /*given=*/true);
  }
  const int64_t count = devices.value_or(gpus);
  return std::make_shared<CudaBackend>(gpus, 0, count, CeilDiv(count, gpus), devices.has_value());
}

}  // namespace spmd::runtime::backends::cuda
