// SPDX-License-Identifier: Apache-2.0
// What Python code changes in dictionaries of objects, so that it can be undone: the counters that
// an optimizer's step advances (csrc/trace/optimizer_step.h).
//
//   DictChanges changes;
//   changes.Note(optimizer, "state");         // as they are now
//   changes.Note(optimizer, "param_groups");
//   ...                                       // step += 1, a new momentum buffer, another lr
//   changes.Close();                          // these three are noted
//   changes.Undo();
//
// Noted are which objects the entries are, and what CPU tensors among them hold. After Close no
// object is kept alive but old entries and tensors of a few bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "csrc/trace/optimizer_step.h"
#include "torch/csrc/utils/pybind.h"

namespace spmd::python {

class DictChanges : public trace::HostChanges {
 public:
  ~DictChanges() override;
  // The attribute is a dictionary, or a list of some; with `nested`, those among its values count
  // whose keys are tensors of the device. Others are passed over. Requires: the GIL.
  void Note(py::handle owner, const char* attribute, bool nested = false);
  void Close() override;
  void Undo() override;

 private:
  // Where a dictionary is found again.
  struct Place {
    py::object owner;
    const char* attribute;
    Py_ssize_t index = -1;  // in a list
    py::object key;         // of a nested one: its tensor
  };
  struct Dict {
    Place place;
    py::object dict;
    size_t begin, end;  // of entries_
  };
  struct Entry {
    PyObject *key, *value;  // owned
  };
  // A CPU tensor's elements, which nobody has written while its version is `after`.
  struct Elements {
    at::Tensor tensor;
    int64_t before, after;
    std::string bytes;
  };
  struct Change {
    Place place;  // by weak references: an optimizer may end before its steps have run
    py::object key;
    py::object old;  // null: there was no entry
    py::object now;  // a number, or a weak reference; null: whatever is there
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
