// SPDX-License-Identifier: Apache-2.0
// What manual regions (torch_spmd/manual.py) do at their borders.
#include "csrc/trace/recorder/region.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/sum.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "csrc/python/init.h"
#include "csrc/trace/api/lanes.h"
#include "csrc/trace/pytorch/region_gradient.h"

namespace spmd::python {
namespace {

namespace functorch = at::functorch;

// --- the regions that a thread is in ---

// PyTorch's functions for levels of vmap. Their C++ header needs one that PyTorch does not install.
struct VmapLevels {
  py::object enter, leave, randomness = py::str("different");
};

const VmapLevels& Levels() {
  static const VmapLevels* const levels = [] {
    const py::module functions = py::module::import("torch._C").attr("_functorch");
    return new VmapLevels{functions.attr("_vmap_increment_nesting"),
                          functions.attr("_vmap_decrement_nesting")};
  }();
  return *levels;
}

struct RegionAxes {
  py::object mesh;
  std::vector<std::string> names;
  std::vector<int64_t> sizes;
  std::vector<std::string> checked;  // the axes over which tensors from outside are refused
};
using RegionAxesPtr = std::shared_ptr<const RegionAxes>;

// An axis of a region: number `which` of `region`. `object` is what Python sees of it, made when it
// is asked for.
struct EnteredAxis {
  RegionAxesPtr region;
  size_t which;
  int64_t level;
  py::object object;

  const std::string& name() const { return region->names[which]; }
  const py::object& Object() {
    static const auto* const type =
        new py::object(py::module::import("torch_spmd.manual").attr("ManualAxis"));
    if (!object) object = (*type)(region->mesh, name(), region->sizes[which], level);
    return object;
  }
};
// The axes of the regions that a thread is in, the outermost first.
thread_local std::vector<EnteredAxis> entered_axes;

// Enters a region: one level of vmap for each of its axes. Returns the first level; the others
// follow.
int64_t EnterRegion(const RegionAxesPtr& region) {
  for (size_t i = 0; i < region->sizes.size(); ++i) {
    const auto level = Levels().enter(region->sizes[i], Levels().randomness).cast<int64_t>();
    entered_axes.push_back({region, i, level, {}});
  }
  const auto axes = static_cast<int64_t>(region->sizes.size());
  const int64_t first = entered_axes.back().level - axes + 1;
  trace::EnterRegion(first, &region->checked);
  return first;
}

// Leaves the levels from `first` on, as far as the thread is in them.
void LeaveLevels(int64_t first) {
  trace::LeaveRegions(first);
  for (; !entered_axes.empty() && entered_axes.back().level >= first; entered_axes.pop_back()) {
    Levels().leave();
  }
}

py::list EnteredAxes() {
  py::list objects;
  for (EnteredAxis& axis : entered_axes) objects.append(axis.Object());
  return objects;
}

// Lets the thread be in regions of these axes, without entering levels. Returns those before. The
// device is told of them, too, since what is computed again in a backward pass is to be recorded as
// it was.
py::list ReplaceAxes(const py::list& objects) {
  static const std::vector<std::string> none_checked;
  py::list before = EnteredAxes();
  if (!entered_axes.empty() && objects.empty()) trace::LeaveRegions(entered_axes.front().level);
  if (entered_axes.empty() && !objects.empty()) {
    trace::EnterRegion(objects[0].attr("level").cast<int64_t>(), &none_checked);
  }
  entered_axes.clear();
  for (const py::handle& axis : objects) {
    auto region =
        std::make_shared<const RegionAxes>(RegionAxes{axis.attr("mesh"),
                                                      {axis.attr("name").cast<std::string>()},
                                                      {axis.attr("size").cast<int64_t>()},
                                                      {}});
    entered_axes.push_back({std::move(region), 0, axis.attr("level").cast<int64_t>(),
                            py::reinterpret_borrow<py::object>(axis)});
  }
  return before;
}

// The innermost axis of that name, or null.
EnteredAxis* FindAxis(std::string_view name) {
  const auto it = std::find_if(entered_axes.rbegin(), entered_axes.rend(),
                               [&](const EnteredAxis& axis) { return axis.name() == name; });
  return it == entered_axes.rend() ? nullptr : &*it;
}

// The same for a Python string, which may be no Unicode text.
EnteredAxis* FindAxis(const py::str& name) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
  if (text == nullptr) PyErr_Clear();
  return text == nullptr ? nullptr : FindAxis(std::string_view(text, size));
}

py::object AxisNamed(const py::str& name) {
  EnteredAxis* const axis = FindAxis(name);
  return axis == nullptr ? py::none() : axis->Object();
}

// --- into a region and out of it ---

py::object ToPython(at::Tensor t) {
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(t)));
}

// How arguments of known sizes become the shards that a region sees: `tensors` become lanes, and
// lane dimension i of tensor k is that of the region's axis axes[k][i].
struct Entrance {
  std::vector<trace::LaneFormPtr> forms;
  std::vector<std::vector<int64_t>> axes;
};

// How a result whose shards have the sizes `shard` becomes a tensor. named[i] tells whether its
// spec names the region's axis i.
struct Exit {
  trace::LaneFormPtr form;
  std::vector<int64_t> shard;
  std::vector<bool> named;
  std::vector<int64_t> sizes;  // of the axes
};

// Whether it is a dense tensor of the device with these sizes.
bool IsOfSizes(const at::Tensor& t, at::IntArrayRef sizes) {
  return t.device().type() == c10::DeviceType::PrivateUse1 && t.layout() == at::kStrided &&
         !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && t.sizes() == sizes;
}

// The arguments, or nullopt if there are other values than tensors of the device that have the
// forms' sizes.
std::optional<std::vector<at::Tensor>> TensorsThatFit(const Entrance& entrance,
                                                      const py::tuple& args) {
  const size_t n = entrance.forms.size();
  if (args.size() != n) return std::nullopt;
  std::vector<at::Tensor> tensors;
  tensors.reserve(n);
  for (size_t k = 0; k < n; ++k) {
    PyObject* const value = PyTuple_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(k));
    if (!THPVariable_Check(value)) return std::nullopt;
    const at::Tensor& t = tensors.emplace_back(THPVariable_Unpack(value));
    const Dims& whole = entrance.forms[k]->whole;
    if (!IsOfSizes(t, {whole.data(), whole.size()})) return std::nullopt;
  }
  return tensors;
}

// What the function of the region sees of tensors whose lanes are apart.
py::tuple Shards(const Entrance& entrance, std::vector<at::Tensor> lanes, int64_t first_level) {
  py::tuple shards(lanes.size());
  for (size_t k = 0; k < lanes.size(); ++k) {
    at::Tensor t = std::move(lanes[k]);
    for (const int64_t axis : entrance.axes[k]) {
      t = functorch::makeBatched(std::move(t), /*dim=*/0, first_level + axis);
    }
    shards[k] = ToPython(std::move(t));
  }
  return shards;
}

// The value behind a tensor that is batched at this level, and the dimension; else null.
const functorch::BatchedTensorImpl* BatchedAt(const at::Tensor& t, int64_t level) {
  const functorch::BatchedTensorImpl* const impl = functorch::maybeGetBatchedImpl(t);
  return impl != nullptr && impl->level() == level ? impl : nullptr;
}

bool IsWrapped(const at::Tensor& t) {
  return functorch::isBatchedTensor(t) || t.key_set().has(c10::DispatchKey::FuncTorchGradWrapper);
}

// Leaves the region whose first level is `first` with a result. Returns the tensor, or nullopt,
// having done nothing, for a value of other sizes, and one that varies along an axis that its spec
// does not name.
std::optional<at::Tensor> LeaveWith(const Exit& exit, const py::handle& result, int64_t first) {
  if (!THPVariable_Check(result.ptr())) return std::nullopt;
  at::Tensor t = THPVariable_Unpack(result.ptr());
  if (!IsOfSizes(t, exit.shard)) return std::nullopt;
  const auto axes = static_cast<int64_t>(exit.sizes.size());
  at::Tensor inner = t;
  for (int64_t axis = axes - 1; axis >= 0; --axis) {
    const functorch::BatchedTensorImpl* const varies = BatchedAt(inner, first + axis);
    if (varies == nullptr) continue;
    if (!exit.named[axis]) return std::nullopt;
    inner = varies->value();
  }
  // What is still wrapped belongs to a level outside of the region, or to no level any more.
  if (const functorch::BatchedTensorImpl* const impl = functorch::maybeGetBatchedImpl(inner);
      (impl != nullptr && impl->level() >= first) ||
      inner.key_set().has(c10::DispatchKey::FuncTorchGradWrapper)) {
    return std::nullopt;
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
  return trace::FromLanes(t, exit.form);
}

// A region with arguments of known sizes. `region` is Python's, whose function, `_explain`,
// `_exit_of` and `_finish` are called. It is not held, since it holds this object.
class KnownRegion {
 public:
  KnownRegion(RegionAxesPtr axes, Entrance entrance)
      : axes_(std::move(axes)), entrance_(std::move(entrance)) {}

  // Runs the region. Returns NotImplemented, having done nothing, if the arguments do not fit, or
  // if the thread is in a region over one of the axes.
  py::object Run(const py::object& region, const py::tuple& args) {
    for (const std::string& name : axes_->names) {
      if (FindAxis(std::string_view(name)) != nullptr) return NotImplemented();
    }
    std::optional<std::vector<at::Tensor>> tensors = TensorsThatFit(entrance_, args);
    if (!tensors.has_value()) return NotImplemented();
    const trace::RegionStart start = trace::BeginRegion();
    std::vector<at::Tensor> lanes = trace::ToLanes(*tensors, entrance_.forms);
    const int64_t first = EnterRegion(axes_);
    const absl::Cleanup leave = [first] { LeaveLevels(first); };
    const py::object outputs = Call(region, Shards(entrance_, std::move(lanes), first));
    std::optional<at::Tensor> result;
    if (exit_ != nullptr) result = LeaveWith(*exit_, outputs, first);
    if (!result.has_value()) {
      exit_ = region.attr("_exit_of")(outputs).cast<std::shared_ptr<Exit>>();
      if (exit_ != nullptr) result = LeaveWith(*exit_, outputs, first);
    }
    if (!result.has_value()) return region.attr("_finish")(outputs, first);
    trace::JoinNodes(*result, start);
    return ToPython(*std::move(result));
  }

 private:
  static py::object NotImplemented() {
    return py::reinterpret_borrow<py::object>(Py_NotImplemented);
  }

  static py::object Call(const py::object& region, const py::tuple& shards) {
    const py::object f = region.attr("f");
    PyObject* const outputs = PyObject_CallObject(f.ptr(), shards.ptr());
    if (outputs != nullptr) return py::reinterpret_steal<py::object>(outputs);
    const py::error_already_set error;
    if (error.matches(PyExc_Exception)) {
      PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
      region.attr("_explain")(error.value());
    }
    throw error;
  }

  const RegionAxesPtr axes_;
  const Entrance entrance_;
  std::shared_ptr<Exit> exit_;  // of the latest result, or null
};

// --- collectives ---

// The sum over the axis of a shard that varies along it, or None for anything that more than one
// level, or something else that watches ops, has to see.
py::object SumOverAxis(const py::handle& x, const py::str& name) {
  if (!THPVariable_CheckExact(x.ptr()) || at::impl::torch_function_mode_enabled()) {
    return py::none();
  }
  const EnteredAxis* const axis = FindAxis(name);
  if (axis == nullptr) return py::none();
  const at::Tensor& t = THPVariable_Unpack(x.ptr());
  const functorch::BatchedTensorImpl* const varies = BatchedAt(t, axis->level);
  if (varies == nullptr || IsWrapped(varies->value()) ||
      c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python)) {
    return py::none();
  }
  // The value is of no other level, so the levels need not see the op.
  using c10::DispatchKey;
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKeySet(
      {DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode,
       DispatchKey::FuncTorchVmapMode, DispatchKey::FuncTorchBatched}));
  const bool counts = t.scalar_type() == at::kBool;
  return ToPython(at::sum(varies->value(), varies->bdim(), /*keepdim=*/false,
                          counts ? std::nullopt : std::optional(t.scalar_type())));
}

}  // namespace

void init_region(py::module& m) {
  py::class_<Exit, std::shared_ptr<Exit>>(m, "RegionExit")
      .def(py::init([](const std::shared_ptr<trace::LaneForm>& form, std::vector<int64_t> shard,
                       std::vector<bool> named, std::vector<int64_t> sizes) {
             return Exit{form, std::move(shard), std::move(named), std::move(sizes)};
           }),
           py::arg("form"), py::arg("shard"), py::arg("named"), py::arg("sizes"));
  py::class_<RegionAxes, std::shared_ptr<RegionAxes>>(m, "RegionAxes")
      .def(py::init([](py::object mesh, std::vector<std::string> names, std::vector<int64_t> sizes,
                       std::vector<std::string> checked) {
             return RegionAxes{std::move(mesh), std::move(names), std::move(sizes),
                               std::move(checked)};
           }),
           py::arg("mesh"), py::arg("names"), py::arg("sizes"), py::arg("checked"))
      .def("enter", [](const std::shared_ptr<RegionAxes>& region) { return EnterRegion(region); });
  py::class_<KnownRegion>(m, "KnownRegion")
      .def(py::init([](const std::shared_ptr<RegionAxes>& axes,
                       const std::vector<std::shared_ptr<trace::LaneForm>>& forms,
                       std::vector<std::vector<int64_t>> places) {
             return std::make_unique<KnownRegion>(
                 axes, Entrance{{forms.begin(), forms.end()}, std::move(places)});
           }),
           py::arg("axes"), py::arg("forms"), py::arg("places"))
      .def("run", &KnownRegion::Run, py::arg("region"), py::arg("args"));
  m.def("leave_levels", &LeaveLevels, py::arg("first"));
  m.def("entered_axes", &EnteredAxes);
  m.def("replace_axes", &ReplaceAxes, py::arg("axes"));
  m.def("axis_named", &AxisNamed, py::arg("name"));
  m.def("sum_over_axis", &SumOverAxis, py::arg("x"), py::arg("name"));
}

}  // namespace spmd::python
