// SPDX-License-Identifier: Apache-2.0
// Records what Python code changes in dictionaries of objects, so that it can be undone: the
// counters that an optimizer's step advances (csrc/trace/session/optimizer_step.h).
//
//   DictChanges changes;
//   changes.Note(optimizer, "state");         // as they are now
//   changes.Note(optimizer, "param_groups");
//   ...                                       // step += 1, a new momentum buffer, another lr
//   changes.Close();                          // these three are noted
//   changes.Undo();
//
// A note has the identity of each entry's object, and the elements of CPU tensors among them. After
// Close, only old entries and tensors of a few bytes are kept alive.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "csrc/trace/session/optimizer_step.h"
#include "torch/csrc/utils/pybind.h"

namespace spmd::python {

class DictChanges : public trace::HostChanges {
 public:
  ~DictChanges() override;
  // Notes owner.attribute, a dictionary or a list of dictionaries. With `nested`, dictionaries
  // among its values count if their keys are tensors of the device. Attributes of other types are
  // ignored.
  // Requires: the caller holds the GIL.
  void Note(py::handle owner, const char* attribute, bool nested = false);
  void Close() override;
  void Undo() override;

 private:
  // Where a dictionary is found again later.
  struct Place {
    py::object owner;
    const char* attribute;
    Py_ssize_t index = -1;  // in a list
    py::object key;         // the key of a nested dictionary: its tensor
  };
  struct Dict {
    Place place;
    py::object dict;
    size_t begin, end;  // its range in entries_
  };
  struct Entry {
    PyObject *key, *value;  // owned
  };
  // The elements of a CPU tensor. Nobody has written it since, as long as its version is `after`.
  struct Elements {
    at::Tensor tensor;
    int64_t before, after;
    std::string bytes;
  };
  struct Change {
    Place place;  // with weak references: an optimizer may be deleted before its steps have run
    py::object key;
    py::object old;  // null: there was no entry
    py::object now;  // a number, or a weak reference; null: any object
  };

  static Place Weak(const Place& place);
  static py::object Find(const Place& weak);
  void NoteDict(Place place, py::handle dict);
  void NoteElements(const at::Tensor& tensor);
  bool IsAsBefore(const Dict& d) const;
  void Compare(const Dict& d);
  void Forget();

  std::vector<Dict> dicts_;
  std::vector<Entry> entries_;
  std::vector<Elements> elements_;
  std::vector<Change> changes_;
};

}  // namespace spmd::python
