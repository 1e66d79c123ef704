// SPDX-License-Identifier: Apache-2.0
// How far away memory is: loads of which each says where the next one goes.
#include <torch/extension.h>

#include <algorithm>
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

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::class_<Chase>(m, "Chase").def(pybind11::init<int64_t>()).def("run", &Chase::Run);
}
