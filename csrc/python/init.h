// SPDX-License-Identifier: Apache-2.0
// Each file of bindings has one init function; module.cc calls them in order.
#pragma once

#include "torch/csrc/utils/pybind.h"

namespace spmd::python {

void init_errors(py::module& m);
void init_options(py::module& m);
void init_mesh(py::module& m);
void init_device(py::module& m);
void init_optimizers(py::module& m);
void init_tensors(py::module& m);
void init_region(py::module& m);
void init_debug(py::module& m);
void init_rules(py::module& m);
void init_processes(py::module& m);
void init_calls(py::module& m);
void init_plan(py::module& m);
void init_candidates(py::module& m);

}  // namespace spmd::python
