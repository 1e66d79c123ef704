// SPDX-License-Identifier: Apache-2.0
#include "csrc/python/errors.h"

#include "c10/util/Exception.h"
#include "csrc/python/init.h"
#include "torch/csrc/Exceptions.h"

namespace spmd::python {

void SetError(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (python_error& e) {
    e.restore();
  } catch (const c10::IndexError& e) {
    PyErr_SetString(PyExc_IndexError, e.what_without_backtrace());
  } catch (const c10::ValueError& e) {
    PyErr_SetString(PyExc_ValueError, e.what_without_backtrace());
  } catch (const c10::TypeError& e) {
    PyErr_SetString(PyExc_TypeError, e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    PyErr_SetString(PyExc_NotImplementedError, e.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& e) {
    py::object type = py::module_::import("torch").attr("OutOfMemoryError");
    PyErr_SetString(type.ptr(), e.what_without_backtrace());
  } catch (const c10::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
  }
}

void init_errors(py::module& m) { py::register_local_exception_translator(&SetError); }

}  // namespace spmd::python
