// SPDX-License-Identifier: Apache-2.0
// Programs that several processes run, with and without faults.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <tuple>

#include "tests/cpp/runtime/job.h"
#include "tests/cpp/runtime/run_text.h"
#include "tests/cpp/runtime/short_of_memory.h"

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

// No op may fail on values. %w is overwritten in the middle, and what follows takes memory.
constexpr const char* kOverwrite = R"(
mesh @m [data=8]
program {
  %w: f32[16,4] @m {},{} donated
  %x: f32[8,4] @m {data},{}
  %0: f32[8,4] @m {data},{} = call aten::mul.Tensor(%x, %x)
  %1: f32[4] @m {} unreduced(sum){data} = call aten::sum.dim_IntList(%0, dim=[0], keepdim=false)
  %2: f32[4] @m {} = all_reduce(%1) {data}
  %3: f32[16,4] @m {},{} = call aten::add.Tensor(%w, %2, alpha=1)
  %4: f32[16,4] @m {},{} = call aten::mul.Tensor(%3, %3)
  %5: f32[16,4] @m {},{} = call aten::add.Tensor(%4, %3, alpha=1)
  return %2, %3, %5
}
)";

// %2 and %3 do not wait for %1, nor %6 for %4.
constexpr const char* kBeside = R"(
mesh @m [data=8]
program {
  %x: f32[8,4] @m {data},{}
  %y: f32[8,1000] @m {data},{}
  %0: f32[4] @m {} unreduced(sum){data} = call aten::sum.dim_IntList(%x, dim=[0], keepdim=false)
  %1: f32[4] @m {} = all_reduce(%0) {data}
  %2: f32[8,1000] @m {data},{} = call aten::mul.Tensor(%y, %y)
  %3: f32[1000] @m {} unreduced(sum){data} = call aten::sum.dim_IntList(%2, dim=[0], keepdim=false)
  %4: f32[1000] @m {} = all_reduce(%3) {data}
  %5: f32[4] @m {} = call aten::mul.Tensor(%1, %1)
  %6: f32[8,4] @m {data},{} = call aten::add.Tensor(%x, %5, alpha=1)
  %7: f32[8,4] @m {},{} = all_gather(%6) {data} dim(0)
  %8: f32[1000] @m {} = call aten::mul.Tensor(%4, %4)
  return %1, %7, %8
}
)";
std::vector<at::Tensor> InputsOfBeside() { return {at::randn({8, 4}), at::randn({8, 1000})}; }

// Whether exchanges go on beside calls or not, the bits are those of one process, and the same
// bytes are sent.
TEST(Processes, ProgramsGiveTheBitsOfOneProcess) {
  at::manual_seed(0);
  const std::vector<at::Tensor> layers = {at::randn({6, 10}), at::randn({4, 10}), at::randn({4})};
  const std::vector<at::Tensor> look_up = {at::randn({16, 4}), at::randint(0, 16, {8}, at::kLong)};
  const std::vector<at::Tensor> update = {at::randn({16, 4}), at::randn({8, 4})};
  for (const auto& [text, inputs] :
       {std::pair(kLayers, layers), std::pair(kLookUp, look_up), std::pair(kOverwrite, update),
        std::pair(kBeside, InputsOfBeside())}) {
    const std::vector<at::Tensor> alone = RunText(text, inputs, {.one_place = false});
    ASSERT_FALSE(alone.empty());
    for (const int size : {1, 2, 4, 8}) {
      LocalJob job(size), beside(size);
      const auto in_turn = RunTextInJob(job, text, inputs);
      const auto at_once = RunTextInJob(beside, text, inputs, {}, /*overlap_from=*/0);
      for (const auto* results : {&in_turn, &at_once}) {
        for (const JobResult& result : *results) {
          ASSERT_TRUE(result.status.ok()) << result.status;
          ASSERT_EQ(result.values.size(), alone.size());
          for (size_t k = 0; k < alone.size(); ++k) {
            EXPECT_TRUE(at::equal(result.values[k], alone[k])) << "result " << k << " of " << size;
          }
        }
      }
      EXPECT_EQ(beside.bytes(), job.bytes());
      EXPECT_EQ(beside.exchanges(), job.exchanges());
    }
  }
}

// Peers whose exchange number 1 waits until a tensor of the watched size has been allocated.
class GatedPeers : public Peers {
 public:
  GatedPeers(Peers& inner, std::chrono::milliseconds limit)
      : Peers(inner.rank(), inner.size()), inner_(inner), limit_(limit) {}
  void Fail(const absl::Status& why) override { inner_.Fail(why); }
  absl::Status failure() const override { return inner_.failure(); }
  bool waited_in_vain() const { return waited_in_vain_; }

 protected:
  absl::Status DoExchange(const at::Tensor& send, absl::Span<const int64_t> send_bytes,
                          const at::Tensor& receive,
                          absl::Span<const int64_t> receive_bytes) override {
    if (number_++ == 1) {
      const auto end = std::chrono::steady_clock::now() + limit_;
      while (ShortOfMemory::watched_count() == 0 && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      waited_in_vain_ = ShortOfMemory::watched_count() == 0;
    }
    return inner_.Exchange(send, send_bytes, receive, receive_bytes);
  }

 private:
  Peers& inner_;
  const std::chrono::milliseconds limit_;
  int64_t number_ = 0;
  bool waited_in_vain_ = false;
};

// The first exchange is agreeing, the second the sum %1, beside which %2 is computed.
TEST(Processes, CallsRunBesideAnExchange) {
  const std::vector<at::Tensor> inputs = InputsOfBeside();
  for (const bool overlaps : {false, true}) {
    LocalJob job(2);
    RunJob(job, [&](Peers& peers, Backend& backend) {
      GatedPeers gated(peers, std::chrono::milliseconds(overlaps ? 10000 : 200));
      backend.Join(&gated, kJobDevices / 2, true);
      backend.set_overlap_from(overlaps ? 0 : Backend::kNoOverlap);
      const std::shared_ptr<Backend> shared(std::shared_ptr<void>(), &backend);
      const auto loaded = *LoadedProgram::Load(*program::Program::Parse(kBeside), shared);
      std::vector<LoadedProgram::Argument> arguments = Uploaded(inputs, *loaded, backend);
      ASSERT_TRUE(peers.Agree({}).ok());  // all have uploaded
      if (peers.rank() == 0) ShortOfMemory::Watch(1000 * sizeof(float));
      ASSERT_TRUE(peers.Agree({}).ok());
      EXPECT_TRUE(loaded->Run(absl::MakeSpan(arguments), {}).ok());
      EXPECT_EQ(gated.waited_in_vain(), !overlaps);
    });
  }
  ShortOfMemory::Watch(ShortOfMemory::kAny);
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
  const std::vector<at::Tensor> look_up = {at::randn({16, 4}), at::randint(0, 16, {8}, at::kLong)};
  using Fault = LocalJob::Fault;
  for (const auto& [text, inputs, exchanges] :
       {// Agree on the program, all-reduce, vote before %w is overwritten and at the end. Both
        // results are whole.
        std::tuple(kLookUp, look_up, int64_t{4}),
        // Agree, three exchanges, of which the first two go on beside calls, vote.
        std::tuple(kBeside, InputsOfBeside(), int64_t{5})}) {
    LocalJob clean(2);
    RunTextInJob(clean, text, inputs, {}, /*overlap_from=*/0);
    EXPECT_EQ(clean.exchanges(), exchanges);
    for (const Fault fault : {Fault::kGone, Fault::kStopped, Fault::kLate, Fault::kInterrupted}) {
      for (int64_t when = 0; when < exchanges; ++when) {
        LocalJob job(2, std::chrono::milliseconds(200));
        job.SetFault(1, when, fault);
        const auto results = RunTextInJob(job, text, inputs, {}, /*overlap_from=*/0);
        EXPECT_EQ(results[0].status.ok(), fault == Fault::kLate) << results[0].status;
        if (!results[0].status.ok()) {
          EXPECT_THAT(std::string(results[0].status.message()), HasSubstr("process 1"));
          EXPECT_EQ(results[1].status, results[0].status);
        }
      }
    }
  }
}

// A failure on the thread of an exchange is the failure of its instruction.
TEST(Processes, NoMemoryBesideCallsIsAnErrorInAll) {
  const std::vector<at::Tensor> inputs = InputsOfBeside();
  std::vector<std::string> found;
  for (int64_t n = 0;; ++n) {
    LocalJob job(2);
    std::vector<absl::Status> statuses(2);
    RunJob(job, [&](Peers& peers, Backend& backend) {
      backend.set_overlap_from(0);
      const std::shared_ptr<Backend> shared(std::shared_ptr<void>(), &backend);
      const auto loaded = *LoadedProgram::Load(*program::Program::Parse(kBeside), shared);
      std::vector<LoadedProgram::Argument> arguments = Uploaded(inputs, *loaded, backend);
      ASSERT_TRUE(peers.Agree({}).ok());
      if (peers.rank() == 0) ShortOfMemory::Watch(1000 * sizeof(float), n);
      ASSERT_TRUE(peers.Agree({}).ok());
      statuses[peers.rank()] = loaded->Run(absl::MakeSpan(arguments), {}).status();
    });
    EXPECT_EQ(statuses[0], statuses[1]);
    if (statuses[0].ok()) break;
    EXPECT_EQ(statuses[0].code(), absl::StatusCode::kResourceExhausted) << statuses[0];
    found.emplace_back(statuses[0].message());
    ASSERT_LT(n, 100);
  }
  ShortOfMemory::Watch(ShortOfMemory::kAny);
  EXPECT_THAT(found, testing::Contains(HasSubstr("all_reduce(f32[1000])")));
  EXPECT_THAT(found, testing::Contains(HasSubstr("aten::mul.Tensor(f32[8,1000]")));
}

// One process has no memory for any one of its tensors: all have the same error, and what was
// donated is as before in all or lost in all. Unless it was for what is exchanged, the job goes on.
TEST(Processes, NoMemoryInOneIsAnErrorInAllAndTheJobGoesOn) {
  at::manual_seed(0);
  const std::vector<at::Tensor> layers = {at::randn({6, 10}), at::randn({4, 10}), at::randn({4})};
  const std::vector<at::Tensor> update = {at::randn({16, 4}), at::randn({8, 4})};
  for (const auto& [text, inputs] : {std::pair(kLayers, layers), std::pair(kOverwrite, update),
                                     std::pair(kBeside, InputsOfBeside())}) {
    const std::vector<at::Tensor> alone = RunText(text, inputs, {.one_place = false});
    int64_t kept = 0, lost = 0, ended = 0;
    bool ran_out = true;
    for (int64_t n = 0; ran_out; ++n) {
      LocalJob job(2);
      std::vector<absl::Status> statuses(2);
      std::vector<int> left(2);
      std::atomic<bool> goes_on = true;
      RunJob(job, [&](Peers& peers, Backend& backend) {
        const int me = peers.rank();
        backend.set_overlap_from(0);
        const std::shared_ptr<Backend> shared(std::shared_ptr<void>(), &backend);
        const auto loaded = *LoadedProgram::Load(*program::Program::Parse(text), shared);
        const auto upload = [&] {
          std::vector<LoadedProgram::Argument> arguments;
          for (size_t i = 0; i < inputs.size(); ++i) {
            const program::Input& input = loaded->program().inputs[i];
            arguments.push_back(
                {Upload(inputs[i], loaded->program().LayoutOf(input.value), backend),
                 input.donated});
          }
          return arguments;
        };
        std::vector<LoadedProgram::Argument> arguments = upload();
        if (me == 1) {
          const ShortOfMemory memory(n);
          statuses[me] = loaded->Run(absl::MakeSpan(arguments), {}).status();
          ran_out = memory.ran_out();
        } else {
          statuses[me] = loaded->Run(absl::MakeSpan(arguments), {}).status();
        }
        for (const LoadedProgram::Argument& argument : arguments) {
          left[me] += argument.value != nullptr ? 1 : 0;
        }
        if (!peers.failure().ok()) {
          goes_on = false;
          return;
        }
        const auto again = loaded->Run(upload(), {});
        ASSERT_TRUE(again.ok()) << n << ": " << again.status();
        for (size_t k = 0; k < alone.size(); ++k) {
          const auto value = Download(*(*again)[k], &peers);
          ASSERT_TRUE(value.ok());
          EXPECT_TRUE(at::equal(*value, alone[k])) << "result " << k << " after " << n;
        }
      });
      EXPECT_EQ(statuses[0], statuses[1]) << n;
      if (!ran_out) break;
      const std::string words(statuses[0].message());
      EXPECT_EQ(statuses[0].code(), absl::StatusCode::kResourceExhausted) << words;
      EXPECT_THAT(words, HasSubstr("in process 1"));
      if (goes_on) {
        EXPECT_EQ(left[0], left[1]) << n << ": " << words;
      }
      if (!goes_on) {
        EXPECT_THAT(words,
                    testing::ContainsRegex("an exchange, in|agreeing|voting|running a program"));
      }
      ++(!goes_on ? ended : left[0] == std::ssize(inputs) ? kept : lost);
    }
    EXPECT_GT(kept, 0) << text;
    EXPECT_GT(ended, 0) << text;
    EXPECT_EQ(lost > 0, text == kOverwrite);
  }
}

}  // namespace
}  // namespace spmd::runtime
