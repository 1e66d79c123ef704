// SPDX-License-Identifier: Apache-2.0
// Counts the bytes that tensors on the CPU hold, by standing before PyTorch's allocator.
#include <c10/core/CPUAllocator.h>
#include <torch/extension.h>

#include <atomic>
#include <memory>
#include <utility>

namespace {

std::atomic<int64_t> live{0}, peak{0};

void Add(int64_t bytes) {
  const int64_t now = live.fetch_add(bytes) + bytes;
  int64_t most = peak.load();
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
}

struct Block {
  c10::DataPtr memory;
  int64_t bytes;
};

void Free(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  live.fetch_sub(block->bytes);
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    auto block = std::make_unique<Block>(Block{inner_->allocate(bytes), static_cast<int64_t>(bytes)});
    Add(block->bytes);
    void* const data = block->memory.get();
    return {data, block.release(), &Free, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* inner_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("start", [] {
    static CountingAllocator counting(c10::GetCPUAllocator());
    c10::SetCPUAllocator(&counting, /*priority=*/1);
  });
  // The most bytes at once since the last call; begins anew.
  m.def("take_peak", [] { return peak.exchange(live.load()); });
}
