// SPDX-License-Identifier: Apache-2.0
#include "csrc/python/spec.h"

#include <optional>
#include <string>
#include <vector>

#include "csrc/python/init.h"

namespace spmd::python {
namespace {

std::string Describe(py::handle value) {
  return py::repr(value).cast<std::string>() + " (" +
         py::type::of(value).attr("__name__").cast<std::string>() + ")";
}

constexpr const char* kEntryKinds =
    "an entry is None (not sharded), an axis name or index, a tuple of those (major first), "
    "blocks(n, axes), or UNCONSTRAINED";

std::optional<SpecAxis> ToAxis(py::handle value) {
  if (py::isinstance<py::str>(value)) return SpecAxis(value.cast<std::string>());
  if (py::isinstance<py::bool_>(value) || !PyIndex_Check(value.ptr())) return std::nullopt;
  py::object index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!index) throw py::error_already_set();
  return SpecAxis(index.cast<int64_t>());
}

SpecEntry ToEntry(py::handle value, size_t position) {
  SpecEntry entry;
  if (value.is_none()) return entry;
  if (py::hasattr(value, "is_unconstrained")) {
    entry.unconstrained = true;
    return entry;
  }
  if (py::hasattr(value, "is_blocks")) {
    entry = ToEntry(value.attr("axes"), position);
    entry.blocks = value.attr("n").cast<int64_t>();
    return entry;
  }
  if (std::optional<SpecAxis> axis = ToAxis(value)) {
    entry.axes.push_back(*axis);
    return entry;
  }
  if (!py::isinstance<py::sequence>(value)) {
    throw py::type_error("PartitionSpec: entry " + std::to_string(position) + " is " +
                         Describe(value) + "; " + kEntryKinds);
  }
  for (py::handle item : value) {
    std::optional<SpecAxis> axis = ToAxis(item);
    if (!axis) {
      throw py::type_error("PartitionSpec: entry " + std::to_string(position) + " contains " +
                           Describe(item) + "; " + kEntryKinds);
    }
    entry.axes.push_back(*axis);
  }
  return entry;
}

py::object FromAxis(const SpecAxis& axis) {
  if (const auto* name = std::get_if<std::string>(&axis)) return py::str(*name);
  return py::int_(std::get<int64_t>(axis));
}

py::object FromEntry(const SpecEntry& entry) {
  if (entry.unconstrained) return py::str("UNCONSTRAINED");
  if (entry.axes.empty()) return py::none();
  if (entry.axes.size() == 1) return FromAxis(entry.axes[0]);
  py::tuple axes(entry.axes.size());
  for (size_t k = 0; k < entry.axes.size(); ++k) axes[k] = FromAxis(entry.axes[k]);
  return axes;
}

}  // namespace

PartitionSpec ToSpec(py::handle spec) {
  if (py::isinstance<py::str>(spec) || !py::isinstance<py::sequence>(spec)) {
    throw py::type_error("PartitionSpec: expected a tuple with one entry per dimension, got " +
                         Describe(spec) + "; " + kEntryKinds);
  }
  PartitionSpec result;
  for (py::handle entry : spec) result.push_back(ToEntry(entry, result.size()));
  return result;
}

PartitionSpec ToSpec(py::handle spec, const Mesh& mesh) {
  PartitionSpec result = ToSpec(spec);
  for (SpecEntry& entry : result) {
    for (SpecAxis& axis : entry.axes) {
      const auto* index = std::get_if<int64_t>(&axis);
      if (index == nullptr || *index < 0 || *index >= mesh.rank()) continue;
      axis = SpecAxis(mesh.axis_names()[*index]);
    }
  }
  return result;
}

py::tuple FromSpec(const PartitionSpec& spec) {
  py::tuple result(spec.size());
  for (size_t i = 0; i < spec.size(); ++i) {
    result[i] = FromEntry(spec[i]);
    if (spec[i].blocks != 1) {
      result[i] =
          py::module_::import("torch_spmd.sharding.spec").attr("blocks")(spec[i].blocks, result[i]);
    }
  }
  return result;
}

}  // namespace spmd::python
