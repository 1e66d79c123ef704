// SPDX-License-Identifier: Apache-2.0
// The extension torch_spmd._C: the list of its init functions.
#include "csrc/python/init.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "torch_spmd's C++ half. Private: use the torch_spmd package.";
  spmd::python::init_errors(m);
  spmd::python::init_options(m);
  spmd::python::init_mesh(m);
  spmd::python::init_device(m);
  spmd::python::init_optimizers(m);
  spmd::python::init_tensors(m);
  spmd::python::init_region(m);
  spmd::python::init_debug(m);
  spmd::python::init_rules(m);
  spmd::python::init_processes(m);
  spmd::python::init_calls(m);
  spmd::python::init_plan(m);
  spmd::python::init_candidates(m);
}
