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
#include "csrc/sharding/layout.h"
#include "csrc/sharding/sharding.h"

namespace spmd::python {
namespace {

py::tuple ToTuple(const std::vector<int64_t>& values) {
  py::tuple result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = values[i];
  return result;
}

Mesh MakeMesh(std::vector<int64_t> device_ids, std::vector<int64_t> shape,
              std::optional<std::vector<std::string>> axis_names,
              std::optional<std::vector<double>> axis_bandwidths) {
  return ValueOrThrow(Mesh::Create(std::move(device_ids), std::move(shape), std::move(axis_names),
                                   std::move(axis_bandwidths)));
}

std::string MeshHloString(const Mesh& mesh, py::handle spec) {
  PartitionSpec parsed = ToSpec(spec);
  GridPtr grid = Grid::Of(mesh);
  int rank = static_cast<int>(parsed.size());
  return HloString(ValueOrThrow(ResolveSpec("NamedSharding", parsed, mesh, *grid, rank)), *grid);
}

// Per device in the mesh's order: (device id, ((begin, end), …)).
py::list DeviceBoxes(const Mesh& mesh, py::handle spec, const std::vector<int64_t>& dims) {
  GridPtr grid = Grid::Of(mesh);
  Sharding sharding = ValueOrThrow(
      ResolveSpec("NamedSharding", ToSpec(spec), mesh, *grid, static_cast<int>(dims.size())));
  Layout layout(grid, sharding, Dims(dims.begin(), dims.end()));
  py::list result;
  for (int64_t position = 0; position < grid->num_devices(); ++position) {
    py::list box;
    for (const Interval& interval : layout.BoxAt(position)) {
      box.append(py::make_tuple(interval.begin, interval.end));
    }
    result.append(py::make_tuple(grid->device_ids()[position], py::tuple(box)));
  }
  return result;
}

}  // namespace

void init_mesh(py::module& m) {
  py::class_<Mesh>(m, "Mesh")
      .def(py::init(&MakeMesh), py::arg("device_ids"), py::arg("mesh_shape"), py::arg("axis_names"),
           py::arg("axis_bandwidths") = py::none())
      .def_property_readonly("device_ids",
                             [](const Mesh& self) { return ToTuple(self.device_ids()); })
      .def_property_readonly("mesh_shape", [](const Mesh& self) { return ToTuple(self.shape()); })
      .def_property_readonly(
          "axis_names", [](const Mesh& self) { return py::tuple(py::cast(self.axis_names())); })
      .def_property_readonly(
          "axis_bandwidths",
          [](const Mesh& self) { return py::tuple(py::cast(self.axis_bandwidths())); })
      .def("size", &Mesh::size)
      .def("axis_index", [](const Mesh& self,
                            const std::string& name) { return ValueOrThrow(self.AxisIndex(name)); })
      .def("axes_to_string", &Mesh::AxesToString)
      .def("hlo_string", &MeshHloString, py::arg("spec"))
      .def("device_boxes", &DeviceBoxes, py::arg("spec"), py::arg("dims"))
      .def("__str__", &Mesh::ToString)
      .def("__eq__", [](const Mesh& a, const Mesh& b) { return a == b; })
      .def("__hash__", [](const Mesh& self) { return absl::Hash<Mesh>()(self); });
}

}  // namespace spmd::python
