// SPDX-License-Identifier: Apache-2.0
#include "csrc/mesh/mesh.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "csrc/mesh/grid.h"
#include "csrc/mesh/mesh_text.h"
#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/python/spec.h"
#include "csrc/sharding/axis_part.h"
#include "csrc/sharding/sharding.h"
#include "csrc/trace/compat/python.h"

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

Mesh MeshFromText(const std::string& text) {
  Scanner in(text);
  Mesh mesh = ValueOrThrow(ParseMeshText(in));
  ThrowIfError(in.ExpectEnd());
  return mesh;
}

struct Resolved {
  GridPtr grid;
  Sharding sharding;
};
Resolved Resolve(const Mesh& mesh, const PartitionSpec& spec) {
  std::vector<std::string> names;
  for (const SpecEntry& entry : spec) {
    for (const SpecAxis& axis : entry.axes) {
      if (const auto* name = std::get_if<std::string>(&axis)) names.push_back(*name);
    }
  }
  GridPtr grid = GridWithParts(mesh, names);
  const int rank = static_cast<int>(spec.size());
  return {grid, ValueOrThrow(ResolveSpec("NamedSharding", spec, mesh, *grid, rank))};
}

std::string MeshHloString(const Mesh& mesh, py::handle spec) {
  const Resolved resolved = Resolve(mesh, ToSpec(spec));
  return HloString(resolved.sharding, *resolved.grid);
}

// The spec in canonical form, which equal shardings have in common: whole axes by name.
py::tuple CanonicalSpec(const Mesh& mesh, py::handle spec) {
  const PartitionSpec given = ToSpec(spec);
  const Resolved resolved = Resolve(mesh, given);
  PartitionSpec canonical = SpecOf(resolved.sharding, *resolved.grid, mesh);
  for (size_t d = 0; d < given.size(); ++d) {
    if (!canonical[d].axes.empty()) canonical[d].blocks = given[d].blocks;
  }
  return FromSpec(canonical);
}

// An axis part such as "model:0" as the tuple (axis, size of the parts that are major to it, size).
py::tuple PartOfAxis(const Mesh& mesh, const std::string& name) {
  const AxisPart part = ValueOrThrow(ParseAxisPart(name, mesh));
  return py::make_tuple(mesh.axis_names()[part.axis], part.before, part.size);
}

void KeepInThread(const std::string& key, py::object value) {
  compat::KeepInThread(key, value.release().ptr());
}

}  // namespace

void init_mesh(py::module& m) {
  m.def("keep_in_thread", &KeepInThread, py::arg("key"), py::arg("value"));
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
      .def("canonical_spec", &CanonicalSpec, py::arg("spec"))
      .def("part_of_axis", &PartOfAxis, py::arg("name"))
      .def("text", &MeshText)
      .def_static("from_text", &MeshFromText, py::arg("text"))
      .def("__str__", &Mesh::ToString)
      .def("__eq__", [](const Mesh& a, const Mesh& b) { return a == b; })
      .def("__hash__", [](const Mesh& self) { return absl::Hash<Mesh>()(self); });
}

}  // namespace spmd::python
