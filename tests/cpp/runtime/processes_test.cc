// SPDX-License-Identifier: Apache-2.0
// Programs that several processes run, with and without faults.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cpp/runtime/job.h"
#include "tests/cpp/runtime/run_text.h"

namespace spmd::runtime {
namespace {

using testing::HasSubstr;

// Two layers and a gradient: every kind of collective, over axes within and across processes.
constexpr const char* kLayers = R"(
mesh @m [data=2, model=4]
program {
  %x: f32[6,10] @m {data},{model}
  %w: f32[4,10] @m {},{model}
  %b: f32[4] @m {}
  %0: f32[6,4] @m {data},{} unreduced(sum){model} = call aten::linear(%x, %w, %b) added_once(2: model)
  %1: f32[6,4] @m {data},{} = all_reduce(%0) {model}
  %2: f32[6,4] @m {},{} = all_gather(%1) {data} dim(0)
  %3: f32[6,4] @m {data},{model} = reduce_scatter(%0) {model} dim(1)
  %4: f32[4] @m {} unreduced(sum){data} = call aten::sum.dim_IntList(%1, dim=[0], keepdim=false)
  %5: f32[4] @m {} = all_reduce(%4) {data}
  %6: f32[6,4] @m {},{data} = all_to_all(%1) {data} dim(0) to(1)
  return %1, %2, %3, %5, %6
}
)";

// Looks up rows of %w, updates %w, and sums over all devices.
constexpr const char* kLookUp = R"(
mesh @m [data=8]
program {
  %w: f32[16,4] @m {},{} donated
  %i: i64[8] @m {data}
  %0: f32[8,4] @m {data},{} = call aten::index_select(%w, %i, dim=0)
  %1: f32[4] @m {} unreduced(sum){data} = call aten::sum.dim_IntList(%0, dim=[0], keepdim=false)
  %2: f32[4] @m {} = all_reduce(%1) {data}
  %3: f32[16,4] @m {},{} = call aten::add.Tensor(%w, %2, alpha=1)
  return %2, %3
}
)";

TEST(Processes, ProgramsGiveTheBitsOfOneProcess) {
  at::manual_seed(0);
  const std::vector<at::Tensor> layers = {at::randn({6, 10}), at::randn({4, 10}), at::randn({4})};
  const std::vector<at::Tensor> look_up = {at::randn({16, 4}), at::randint(0, 16, {8}, at::kLong)};
  for (const auto& [text, inputs] : {std::pair(kLayers, layers), std::pair(kLookUp, look_up)}) {
    const std::vector<at::Tensor> alone = RunText(text, inputs, {.one_place = false});
    ASSERT_FALSE(alone.empty());
    for (const int size : {1, 2, 4, 8}) {
      LocalJob job(size);
      for (const JobResult& result : RunTextInJob(job, text, inputs)) {
        ASSERT_TRUE(result.status.ok()) << result.status;
        ASSERT_EQ(result.values.size(), alone.size());
        for (size_t k = 0; k < alone.size(); ++k) {
          EXPECT_TRUE(at::equal(result.values[k], alone[k])) << "result " << k << " of " << size;
        }
      }
    }
  }
}

TEST(Processes, AnOpThatFailsInOneFailsInAll) {
  at::manual_seed(0);
  const at::Tensor w = at::randn({16, 4});
  for (const int64_t bad : {0, 3, 7}) {
    at::Tensor i = at::zeros({8}, at::kLong);
    i[bad] = 16;
    LocalJob job(4);
    for (const JobResult& result : RunTextInJob(job, kLookUp, {w, i})) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kOutOfRange) << result.status;
      EXPECT_THAT(std::string(result.status.message()),
                  HasSubstr("(in process " + std::to_string(bad / 2) + ")"));
      EXPECT_EQ(FailedOp(result.status), "aten::index_select");
      // The donated argument is as before.
      ASSERT_NE(result.left[0].value, nullptr);
      for (const at::Tensor& tile : result.left[0].value->tiles) {
        if (tile.defined()) {
          EXPECT_TRUE(at::equal(tile, w));
        }
      }
    }
  }
}

// Processes that run other programs, or the same with other numbers, find out before anything else.
TEST(Processes, AnotherProgramIsAnErrorInAll) {
  LocalJob job(2);
  std::vector<absl::Status> ends(2);
  RunJob(job, [&](Peers& peers, Backend& backend) {
    const std::shared_ptr<Backend> shared(std::shared_ptr<void>(), &backend);
    const char* const text = peers.rank() == 0 ? kLayers : kLookUp;
    auto loaded = *LoadedProgram::Load(*program::Program::Parse(text), shared);
    std::vector<LoadedProgram::Argument> none(loaded->program().inputs.size());
    ends[peers.rank()] = loaded->Run(absl::MakeSpan(none), {}).status();
  });
  for (const absl::Status& status : ends) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("another program"));
  }
}

// A fault in any exchange of a run: no process hangs, and none says that all is well unless it
// has done all that it had to do with the others.
TEST(Processes, AFaultInAnyExchangeEndsTheRun) {
  at::manual_seed(0);
  const std::vector<at::Tensor> inputs = {at::randn({16, 4}), at::randint(0, 16, {8}, at::kLong)};
  LocalJob clean(2);
  RunTextInJob(clean, kLookUp, inputs);
  const int64_t exchanges = clean.exchanges();
  EXPECT_EQ(exchanges, 3);  // agree on the program, vote, all-reduce; both results are whole
  using Fault = LocalJob::Fault;
  for (const Fault fault : {Fault::kGone, Fault::kStopped, Fault::kLate, Fault::kInterrupted}) {
    for (int64_t when = 0; when < exchanges; ++when) {
      LocalJob job(2, std::chrono::milliseconds(200));
      job.SetFault(1, when, fault);
      const auto results = RunTextInJob(job, kLookUp, inputs);
      EXPECT_EQ(results[0].status.ok(), fault == Fault::kLate) << results[0].status;
      if (!results[0].status.ok()) {
        EXPECT_THAT(std::string(results[0].status.message()), HasSubstr("process 1"));
        EXPECT_EQ(results[1].status, results[0].status);
      }
    }
  }
}

}  // namespace
}  // namespace spmd::runtime
