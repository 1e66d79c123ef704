// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/status.h"

#include <cstdio>
#include <cstdlib>

namespace spmd {

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "torch_spmd: internal error at %s:%d: %s is false. %s\n", file, line,
               condition, message.c_str());
  std::abort();
}

}  // namespace spmd
