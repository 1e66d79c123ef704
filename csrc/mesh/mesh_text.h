// SPDX-License-Identifier: Apache-2.0
// The text form of a mesh that can be read back, as traced graphs and files contain it.
//
//   [data=2, model=4]                         over devices 0 to 7
//   [node=2@0.1, gpu=2] devices=[3,1,8,9]     a slower axis; other devices, or in another order
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/mesh/mesh.h"
#include "csrc/util/scanner.h"

namespace spmd {

std::string MeshText(const Mesh& mesh);
// Reads a mesh and leaves what follows it.
// Errors: InvalidArgument with the offending text, or as Mesh::Create.
absl::StatusOr<Mesh> ParseMeshText(Scanner& in);

// "3,1,8..15": three or more consecutive ids are written as a range.
std::string DeviceIdsText(absl::Span<const int64_t> ids);
absl::StatusOr<std::vector<int64_t>> ParseDeviceIds(Scanner& in);
// Reads " devices=[3,1,8,9]"; without it the ids are 0 to `count` - 1.
absl::StatusOr<std::vector<int64_t>> ParseDevicesOr(Scanner& in, int64_t count);

// More devices than this in one mesh is a typing mistake, not a machine.
inline constexpr int64_t kMaxDevices = int64_t{1} << 20;

}  // namespace spmd
