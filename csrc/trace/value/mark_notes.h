// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

// What few Buffers have in addition to their mark.
struct MarkNotes {
  bool copied = false;  // the mark came with a copy
  bool waits = false;   // the mark does not bind the pending value yet
  struct Part {
    RecipePtr view;
    MarkPtr mark;
    bool copied;
  };
  std::vector<Part> parts;
  // For a storage that was resized: its form and mark before. The mark returns when the storage has
  // its old size again (memory that is released between uses).
  BaseForm form_before;
  MarkPtr mark_before;
};
// The notes of `buffer`, or null if it has none (in csrc/trace/value/buffer.cc).
MarkNotes* NotesOf(const Buffer& buffer);
MarkNotes& MakeNotes(Buffer& buffer);

}  // namespace spmd::trace
