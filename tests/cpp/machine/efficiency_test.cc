// SPDX-License-Identifier: Apache-2.0
#include "csrc/machine/efficiency.h"

#include <gtest/gtest.h>

#include "csrc/machine/gpu.h"
#include "csrc/machine/system.h"

namespace spmd::machine {
namespace {

TEST(FittedEfficiency, IsAPartOfThePeakAndOneWhereNothingIsFitted) {
  for (const char* chip : {"v3", "v4", "v5e", "v5p", "v6e", "H100"}) {
    EXPECT_GT(FittedEfficiency(chip), 0.5) << chip;
    EXPECT_LT(FittedEfficiency(chip), 1) << chip;
  }
  EXPECT_EQ(FittedEfficiency("v2"), 1);
  EXPECT_EQ(FittedEfficiency("nominal"), 1);
}

TEST(FittedEfficiency, BelongsToTheChipWhateverTheSizeOfTheSystem) {
  for (const char* name : {"v4-8", "v4-256"}) {
    EXPECT_EQ(ParseSystem(name)->efficiency, FittedEfficiency("v4")) << name;
  }
  EXPECT_EQ(ParseSystem("16xh100")->efficiency, FittedEfficiency("H100"));
  EXPECT_EQ(OneRing(Nominal(), 4).efficiency, 1);
}

}  // namespace
}  // namespace spmd::machine
