// SPDX-License-Identifier: Apache-2.0
#include "csrc/python/frames.h"

#include <optional>
#include <utility>

#include "csrc/python/errors.h"
#include "csrc/python/processes.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/compat/python.h"
#include "torch/csrc/Exceptions.h"
#include "torch/csrc/utils/pybind.h"

namespace spmd::python {
namespace {

// Set once at import and read-only afterwards; never destroyed.
std::vector<std::string>* g_library_folders = nullptr;

// What PyGILState_Check says as long as there has been no sub-interpreter; afterwards it always
// says yes.
bool HoldsGil() {
  if (!Py_IsInitialized()) return false;
  const PyThreadState* const current = compat::PythonThread();
  return current != nullptr && current == PyGILState_GetThisThreadState();
}

void* ReleaseGil() { return HoldsGil() ? PyEval_SaveThread() : nullptr; }

void ReacquireGil(void* state) {
  if (state != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state));
}

bool IsUserFile(const std::string& path) {
  if (path.empty() || path[0] == '<') return path.rfind("<stdin>", 0) == 0;
  for (const std::string& folder : *g_library_folders) {
    if (path.compare(0, folder.size(), folder) == 0) return false;
  }
  return true;
}

std::string FileOf(PyFrameObject* frame) {
  PyCodeObject* code = PyFrame_GetCode(frame);
  const char* path = PyUnicode_AsUTF8(code->co_filename);
  std::string result = path == nullptr ? "" : path;
  if (path == nullptr) PyErr_Clear();
  Py_DECREF(code);
  return result;
}

// Calls `visit` with the frames of this thread, innermost first, until it returns true. Whether it
// did.
template <typename Visit>
bool AnyFrame(Visit&& visit) {
  // The binding that called the op has released the GIL.
  py::gil_scoped_acquire gil;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  bool found = false;
  while (frame != nullptr && !found) {
    found = visit(frame);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return found;
}

std::string CurrentLine() {
  if (!Py_IsInitialized()) return "";
  std::string line;
  AnyFrame([&](PyFrameObject* frame) {
    const std::string path = FileOf(frame);
    if (!IsUserFile(path)) return false;
    line = path.substr(path.rfind('/') + 1) + ":" + std::to_string(PyFrame_GetLineNumber(frame));
    return true;
  });
  return line;
}

bool IsRunning(const void* call) {
  if (!Py_IsInitialized()) return true;
  return AnyFrame([&](PyFrameObject* frame) { return frame == call; });
}

void Warn(const std::string& text) {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  // A filter that turns warnings into errors cannot stop the work in the middle of a cut: the error
  // is printed instead.
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 1) != 0) PyErr_WriteUnraisable(nullptr);
}

// Holds the exception of the thread whose wait was interrupted, between Signalled and RaiseSignal.
thread_local std::optional<py::error_already_set> t_raised;

bool Signalled() {
  if (!Py_IsInitialized()) return false;
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return false;
  t_raised.emplace();
  return true;
}

void RaiseSignal(const std::string& note) {
  py::gil_scoped_acquire gil;
  if (!note.empty() && py::len(t_raised->value().attr("args")) == 0) {
    t_raised->value().attr("args") = py::make_tuple(note);
  }
  t_raised->restore();
  t_raised.reset();
  python_error error;
  error.persist();
  throw error;
}

// Runs in the main thread, between two instructions of Python code.
int RunDroppedStep(void*) {
  try {
    trace::ThrowIfError(trace::Session::Get().GradientsDropped());
    return 0;
  } catch (const c10::Error&) {
    SetError(std::current_exception());
  } catch (const python_error&) {
    SetError(std::current_exception());
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return -1;
}

void GradientsDropped() {
  // If too many calls wait, the next use of the device runs the step.
  if (Py_IsInitialized()) Py_AddPendingCall(&RunDroppedStep, nullptr);
}

}  // namespace

trace::PythonHooks MakePythonHooks(std::vector<std::string> library_folders) {
  g_library_folders = new std::vector<std::string>(std::move(library_folders));
  trace::PythonHooks hooks;
  hooks.release_gil = &ReleaseGil;
  hooks.reacquire_gil = &ReacquireGil;
  hooks.current_line = &CurrentLine;
  hooks.is_running = &IsRunning;
  hooks.warn = &Warn;
  hooks.signalled = &Signalled;
  hooks.raise_signal = &RaiseSignal;
  hooks.gradients_dropped = &GradientsDropped;
  hooks.join_job = &JoinJob;
  return hooks;
}

}  // namespace spmd::python
