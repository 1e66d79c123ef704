// SPDX-License-Identifier: Apache-2.0
#include "csrc/mesh/mesh.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "csrc/mesh/grid.h"
#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/python/spec.h"
#include "csrc/sharding/sharding.h"

namespace spmd::python {
namespace {

py::tuple ToTuple(const std::vector<int64_t>& values) {
  py::tuple result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = values[i];
  return result;
}

std::string MeshHloString(const Mesh& mesh, py::handle spec) {
  PartitionSpec parsed = ToSpec(spec);
  GridPtr grid = Grid::Of(mesh);
  int rank = static_cast<int>(parsed.size());
  return HloString(Value(ResolveSpec("NamedSharding", parsed, mesh, *grid, rank)), *grid);
}

}  // namespace

void init_mesh(py::module& m) {
  py::class_<Mesh>(m, "Mesh")
      .def(py::init([](std::vector<int64_t> device_ids, std::vector<int64_t> shape,
                       std::optional<std::vector<std::string>> axis_names) {
             return Value(
                 Mesh::Create(std::move(device_ids), std::move(shape), std::move(axis_names)));
           }),
           py::arg("device_ids"), py::arg("mesh_shape"), py::arg("axis_names"))
      .def_property_readonly("device_ids", [](const Mesh& self) { return ToTuple(self.device_ids()); })
      .def_property_readonly("mesh_shape", [](const Mesh& self) { return ToTuple(self.shape()); })
      .def_property_readonly("axis_names",
                             [](const Mesh& self) { return py::tuple(py::cast(self.axis_names())); })
      .def("size", &Mesh::size)
      .def("axis_index",
           [](const Mesh& self, const std::string& name) { return Value(self.AxisIndex(name)); })
      .def("axes_to_string", &Mesh::AxesToString)
      .def("hlo_string", &MeshHloString, py::arg("spec"))
      .def("__str__", &Mesh::ToString)
      .def("__eq__", [](const Mesh& a, const Mesh& b) { return a == b; })
      .def("__hash__", [](const Mesh& self) { return absl::Hash<Mesh>()(self); });
}

}  // namespace spmd::python
