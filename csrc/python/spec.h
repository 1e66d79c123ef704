// SPDX-License-Identifier: Apache-2.0
// Converts partition specs between Python and C++.
#pragma once

#include "csrc/sharding/spec.h"
#include "torch/csrc/utils/pybind.h"

namespace spmd::python {

// Converts a sequence of entries. An entry is None, a name, an index (anything with __index__), a
// sequence of names and indices, or torch_spmd.UNCONSTRAINED (recognized by its attribute
// `is_unconstrained`).
// Errors: TypeError for any other entry of `spec`, naming it and what entries may be.
PartitionSpec ToSpec(py::handle spec);

// As above, with indices replaced by the names of the axes of `mesh`. An index that `mesh` does not
// have is left as it is.
PartitionSpec ToSpec(py::handle spec, const Mesh& mesh);

// The spec as a plain tuple of None, str, int and tuples; UNCONSTRAINED is the string
// "UNCONSTRAINED".
py::tuple FromSpec(const PartitionSpec& spec);

}  // namespace spmd::python
