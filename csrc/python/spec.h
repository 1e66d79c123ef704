// SPDX-License-Identifier: Apache-2.0
// Partition specs between Python and C++.
#pragma once

#include "csrc/sharding/spec.h"
#include "torch/csrc/utils/pybind.h"

namespace spmd::python {

// Any sequence of entries: None, a name, an index (anything with __index__), a sequence of those,
// or torch_spmd.UNCONSTRAINED (known by its attribute `is_unconstrained`). Errors: TypeError naming
// the entry and what entries may be.
PartitionSpec ToSpec(py::handle spec);

// The same with axes of `mesh` by name where they were given by index; an index that the mesh does
// not have is left as it is.
PartitionSpec ToSpec(py::handle spec, const Mesh& mesh);

// A plain tuple of None, str, int, tuples; UNCONSTRAINED entries are the string "UNCONSTRAINED".
py::tuple FromSpec(const PartitionSpec& spec);

}  // namespace spmd::python
