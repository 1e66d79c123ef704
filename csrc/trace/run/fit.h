// SPDX-License-Identifier: Apache-2.0
// Whether a program that was compiled from the records of a tape makes what the tape needs, and
// what is missing otherwise.
//
// A program fits that would be compiled again as it is. So nothing is compiled for ever: the
// layouts in which values come are few, and results only grow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "csrc/trace/program/program_cache.h"
#include "csrc/trace/run/liveness.h"

namespace spmd::trace {

// Why a program does not fit.
struct Misfit {
  enum class Kind : uint8_t {
    kLost,    // an input is lost
    kTerms,   // an input is a partial sum for one of the two
    kHeld,    // a value is held that is not a result
    kAsked,   // a value that is a partial sum there is asked for
    kForm,    // a result has another form than a mark refers to
    kLayout,  // a Buffer would get another layout than that in which it has settled
    kLeft,    // an input was left in another layout than the program takes
  };
  Kind kind;
  TapeId value;
  LayoutPtr now, then;  // of the tape and of the program; kLayout, kLeft
  int others = 0;       // kHeld: how many other values are held, too
};

// None if the results of `program` include every live value, in the layouts in which their Buffers
// have settled. A gradient may be unreduced in one of the layouts and reduced in the other.
std::optional<Misfit> FindMisfit(const CachedProgram& program, const Tape& tape, const Live& live);

// None if `program` takes what it does not overwrite as it is, so that nothing is moved that its
// plan does not count.
std::optional<Misfit> FindMoved(const CachedProgram& program, const Tape& tape);

// For explain_compile, for example "same ops as program 3, but f32[64,10] of aten::linear
// (train.py:14) is held afterwards".
// Requires: the tape's records can be read.
std::string MisfitToString(const Misfit& misfit, const CachedProgram& program, const Tape& tape);

}  // namespace spmd::trace
