// SPDX-License-Identifier: Apache-2.0
// What manual regions (torch_spmd/manual.py) do at their borders.
#include "csrc/trace/recorder/region.h"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "csrc/python/init.h"
#include "csrc/trace/api/lanes.h"

namespace spmd::python {
namespace {

namespace functorch = at::functorch;

// How arguments of known sizes become the shards that a region sees: `tensors` become lanes, and
// lane dimension i of tensor k is that of the region's axis axes[k][i], which has sizes[…] devices.
struct Entrance {
  std::vector<trace::LaneFormPtr> forms;
  std::vector<std::vector<int64_t>> axes;
  std::vector<int64_t> sizes;
  std::vector<std::string> checked;  // the axes over which tensors from outside are refused
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

// The levels of the regions that a thread is in, the outermost first.
thread_local std::vector<int64_t> levels_entered;

// Enters a region: one level of vmap for each of its axes, which have that many devices. Returns
// the first level; the others follow.
int64_t EnterLevels(const std::vector<int64_t>& sizes, const std::vector<std::string>& checked) {
  for (const int64_t size : sizes) {
    levels_entered.push_back(Levels().enter(size, Levels().different).cast<int64_t>());
  }
  const int64_t first = levels_entered.back() - static_cast<int64_t>(sizes.size()) + 1;
  trace::EnterRegion(first, checked);
  return first;
}

// Leaves the levels from `first` on, as far as the thread is in them.
void LeaveLevels(int64_t first) {
  trace::LeaveRegions(first);
  for (; !levels_entered.empty() && levels_entered.back() >= first; levels_entered.pop_back()) {
    Levels().leave();
  }
}

// Whether it is a dense tensor of the device with these sizes.
bool IsOfSizes(const at::Tensor& t, at::IntArrayRef sizes) {
  return t.device().type() == c10::DeviceType::PrivateUse1 && t.layout() == at::kStrided &&
         !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && t.sizes() == sizes;
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
    if (!IsOfSizes(t, {whole.data(), whole.size()})) return py::none();
  }
  tensors = trace::ToLanes(tensors, entrance.forms);
  const int64_t first = EnterLevels(entrance.sizes, entrance.checked);
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
  if (!IsOfSizes(t, exit.shard)) return py::none();
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
                       std::vector<std::vector<int64_t>> axes, std::vector<int64_t> sizes,
                       std::vector<std::string> checked) {
             return Entrance{{forms.begin(), forms.end()},
                             std::move(axes),
                             std::move(sizes),
                             std::move(checked)};
           }),
           py::arg("forms"), py::arg("axes"), py::arg("sizes"), py::arg("checked"))
      .def("enter", &EnterWith, py::arg("args"));
  py::class_<Exit>(m, "RegionExit")
      .def(py::init([](const std::shared_ptr<trace::LaneForm>& form, std::vector<int64_t> shard,
                       std::vector<bool> named, std::vector<int64_t> sizes) {
             return Exit{form, std::move(shard), std::move(named), std::move(sizes)};
           }),
           py::arg("form"), py::arg("shard"), py::arg("named"), py::arg("sizes"))
      .def("leave", &LeaveWith, py::arg("result"), py::arg("level"));
  m.def("enter_levels", &EnterLevels, py::arg("sizes"), py::arg("checked"));
  m.def("leave_levels", &LeaveLevels, py::arg("first"));
}

}  // namespace spmd::python
