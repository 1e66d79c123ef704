// SPDX-License-Identifier: Apache-2.0
// Counts the bytes that tensors on the CPU hold, by standing before PyTorch's allocator.
#include <c10/core/CPUAllocator.h>
#include <torch/extension.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace {

std::atomic<int64_t> live{0}, peak{0};

void Add(int64_t bytes) {
  const int64_t now = live.fetch_add(bytes) + bytes;
  int64_t most = peak.load();
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
}

// What is allocated, by address: PyTorch wants a block to be its own context.
std::mutex mutex;
std::unordered_map<void*, std::pair<c10::DataPtr, int64_t>> blocks;

void Free(void* data) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto block = blocks.find(data);
  if (block == blocks.end()) return;
  live.fetch_sub(block->second.second);
  blocks.erase(block);
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr memory = inner_->allocate(size);
    void* const data = memory.get();
    if (data == nullptr) return memory;
    const auto bytes = static_cast<int64_t>(size);
    Add(bytes);
    const std::lock_guard<std::mutex> lock(mutex);
    blocks[data] = {std::move(memory), bytes};
    return {data, data, &Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
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
