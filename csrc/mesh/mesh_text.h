// SPDX-License-Identifier: Apache-2.0
// A mesh as text that can be read back: what traced graphs and files say of a mesh.
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
// Takes what is its own. Errors: InvalidArgument with the offending text, or as Mesh::Create.
absl::StatusOr<Mesh> ParseMeshText(Scanner& in);

// "3,1,8..15": three or more ids that follow one another are a range.
std::string DeviceIdsText(absl::Span<const int64_t> ids);
absl::StatusOr<std::vector<int64_t>> ParseDeviceIds(Scanner& in);
// " devices=[3,1,8,9]", or else as many as there are, in order.
absl::StatusOr<std::vector<int64_t>> ParseDevicesOr(Scanner& in, int64_t count);

// More devices than this in one mesh is a typing mistake, not a machine.
inline constexpr int64_t kMaxDevices = int64_t{1} << 20;

}  // namespace spmd
