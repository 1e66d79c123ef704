// SPDX-License-Identifier: Apache-2.0
#include "csrc/python/host_changes.h"

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/trace/api/register_device.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/run/end_of_step.h"
#include "torch/csrc/autograd/python_variable.h"
#include "torch/csrc/autograd/variable.h"

namespace spmd::python {
namespace {

using trace::Session;

// Counters and learning rates are smaller than this; moments that are kept in the host's memory are
// not.
constexpr size_t kMostBytes = 1024;

bool IsAlive() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

py::object Attribute(py::handle owner, const char* name) {
  return py::reinterpret_steal<py::object>(PyObject_GetAttrString(owner.ptr(), name));
}

py::object WeakReference(py::handle object) {
  auto reference = py::reinterpret_steal<py::object>(PyWeakref_NewRef(object.ptr(), nullptr));
  if (!reference) PyErr_Clear();
  return reference;
}

// The object to which a weak reference refers, or null.
py::object Referent(py::handle reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* object = nullptr;
  PyWeakref_GetRef(reference.ptr(), &object);
  return py::reinterpret_steal<py::object>(object);
#else  // which Python 3.15 has no more
  PyObject* const object = PyWeakref_GetObject(reference.ptr());
  return object == nullptr || object == Py_None ? py::object()
                                                : py::reinterpret_borrow<py::object>(object);
#endif
}

bool IsOurs(py::handle object) {
  return THPVariable_Check(object.ptr()) &&
         THPVariable_Unpack(object.ptr()).device().type() == trace::kDeviceType;
}

bool IsNumber(PyObject* object) {
  return PyFloat_CheckExact(object) || PyLong_CheckExact(object) || PyBool_Check(object);
}

// Whether the entry is still what the change made of it.
bool IsStill(PyObject* current, const py::object& now) {
  if (!now) return true;
  if (current == nullptr) return false;
  if (current == now.ptr()) return true;
  if (PyWeakref_Check(now.ptr())) return Referent(now).ptr() == current;
  if (!IsNumber(current) || !IsNumber(now.ptr())) return false;
  return PyObject_RichCompareBool(current, now.ptr(), Py_EQ) == 1;
}

}  // namespace

DictChanges::~DictChanges() {
  if (!IsAlive()) {  // the objects are left alone
    for (Dict& d : dicts_) d.dict.release(), d.place.owner.release(), d.place.key.release();
    for (Change& c : changes_) {
      for (py::object* o : {&c.place.owner, &c.place.key, &c.key, &c.old, &c.now}) o->release();
    }
    return;
  }
  py::gil_scoped_acquire gil;
  Forget();
  changes_.clear();
  elements_.clear();
}

void DictChanges::Forget() {
  dicts_.clear();
  for (const Entry& e : std::exchange(entries_, {})) {
    Py_DECREF(e.key);
    Py_DECREF(e.value);
  }
}

DictChanges::Place DictChanges::Weak(const Place& place) {
  return {WeakReference(place.owner), place.attribute, place.index,
          place.key ? WeakReference(place.key) : py::object()};
}

py::object DictChanges::Find(const Place& weak) {
  const auto& [owner, attribute, index, key] = weak;
  const py::object object = owner ? Referent(owner) : py::object();
  if (!object) return {};
  py::object found = Attribute(object, attribute);
  if (found && index >= 0) {
    found = !PyList_Check(found.ptr()) || index >= PyList_GET_SIZE(found.ptr())
                ? py::object()
                : py::reinterpret_borrow<py::object>(PyList_GET_ITEM(found.ptr(), index));
  } else if (found && key) {
    const py::object tensor = Referent(key);
    found = !tensor || !PyDict_Check(found.ptr())
                ? py::object()
                : py::reinterpret_borrow<py::object>(PyDict_GetItem(found.ptr(), tensor.ptr()));
  }
  PyErr_Clear();
  return found && PyDict_Check(found.ptr()) ? found : py::object();
}

void DictChanges::Note(py::handle owner, const char* attribute, bool nested) {
  const Place place{py::reinterpret_borrow<py::object>(owner), attribute, -1, {}};
  const py::object found = Attribute(owner, attribute);
  PyErr_Clear();
  if (!found) return;
  if (PyList_Check(found.ptr())) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(found.ptr()); ++i) {
      Place element = place;
      element.index = i;
      NoteDict(std::move(element), PyList_GET_ITEM(found.ptr(), i));
    }
    return;
  }
  NoteDict(place, found);
  if (!nested || !PyDict_Check(found.ptr())) return;
  const auto count = static_cast<size_t>(PyDict_GET_SIZE(found.ptr()));
  dicts_.reserve(dicts_.size() + count + 16);
  entries_.reserve(entries_.size() + 4 * count + 128);
  elements_.reserve(elements_.size() + count);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(found.ptr(), &at, &key, &value);) {
    if (!PyDict_Check(value) || !IsOurs(key)) continue;
    Place inner = place;
    inner.key = py::reinterpret_borrow<py::object>(key);
    NoteDict(std::move(inner), value);
  }
}

void DictChanges::NoteDict(Place place, py::handle dict) {
  if (!PyDict_Check(dict.ptr())) return;
  const size_t begin = entries_.size();
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict.ptr(), &at, &key, &value);) {
    Py_INCREF(key);
    Py_INCREF(value);
    entries_.push_back({key, value});
    if (THPVariable_Check(value)) NoteElements(THPVariable_Unpack(value));
  }
  dicts_.push_back(
      {std::move(place), py::reinterpret_borrow<py::object>(dict), begin, entries_.size()});
}

void DictChanges::NoteElements(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || tensor.layout() != at::kStrided) return;
  if (tensor.is_inference() || !tensor.is_contiguous() || tensor.nbytes() > kMostBytes) return;
  if (tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python)) return;
  const auto version = static_cast<int64_t>(tensor._version());
  elements_.push_back(
      {tensor, version, version,
       std::string(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes())});
}

bool DictChanges::IsAsBefore(const Dict& d) const {
  if (static_cast<size_t>(PyDict_GET_SIZE(d.dict.ptr())) != d.end - d.begin) return false;
  size_t k = d.begin;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(d.dict.ptr(), &at, &key, &value); ++k) {
    if (entries_[k].key != key || entries_[k].value != value) return false;
  }
  return true;
}

void DictChanges::Compare(const Dict& d) {
  const auto borrowed = [](PyObject* o) { return py::reinterpret_borrow<py::object>(o); };
  const Place place = Weak(d.place);
  const py::dict before;
  for (size_t k = d.begin; k < d.end; ++k) {
    const Entry& e = entries_[k];
    PyDict_SetItem(before.ptr(), e.key, e.value);
    PyObject* const now = PyDict_GetItem(d.dict.ptr(), e.key);
    if (now == e.value) continue;
    Change change{place, borrowed(e.key), borrowed(e.value), {}};
    if (now != nullptr) change.now = IsNumber(now) ? borrowed(now) : WeakReference(now);
    changes_.push_back(std::move(change));
  }
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(d.dict.ptr(), &at, &key, &value);) {
    if (PyDict_GetItem(before.ptr(), key) != nullptr) continue;
    changes_.push_back({place, borrowed(key), {}, {}});
  }
}

void DictChanges::Close() {
  py::gil_scoped_acquire gil;
  for (const Dict& d : dicts_) {
    if (!IsAsBefore(d)) Compare(d);
  }
  for (Elements& e : elements_) e.after = static_cast<int64_t>(e.tensor._version());
  std::erase_if(elements_, [](const Elements& e) { return e.after == e.before; });
  Forget();
}

void DictChanges::Undo() {
  if (!IsAlive()) return;
  py::gil_scoped_acquire gil;
  for (const Elements& e : elements_) {
    if (static_cast<int64_t>(e.tensor._version()) != e.after) continue;
    std::memcpy(e.tensor.mutable_data_ptr(), e.bytes.data(), e.bytes.size());
    // The step before this one must also see that nobody has written these elements since.
    c10::VariableVersion version = torch::autograd::impl::version_counter(e.tensor);
    version.set_version(e.before);
  }
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
    const py::object dict = Find(change->place);
    if (!dict) continue;
    PyObject* const current = PyDict_GetItem(dict.ptr(), change->key.ptr());
    if (!IsStill(current, change->now)) continue;
    if (change->old) {
      PyDict_SetItem(dict.ptr(), change->key.ptr(), change->old.ptr());
    } else if (current != nullptr) {
      PyDict_DelItem(dict.ptr(), change->key.ptr());
    }
    PyErr_Clear();
  }
}

namespace {

bool HasOurs(py::handle groups) {
  for (const py::handle group : py::reinterpret_borrow<py::list>(groups)) {
    for (const py::handle param : group["params"]) {
      if (IsOurs(param)) return true;
    }
  }
  return false;
}

// Does nothing for optimizers of other devices.
void OptimizerBegins(py::handle optimizer) {
  if (!HasOurs(optimizer.attr("param_groups"))) return;
  auto changes = std::make_shared<DictChanges>();
  changes->Note(optimizer, "state", /*nested=*/true);
  changes->Note(optimizer, "param_groups");
  changes->Note(optimizer, "__dict__");
  ThrowIfError(Session::Get().OptimizerBegins(optimizer.ptr(), std::move(changes)));
}

// The gradients on the device that the optimizer's parameters hold.
std::vector<at::Tensor> GradientsOf(py::handle optimizer) {
  std::vector<at::Tensor> gradients;
  for (const py::handle group : py::reinterpret_borrow<py::list>(optimizer.attr("param_groups"))) {
    for (const py::handle param : group["params"]) {
      if (!THPVariable_Check(param.ptr())) continue;
      const at::Tensor& gradient = THPVariable_Unpack(param.ptr()).grad();
      if (trace::Buffer::IsOurs(gradient)) gradients.push_back(gradient);
    }
  }
  return gradients;
}

void OptimizerStepped(py::handle optimizer, const trace::GradientHabitPtr& habit) {
  std::vector<at::Tensor> gradients;
  if (!habit->kept) gradients = GradientsOf(optimizer);
  ThrowIfError(Session::Get().OptimizerStepped(optimizer.ptr(), gradients, habit));
}

}  // namespace

void init_host_changes(py::module& m) {
  py::class_<DictChanges, std::shared_ptr<DictChanges>>(m, "DictChanges")
      .def(py::init<>())
      .def("note", [](DictChanges& changes, py::handle owner, const std::string& attribute) {
        static const std::set<std::string> names = {"__dict__", "param_groups", "_buffers"};
        const auto name = names.find(attribute);
        TORCH_CHECK_VALUE(name != names.end(), "DictChanges.note: attribute '", attribute, "'");
        changes.Note(owner, name->c_str());
      });
  m.def("optimizer_begins", &OptimizerBegins, py::arg("optimizer"));
  py::class_<trace::GradientHabit, trace::GradientHabitPtr>(m, "GradientHabit")
      .def(py::init<>())
      .def_readwrite("kept", &trace::GradientHabit::kept);
  m.def("optimizer_stepped", &OptimizerStepped, py::arg("optimizer"), py::arg("habit"));
  m.def("gradients_zeroed", [] { ThrowIfError(Session::Get().GradientsZeroed()); });
  m.def("run_waiting_step", [] { ThrowIfError(Session::Get().RunWaitingStep()); });
  m.def("optimizer_raised",
        [](py::handle optimizer) { Session::Get().OptimizerRaised(optimizer.ptr()); });
  m.def("add_to_last_step", [](py::handle optimizer, std::shared_ptr<DictChanges> changes) {
    Session::Get().AddToLastStep(optimizer.is_none() ? nullptr : optimizer.ptr(),
                                 std::move(changes));
  });
}

}  // namespace spmd::python
