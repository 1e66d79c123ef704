// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace spmd {

// "1.5 GiB", "12.0 MiB", "3.2 KiB", "100 B": rounded down to a tenth.
inline std::string ByteText(int64_t bytes) {
  struct Unit {
    absl::string_view name;
    int64_t bytes;
  };
  for (const Unit& unit : {Unit{"GiB", int64_t{1} << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}) {
    if (bytes < unit.bytes) continue;
    const int64_t tenths = bytes / unit.bytes * 10 + bytes % unit.bytes * 10 / unit.bytes;
    return absl::StrCat(tenths / 10, ".", tenths % 10, " ", unit.name);
  }
  return absl::StrCat(bytes, " B");
}

}  // namespace spmd
