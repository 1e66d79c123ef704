// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/value/allocator.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/trace/device/place.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

namespace {

// Makes storages for PyTorch itself: new Buffers of bytes.
struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = NewDataPtr();
    static_cast<Buffer*>(data.get_context())->form =
        ContiguousForm(at::kByte, {static_cast<int64_t>(bytes)});
    return data;
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(
        false,
        "torch_spmd: storages of the device have no memory that could be copied byte by byte");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t pool) override {
    if (DeviceAllocator* const gpu = OfGpu()) return gpu->emptyCache(pool);
    TileMemory::Trim();
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    if (DeviceAllocator* const gpu = OfGpu()) return gpu->getDeviceStats(FirstPlace().index());
    const TileMemory::Usage now = TileMemory::GetUsage();
    const int64_t kept = TileMemory::GetStats().kept;
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    c10::CachingDeviceAllocator::DeviceStats stats;
    Stat& bytes = stats.allocated_bytes[all];
    bytes.current = now.bytes;
    bytes.peak = now.peak_bytes;
    bytes.allocated = now.bytes_ever - bytes_before_;
    bytes.freed = bytes.allocated - now.bytes;
    stats.active_bytes[all] = stats.requested_bytes[all] = bytes;
    Stat& tensors = stats.allocation[all];
    tensors.current = tensors.peak = now.tensors;
    tensors.allocated = now.tensors_ever - tensors_before_;
    tensors.freed = tensors.allocated - now.tensors;
    stats.active[all] = tensors;
    Stat& reserved = stats.reserved_bytes[all];
    reserved.current = now.bytes + kept;
    reserved.peak = std::max(reserved.current, now.peak_bytes);
    return stats;
  }
  // What is allocated now counts as allocated since.
  void resetAccumulatedStats(c10::DeviceIndex) override {
    if (DeviceAllocator* const gpu = OfGpu()) {
      return gpu->resetAccumulatedStats(FirstPlace().index());
    }
    const TileMemory::Usage now = TileMemory::GetUsage();
    bytes_before_ = now.bytes_ever - now.bytes;
    tensors_before_ = now.tensors_ever - now.tensors;
  }
  void resetPeakStats(c10::DeviceIndex) override {
    if (DeviceAllocator* const gpu = OfGpu()) return gpu->resetPeakStats(FirstPlace().index());
    TileMemory::ResetPeak();
  }
  // Free and total bytes of the machine, whose memory all virtual devices share.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    if (DeviceAllocator* const gpu = OfGpu()) return gpu->getMemoryInfo(FirstPlace().index());
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return {page * static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)),
            page * static_cast<size_t>(sysconf(_SC_PHYS_PAGES))};
  }

 private:
  using TileMemory = runtime::TileMemory;
  using Stat = c10::CachingAllocator::Stat;

  // PyTorch's own for the GPU that has the tiles; null if they are on the host. The GPU's numbers
  // are those of the process, tensors of other devices of PyTorch included.
  static DeviceAllocator* OfGpu() {
    const c10::Device place = FirstPlace();
    if (!place.is_cuda()) return nullptr;
    DeviceAllocator* const allocator = at::getDeviceAllocator(place.type());
    return allocator->initialized() ? allocator : nullptr;
  }

  std::atomic<int64_t> bytes_before_{0}, tensors_before_{0};
};

}  // namespace

c10::Allocator* DeviceAllocatorInstance() {
  static auto* allocator = new Allocator;
  return allocator;
}

}  // namespace spmd::trace
