// SPDX-License-Identifier: Apache-2.0
// 128 bits that identify a graph or a program. They are equal on every machine and in every
// process, so that processes can compare them: they depend on no address and no hash seed.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "csrc/ir/attributes.h"
#include "csrc/ir/type.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"

namespace spmd::ir {

struct Fingerprint {
  uint64_t hi = 0;
  uint64_t lo = 0;

  std::string ToString() const;  // 32 hexadecimal digits
  friend bool operator==(Fingerprint a, Fingerprint b) { return a.hi == b.hi && a.lo == b.lo; }
  template <typename H>
  friend H AbslHashValue(H h, Fingerprint f) {
    return H::combine(std::move(h), f.hi, f.lo);
  }
};

// Takes words in order. Anything of variable length is added with its length, so that no two
// different sequences of Adds feed the same words.
class Fingerprinter {
 public:
  Fingerprinter& Add(uint64_t word);
  Fingerprinter& Add(int64_t word) { return Add(static_cast<uint64_t>(word)); }
  Fingerprinter& Add(int word) { return Add(static_cast<int64_t>(word)); }
  Fingerprinter& Add(bool word) { return Add(uint64_t{word}); }
  Fingerprinter& Add(double value);
  Fingerprinter& Add(absl::string_view bytes);
  Fingerprinter& Add(absl::Span<const int64_t> list);
  Fingerprinter& Add(absl::Span<const AxisId> axes);
  Fingerprinter& Add(const TensorType& type);
  Fingerprinter& Add(const Attributes& attributes);
  Fingerprinter& Add(const Sharding& sharding);
  Fingerprinter& Add(const Grid& grid);

  Fingerprint Finish() const;

 private:
  // Arbitrary constants: the first digits of the fractions of π and e.
  uint64_t hi_ = 0x243f6a8885a308d3;
  uint64_t lo_ = 0xb7e151628aed2a6a;
};

}  // namespace spmd::ir
