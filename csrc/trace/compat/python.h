// SPDX-License-Identifier: Apache-2.0
// Tensors and threads of Python (see csrc/trace/compat/keys.h). For csrc/python.
#pragma once

#include <ATen/ThreadLocalPythonObjects.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <optional>
#include <string>

namespace spmd::compat {

// The tensor that `object` is, or null. Instead: pybind11's cast, which throws for other objects.
// Without: the hooks of optimizers and regions ask Python.
inline const at::Tensor* TensorOf(PyObject* object) {
  return THPVariable_Check(object) ? &THPVariable_Unpack(object) : nullptr;
}

// Whether `object` is a tensor or a parameter of no subclass. Instead: comparing types in Python.
// Without: sums over an axis of a region are as slow as other collectives.
inline bool IsPlainTensor(PyObject* object) { return THPVariable_CheckExact(object); }

// Keeps an object, whose reference it takes, in the state that PyTorch passes on to other threads:
// as torch._C._stash_obj_in_tls, which of PyTorch 2.11 takes a reference that it has not been
// given. Instead: contextvars, which are not passed on. Without: use_mesh raises.
inline void KeepInThread(const std::string& key, PyObject* value) {
  at::impl::ThreadLocalPythonObjects::set(
      key, std::make_shared<c10::SafePyObject>(value, getPyInterpreter()));
}

// Python's state of this thread, or null. Instead: PyThreadState_GetUnchecked of Python 3.13.
// Without: it is not known whether a thread holds the GIL.
inline PyThreadState* PythonThread() {
#if PY_VERSION_HEX >= 0x030D0000
  return PyThreadState_GetUnchecked();
#else
  return _PyThreadState_UncheckedGet();
#endif
}

}  // namespace spmd::compat
