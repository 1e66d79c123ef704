// SPDX-License-Identifier: Apache-2.0
// What manual regions (torch_spmd/manual.py) do for each op that is called inside.
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "csrc/python/init.h"
#include "csrc/trace/api/lanes.h"
#include "csrc/trace/pytorch/in_region.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/shape/no_torch_function.h"
#include "csrc/trace/value/buffer.h"
#include "csrc/trace/value/mark_notes.h"

namespace spmd::python {
namespace {

// Whether someone has sharded the tensor, or what it is a view of, over one of the axes. Shards are
// under vmap, and what ops compute has no mark.
bool IsShardedOver(const at::Tensor& t, const py::tuple& axes) {
  constexpr c10::DispatchKeySet kWrappers{c10::DispatchKey::FuncTorchBatched,
                                          c10::DispatchKey::FuncTorchGradWrapper};
  if (t.key_set().has_any(kWrappers) || !trace::Buffer::IsOurs(t)) return false;
  const trace::Buffer& buffer = *trace::BufferOf(t);
  if (buffer.mark == nullptr && trace::NotesOf(buffer) == nullptr) return false;
  const trace::SessionLock lock;
  const trace::MarkPtr mark = trace::MarkOf(t);
  if (mark == nullptr) return false;
  for (const SpecEntry& entry : mark->spec) {
    for (const SpecAxis& axis : entry.axes) {
      const auto* const name = std::get_if<std::string>(&axis);
      if (name == nullptr) continue;
      for (const py::handle& manual : axes) {
        const auto text = py::cast<std::string_view>(manual);
        if (name->starts_with(text) &&
            (name->size() == text.size() || (*name)[text.size()] == ':')) {
          return true;
        }
      }
    }
  }
  return false;
}

// Calls inside.<method>(t) for each tensor t of `value`, which may be a list of them, that is
// sharded over one of the axes.
void Tell(const char* method, PyObject* value, const py::handle& inside, const py::tuple& axes) {
  if (THPVariable_Check(value)) {
    if (IsShardedOver(THPVariable_Unpack(value), axes)) inside.attr(method)(py::handle(value));
  } else if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      Tell(method, PySequence_Fast_GET_ITEM(value, i), inside, axes);
    }
  }
}

// None if there are other values than tensors of the device that have the forms' sizes.
py::object AllToLanes(const py::tuple& tensors, const py::list& forms) {
  if (tensors.empty() || tensors.size() != forms.size()) return py::none();
  std::vector<trace::LaneFormPtr> each;
  for (size_t k = 0; k < forms.size(); ++k) {
    PyObject* const value = PyTuple_GET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(k));
    if (!THPVariable_Check(value)) return py::none();
    const at::Tensor& t = THPVariable_Unpack(value);
    const trace::LaneFormPtr& form = each.emplace_back(py::cast<std::shared_ptr<trace::LaneForm>>(
        PyList_GET_ITEM(forms.ptr(), static_cast<Py_ssize_t>(k))));
    if (t.device().type() != c10::DeviceType::PrivateUse1 || t.layout() != at::kStrided ||
        t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
        t.sizes() != at::IntArrayRef(form->whole.data(), form->whole.size())) {
      return py::none();
    }
  }
  py::list lanes(forms.size());
  for (size_t k = 0; k < each.size(); ++k) {
    lanes[k] = trace::ToLanes(
        THPVariable_Unpack(PyTuple_GET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(k))), each[k]);
  }
  return lanes;
}

}  // namespace

void init_region(py::module& m) {
  m.def(
      "set_in_region", [](bool inside) { return std::exchange(trace::in_region, inside); },
      py::arg("inside"));
  m.def("all_to_lanes", &AllToLanes, py::arg("tensors"), py::arg("forms"));
  // function(*args, **kwargs) as one op. Before, inside.check(t) is called for each tensor that is
  // sharded over one of the axes, and afterwards inside.note(t).
  m.def(
      "call_in_region",
      [](const py::handle& inside, const py::tuple& axes, const py::handle& function,
         const py::tuple& args, const py::handle& kwargs) {
        const trace::NoTorchFunction no_torch_function;
        const bool named = !kwargs.is_none() && PyDict_GET_SIZE(kwargs.ptr()) > 0;
        if (!axes.empty()) {
          Tell("check", args.ptr(), inside, axes);
          if (named) {
            const auto values = py::reinterpret_steal<py::list>(PyDict_Values(kwargs.ptr()));
            Tell("check", values.ptr(), inside, axes);
          }
        }
        const auto result = py::reinterpret_steal<py::object>(
            PyObject_Call(function.ptr(), args.ptr(), named ? kwargs.ptr() : nullptr));
        if (!result) throw py::error_already_set();
        if (!axes.empty()) Tell("note", result.ptr(), inside, axes);
        return result;
      },
      py::arg("inside"), py::arg("axes"), py::arg("function"), py::arg("args"), py::arg("kwargs"));
}

}  // namespace spmd::python
