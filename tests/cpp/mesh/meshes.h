// SPDX-License-Identifier: Apache-2.0
// Meshes of tests, and all shapes of a number of devices.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "csrc/mesh/mesh.h"

namespace spmd {

inline Mesh MeshOf(std::vector<int64_t> shape, std::vector<std::string> names,
                   int64_t first_id = 0) {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  std::vector<int64_t> ids(n);
  std::iota(ids.begin(), ids.end(), first_id);
  auto mesh = Mesh::Create(std::move(ids), std::move(shape), std::move(names));
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return *std::move(mesh);
}

// All lists of factors above 1 whose product is n.
inline std::vector<std::vector<int64_t>> Factorisations(int64_t n) {
  if (n == 1) return {{}};
  std::vector<std::vector<int64_t>> all;
  for (int64_t f = 2; f <= n; ++f) {
    if (n % f != 0) continue;
    for (std::vector<int64_t> rest : Factorisations(n / f)) {
      rest.insert(rest.begin(), f);
      all.push_back(std::move(rest));
    }
  }
  return all;
}

}  // namespace spmd
