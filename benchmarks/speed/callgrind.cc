// SPDX-License-Identifier: Apache-2.0
// Counting under callgrind (run with --collect-atstart=no), and ops from C++.
#include <torch/extension.h>
#include <valgrind/callgrind.h>

namespace {

void Toggle() { CALLGRIND_TOGGLE_COLLECT; }

// x + b + b + …, each from C++.
at::Tensor Add(at::Tensor x, const at::Tensor& b, int64_t times) {
  for (int64_t k = 0; k < times; ++k) x = at::add(x, b);
  return x;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("toggle", &Toggle);
  m.def("add", &Add);
}
