// SPDX-License-Identifier: Apache-2.0
#include "csrc/python/errors.h"

#include <string>

#include "c10/util/Exception.h"
#include "torch/csrc/Exceptions.h"

namespace spmd::python {
namespace {

[[noreturn]] void Raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw py::error_already_set();
}

PyObject* PythonTypeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return PyExc_ValueError;
    case absl::StatusCode::kOutOfRange:
      return PyExc_IndexError;
    case absl::StatusCode::kUnimplemented:
      return PyExc_NotImplementedError;
    case absl::StatusCode::kResourceExhausted:
      return THPException_OutOfMemoryError;
    default:
      return PyExc_RuntimeError;
  }
}

void Translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const c10::IndexError& e) {
    PyErr_SetString(PyExc_IndexError, e.what_without_backtrace());
  } catch (const c10::ValueError& e) {
    PyErr_SetString(PyExc_ValueError, e.what_without_backtrace());
  } catch (const c10::TypeError& e) {
    PyErr_SetString(PyExc_TypeError, e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    PyErr_SetString(PyExc_NotImplementedError, e.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& e) {
    PyErr_SetString(THPException_OutOfMemoryError, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
  }
}

}  // namespace

void Throw(const absl::Status& status) {
  Raise(PythonTypeOf(status.code()),
        std::string(status.message().data(), status.message().size()));
}

void init_errors(py::module& m) { py::register_local_exception_translator(&Translate); }

}  // namespace spmd::python
