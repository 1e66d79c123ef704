// SPDX-License-Identifier: Apache-2.0
// What values are on a backend that only plans.
//
//   mask = torch.ones(4, 32, device="spmd")     known: a constant
//   if mask.all():                              known: computed from constants only
//   if (ids == 0).any():                        known if `ids` are integers that were uploaded
//   if loss > 3:                                a question that depends on data
//
// Constants are what creation ops make, uploaded integers and booleans (masks, positions, ids), and
// uploaded single numbers. Other uploads and random numbers are data, and what depends on data is
// known only if the user gave an answer. A known value is computed when it is first asked for, on
// the host, so that parameters that begin as constants take no memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/trace/program/program_cache.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

using KnownPtr = std::shared_ptr<Known>;

// A run of a program that has some known results.
struct KnownRun {
  std::shared_ptr<CompiledProgram> program;
  std::vector<c10::Scalar> scalars;
  std::vector<KnownPtr> inputs;  // null where an input is not known
};

// Either the value itself or what computes it.
// Thread safety: guarded by the session's lock.
struct Known {
  at::Tensor host;
  std::shared_ptr<const KnownRun> run;
  int output = -1;
  int depth = 0;  // of the runs that computing it takes
};

// What is known of an uploaded value: null if it is data, or too large to be kept.
KnownPtr KnownUpload(const at::Tensor& host);

// Notes which `results` of a run of `program`, the program of `tape`, are known.
void NoteKnown(const Tape& tape, const CachedProgram& program,
               const std::vector<c10::Scalar>& scalars, const std::vector<ValuePtr>& results);

// Whether a planned value is known and can be computed.
bool IsKnown(Value& value);

// The whole of a planned value, on the host; `why` is what asks for it. In an optimizer's step a
// single floating-point number that depends on data is taken to be 1, since it scales an update and
// says nothing about shapes.
// Errors: FailedPrecondition, with the question, its line and how to answer it.
absl::StatusOr<at::Tensor> ReadPlanned(SessionState& state, Value& value, const char* why);

}  // namespace spmd::trace
