// SPDX-License-Identifier: Apache-2.0
// What a core has to itself at the moment: how far away memory is (loads of which each says where
// the next one goes), and how many instructions it takes at a time.
#include <torch/extension.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace {

struct alignas(64) Line {
  const Line* next;
};

class Chase {
 public:
  // Goes over `bytes` line by line in one random cycle.
  explicit Chase(int64_t bytes) : lines_(bytes / sizeof(Line)) {
    std::vector<size_t> order(lines_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(0));
    for (size_t k = 0; k < order.size(); ++k) {
      lines_[order[k]].next = &lines_[order[(k + 1) % order.size()]];
    }
    at_ = &lines_[0];
  }

  void Run(int64_t loads) {
    const Line* at = at_;
    for (int64_t k = 0; k < loads; ++k) at = at->next;
    at_ = at;
  }

 private:
  std::vector<Line> lines_;
  const Line* volatile at_;
};

// Nanoseconds, by the clock, for eight instructions of which four can go at once.
double Eight(int64_t times) {
  uint64_t a = 1, b = 2, c = 3, d = 4;
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t k = 0; k < times; ++k) {
    a += 3, b += 3, c += 3, d += 3;
    asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
    a ^= 5, b ^= 5, c ^= 5, d ^= 5;
    asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
  }
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / static_cast<double>(times);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::class_<Chase>(m, "Chase").def(pybind11::init<int64_t>()).def("run", &Chase::Run);
  m.def("eight", &Eight);
}
