// SPDX-License-Identifier: Apache-2.0
// What the device is told of functions that are computed again (torch_spmd/recomputation.py).
#include "csrc/python/init.h"
#include "csrc/trace/recorder/region.h"

namespace spmd::python {

void init_recomputation(py::module& m) {
  m.def(
      "enter_region_again", [](int64_t first_level) { trace::EnterRegion(first_level, {}); },
      py::arg("first_level"));
  m.def("leave_region_again", &trace::LeaveRegions, py::arg("first_level"));
}

}  // namespace spmd::python
