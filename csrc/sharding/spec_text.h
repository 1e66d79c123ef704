// SPDX-License-Identifier: Apache-2.0
// The inverse of SpecToString: "('data', None, ('x', 'y'), blocks(3, 'z'))".
#pragma once

#include "absl/status/statusor.h"
#include "csrc/sharding/spec.h"
#include "csrc/util/scanner.h"

namespace spmd {

// Reads a spec and leaves what follows it. Errors: InvalidArgument with the offending text.
absl::StatusOr<PartitionSpec> ParseSpecText(Scanner& in);

}  // namespace spmd
