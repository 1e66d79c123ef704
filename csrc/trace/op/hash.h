// SPDX-License-Identifier: Apache-2.0
// A 128-bit streaming hash for keys of tapes and calls, and how IValues enter it.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace spmd::trace {

// The hash depends on the order of what is mixed in. It has two independent multiplicative mixers
// and is stable within a process only.
class Hash128 {
 public:
  void Mix(uint64_t v) {
    a_ = Scramble(a_ ^ v) * 0x9e3779b97f4a7c15ull + 0x7f4a7c15;
    b_ = (b_ ^ Scramble(v + 0x632be59bd9b4e019ull)) * 0xff51afd7ed558ccdull;
    b_ ^= b_ >> 29;
  }
  void Mix(absl::Span<const int64_t> values) {
    Mix(values.size());
    for (int64_t v : values) Mix(static_cast<uint64_t>(v));
  }
  void MixText(const std::string& text);

  // The key of which only `bits` bits are kept, for tests of keys that collide.
  Hash128 FirstBits(int bits) const {
    if (bits >= 128) return *this;
    const auto mask = [](int n) {
      return n <= 0 ? uint64_t{0} : n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
    };
    Hash128 kept = *this;
    kept.a_ &= mask(bits);
    kept.b_ &= mask(bits - 64);
    return kept;
  }

  uint64_t hi() const { return a_; }
  uint64_t lo() const { return b_; }
  friend bool operator==(const Hash128& x, const Hash128& y) {
    return x.a_ == y.a_ && x.b_ == y.b_;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Hash128& x) {
    return H::combine(std::move(h), x.a_, x.b_);
  }

 private:
  static uint64_t Scramble(uint64_t v) {
    v ^= v >> 33;
    v *= 0xc4ceb9fe1a85ec53ull;
    return v ^ (v >> 31);
  }
  uint64_t a_ = 0x243f6a8885a308d3ull;
  uint64_t b_ = 0x13198a2e03707344ull;
};

// Mixes in the kind of `v` and, if `value` is true, its value. Generators, storages, streams and
// devices add their kind only.
// Requires: `v` contains no tensors.
void MixIValue(Hash128& hash, const c10::IValue& v, bool value = true);

}  // namespace spmd::trace
