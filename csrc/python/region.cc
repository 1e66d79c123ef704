// SPDX-License-Identifier: Apache-2.0
// What manual regions (torch_spmd/manual.py) do at their borders and for each op that is called
// inside.
#include <ATen/functorch/BatchedTensorImpl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/cleanup/cleanup.h"
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

namespace functorch = at::functorch;

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

// How arguments of known sizes become the shards that a region sees: `tensors` become lanes, and
// lane dimension i of tensor k is that of the region's axis axes[k][i], which has sizes[…] devices.
struct Entrance {
  std::vector<trace::LaneFormPtr> forms;
  std::vector<std::vector<int64_t>> axes;
  std::vector<int64_t> sizes;
};

// PyTorch's functions for levels of vmap. Their C++ header needs one that PyTorch does not install.
struct VmapLevels {
  py::object enter, leave, different = py::str("different");
};

const VmapLevels& Levels() {
  static const VmapLevels* const levels = [] {
    const py::module functions = py::module::import("torch._C").attr("_functorch");
    return new VmapLevels{functions.attr("_vmap_increment_nesting"),
                          functions.attr("_vmap_decrement_nesting")};
  }();
  return *levels;
}

// Enters a region: one level of vmap for each of its axes, which have that many devices. Returns the
// first level; the others follow.
int64_t EnterLevels(const std::vector<int64_t>& sizes) {
  std::vector<int64_t>& levels = trace::region_levels;
  for (const int64_t size : sizes) {
    levels.push_back(Levels().enter(size, Levels().different).cast<int64_t>());
  }
  return levels.back() - static_cast<int64_t>(sizes.size()) + 1;
}

// Leaves the levels from `first` on, as far as the thread is in them.
void LeaveLevels(int64_t first) {
  std::vector<int64_t>& levels = trace::region_levels;
  for (; !levels.empty() && levels.back() >= first; levels.pop_back()) Levels().leave();
}

// Enters a region with arguments. Returns the first level and the shards, or None, having done
// nothing, if there are other values than tensors of the device that have the forms' sizes.
py::object EnterWith(const Entrance& entrance, const py::tuple& args) {
  const size_t n = entrance.forms.size();
  if (args.size() != n) return py::none();
  std::vector<at::Tensor> tensors;
  tensors.reserve(n);
  for (size_t k = 0; k < n; ++k) {
    PyObject* const value = PyTuple_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(k));
    if (!THPVariable_Check(value)) return py::none();
    const at::Tensor& t = tensors.emplace_back(THPVariable_Unpack(value));
    const Dims& whole = entrance.forms[k]->whole;
    if (t.device().type() != c10::DeviceType::PrivateUse1 || t.layout() != at::kStrided ||
        t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
        t.sizes() != at::IntArrayRef(whole.data(), whole.size())) {
      return py::none();
    }
  }
  tensors = trace::ToLanes(tensors, entrance.forms);
  const int64_t first = EnterLevels(entrance.sizes);
  absl::Cleanup leave = [first] { LeaveLevels(first); };
  py::tuple shards(n);
  for (size_t k = 0; k < n; ++k) {
    at::Tensor t = std::move(tensors[k]);
    for (const int64_t axis : entrance.axes[k]) {
      t = functorch::makeBatched(std::move(t), /*dim=*/0, first + axis);
    }
    shards[k] = py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(t)));
  }
  std::move(leave).Cancel();
  return py::make_tuple(first, std::move(shards));
}


// How a result whose shards have the sizes `shard` becomes a tensor. named[i] tells whether its
// spec names the region's axis i.
struct Exit {
  trace::LaneFormPtr form;
  std::vector<int64_t> shard;
  std::vector<bool> named;
  std::vector<int64_t> sizes;
};

// The value behind a tensor that is batched at this level, and the dimension; else null.
const functorch::BatchedTensorImpl* BatchedAt(const at::Tensor& t, int64_t level) {
  const functorch::BatchedTensorImpl* const impl = functorch::maybeGetBatchedImpl(t);
  return impl != nullptr && impl->level() == level ? impl : nullptr;
}

// Leaves the region whose first level is `first` with a result. Returns the tensor, or None, having
// done nothing, for a value of other sizes, and one that varies along an axis that its spec does
// not name.
py::object LeaveWith(const Exit& exit, const py::handle& result, int64_t first) {
  if (!THPVariable_Check(result.ptr())) return py::none();
  at::Tensor t = THPVariable_Unpack(result.ptr());
  if (t.device().type() != c10::DeviceType::PrivateUse1 || t.layout() != at::kStrided ||
      t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
      t.sizes() != at::IntArrayRef(exit.shard)) {
    return py::none();
  }
  const auto axes = static_cast<int64_t>(exit.sizes.size());
  at::Tensor inner = t;
  for (int64_t axis = axes - 1; axis >= 0; --axis) {
    const functorch::BatchedTensorImpl* const varies = BatchedAt(inner, first + axis);
    if (varies == nullptr) continue;
    if (!exit.named[axis]) return py::none();
    inner = varies->value();
  }
  // What is still wrapped belongs to a level outside of the region, or to no level any more.
  if (const functorch::BatchedTensorImpl* const impl = functorch::maybeGetBatchedImpl(inner);
      (impl != nullptr && impl->level() >= first) ||
      inner.key_set().has(c10::DispatchKey::FuncTorchGradWrapper)) {
    return py::none();
  }
  for (int64_t axis = axes - 1; axis >= 0; --axis) {
    LeaveLevels(first + axis);
    const functorch::BatchedTensorImpl* const varies = BatchedAt(t, first + axis);
    if (varies != nullptr) {
      const int64_t dim = varies->bdim();
      at::Tensor value = varies->value();
      t = dim == 0 ? std::move(value) : value.movedim(dim, 0);
    } else if (exit.named[axis]) {
      std::vector<int64_t> sizes(t.sizes().begin(), t.sizes().end());
      sizes.insert(sizes.begin(), exit.sizes[axis]);
      t = t.expand(sizes);
    }
  }
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(trace::FromLanes(t, exit.form)));
}

}  // namespace

void init_region(py::module& m) {
  py::class_<Entrance>(m, "RegionEntrance")
      .def(py::init([](const std::vector<std::shared_ptr<trace::LaneForm>>& forms,
                       std::vector<std::vector<int64_t>> axes, std::vector<int64_t> sizes) {
             return Entrance{{forms.begin(), forms.end()}, std::move(axes), std::move(sizes)};
           }),
           py::arg("forms"), py::arg("axes"), py::arg("sizes"))
      .def("enter", &EnterWith, py::arg("args"));
  py::class_<Exit>(m, "RegionExit")
      .def(py::init([](const std::shared_ptr<trace::LaneForm>& form, std::vector<int64_t> shard,
                       std::vector<bool> named, std::vector<int64_t> sizes) {
             return Exit{form, std::move(shard), std::move(named), std::move(sizes)};
           }),
           py::arg("form"), py::arg("shard"), py::arg("named"), py::arg("sizes"))
      .def("leave", &LeaveWith, py::arg("result"), py::arg("level"));
  m.def("enter_levels", &EnterLevels, py::arg("sizes"));
  m.def("leave_levels", &LeaveLevels, py::arg("first"));
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
