// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/same_tiles.h"

namespace spmd::trace {

bool SameTiles(const Layout& a, const Layout& b) {
  if (a == b) return true;
  if (a.sharding().IsUnreduced() || b.sharding().IsUnreduced()) return false;
  if (a.dims() != b.dims() || a.num_tiles() != b.num_tiles()) return false;
  if (a.grid()->device_ids() != b.grid()->device_ids()) return false;
  for (int64_t p = 0; p < a.grid()->num_devices(); ++p) {
    if (a.BoxAt(p) != b.BoxAt(p)) return false;
  }
  return true;
}

}  // namespace spmd::trace
