// SPDX-License-Identifier: Apache-2.0
// The bytes in use at the peak of a run. Requires: TileMemory::Install() returned true.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "csrc/runtime/executor.h"
#include "csrc/runtime/one_place/tile_memory.h"

namespace spmd::runtime {

// Bytes of tiles, above what the program is given; tile by tile, on virtual CPU devices.
inline int64_t MostInUse(const std::string& text, const std::vector<at::Tensor>& inputs,
                         LoadedProgram::Options::Turns turns) {
  const auto backend = *MakeBackend("cpu", std::nullopt);
  const auto loaded = LoadedProgram::Load(*program::Program::Parse(text), backend,
                                          {/*deduplicate=*/true, /*coalesce=*/false, turns});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return 0;
  std::vector<LoadedProgram::Argument> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Layout layout = (*loaded)->program().LayoutOf((*loaded)->program().inputs[i].value);
    arguments.push_back({Upload(inputs[i], layout, *backend), false});
  }
  TileMemory::Trim();
  const int64_t before = TileMemory::GetStats().in_use;
  EXPECT_TRUE((*loaded)->Run(absl::MakeSpan(arguments), {}).ok());
  return TileMemory::GetStats().most_in_use - before;
}

}  // namespace spmd::runtime
