// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/value/allocator.h"

#include <c10/core/CachingDeviceAllocator.h>

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
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

}  // namespace

c10::Allocator* DeviceAllocatorInstance() {
  static auto* allocator = new Allocator;
  return allocator;
}

}  // namespace spmd::trace
