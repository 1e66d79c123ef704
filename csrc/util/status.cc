// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/status.h"

#include <stdexcept>
#include <string>

namespace spmd {

void DoesNotFit(const std::string& message) { throw std::invalid_argument(message); }

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  throw std::logic_error(absl::StrCat("torch_spmd: internal error at ", file, ":", line, ": ",
                                      condition, " is false. ", message,
                                      " This is a bug in torch_spmd."));
}

}  // namespace spmd
