// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace spmd {

// Two products with a sharded contraction, and the sum of both and a first one.
inline constexpr const char* kProductsAndSums = R"(
mesh @m [data=2, model=4]
program {
  %g: f32[6,8] @m {data},{model}
  %w: f32[8,10] @m {model},{}
  %h: f32[6,7] @m {data},{model}
  %v: f32[7,10] @m {model},{}
  %0: f32[6,10] @m {data},{} unreduced(sum){model} = call spmd::linear_dinput(%g, %w)
  %1: f32[6,10] @m {data},{} unreduced(sum){model} = call spmd::linear_dinput(%h, %v)
  %2: f32[6,10] @m {data},{} unreduced(sum){model} = call aten::add.Tensor(%0, %1, alpha=1)
  %3: f32[6,10] @m {data},{} unreduced(sum){model} = call spmd::linear_dinput(%g, %w)
  %4: f32[6,10] @m {data},{} unreduced(sum){model} = call aten::add.Tensor(%2, %3, alpha=1)
  %5: f32[6,10] @m {data},{} = all_reduce(%4) {model}
  return %5
}
)";

}  // namespace spmd
