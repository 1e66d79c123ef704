// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/peers.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "csrc/runtime/rounds.h"
#include "tests/cpp/runtime/job.h"

namespace spmd::runtime {
namespace {

using testing::HasSubstr;

TEST(Peers, ExchangeBytesOfAnySizes) {
  for (const int size : {1, 2, 3, 4}) {
    LocalJob job(size);
    RunJob(job, [&](Peers& peers, Backend&) {
      // Process r sends r + q bytes of value 10 r + q to process q; nothing where that is odd.
      const auto bytes = [&](int from, int to) -> int64_t {
        return from == to || (from + to) % 2 == 1 ? 0 : from + to;
      };
      std::vector<int64_t> send, receive;
      std::vector<at::Tensor> parts = {at::empty({0}, at::kByte)};
      for (int q = 0; q < size; ++q) {
        send.push_back(bytes(peers.rank(), q));
        receive.push_back(bytes(q, peers.rank()));
        parts.push_back(at::full({send.back()}, 10 * peers.rank() + q, at::kByte));
      }
      int64_t total = 0;
      for (const int64_t n : receive) total += n;
      const at::Tensor got = at::empty({total}, at::kByte);
      const absl::Status status = peers.Exchange(at::cat(parts), send, got, receive);
      ASSERT_TRUE(status.ok()) << status;
      int64_t at = 0;
      for (int q = 0; q < size; ++q) {
        for (int64_t i = 0; i < receive[q]; ++i) {
          EXPECT_EQ(got[at++].item<int64_t>(), 10 * q + peers.rank());
        }
      }
    });
  }
}

TEST(Peers, AgreeAndTell) {
  LocalJob job(3);
  RunJob(job, [](Peers& peers, Backend&) {
    const auto rank = static_cast<uint64_t>(peers.rank());
    const auto words = peers.Agree({rank, rank * rank});
    ASSERT_TRUE(words.ok());
    for (uint64_t r = 0; r < 3; ++r) EXPECT_EQ((*words)[r][1], r * r);
    const auto texts = peers.Tell(std::string(rank, 'x'));
    ASSERT_TRUE(texts.ok());
    for (size_t r = 0; r < 3; ++r) EXPECT_EQ((*texts)[r], std::string(r, 'x'));
  });
}

TEST(Peers, AStatusCanBeSent) {
  absl::Status status = absl::OutOfRangeError("index 9 is out of range\nof 4");
  status.SetPayload("torch_spmd/failed op", absl::Cord("aten::index"));
  const absl::Status read = StatusFromText(StatusToText(status));
  EXPECT_EQ(read, status);
  EXPECT_TRUE(StatusFromText(StatusToText(absl::OkStatus())).ok());
  EXPECT_FALSE(StatusFromText("what is this").ok());
}

TEST(Peers, AVoteGivesAllTheErrorOfTheEarliestStep) {
  LocalJob job(4);
  RunJob(job, [](Peers& peers, Backend&) {
    EXPECT_TRUE(Vote(peers, absl::OkStatus(), 0).ok());
    const int rank = peers.rank();
    const absl::Status mine = rank == 1   ? absl::InternalError("later")
                              : rank == 3 ? absl::OutOfRangeError("sooner")
                                          : absl::OkStatus();
    const absl::Status status = Vote(peers, mine, rank == 1 ? 7 : 4);
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(status.message(), "sooner (in process 3)");
    EXPECT_TRUE(peers.failure().ok());  // the job goes on
  });
}

TEST(Peers, OtherProgramsAreFoundBeforeAnythingIsSent) {
  LocalJob job(2);
  RunJob(job, [](Peers& peers, Backend&) {
    EXPECT_TRUE(AgreeToRun(peers, 5, {1.5, true}).ok());
    EXPECT_THAT(AgreeToRun(peers, peers.rank(), {}).message(), HasSubstr("another program"));
    EXPECT_THAT(AgreeToRun(peers, 5, {0.5 * peers.rank()}).message(), HasSubstr("other numbers"));
    EXPECT_TRUE(AgreeToRun(peers, 5, {}).ok());
  });
}

// Whatever happens to one process, wherever, all of them end with an error that says so.
TEST(Peers, AFaultEndsEveryProcess) {
  using Fault = LocalJob::Fault;
  const std::vector<std::pair<Fault, std::string>> faults = {
      {Fault::kGone, "process 1 is gone"},
      {Fault::kStopped, "for process 1"},
      {Fault::kInterrupted, "process 1 was interrupted"}};
  for (const auto& [fault, text] : faults) {
    for (const int64_t when : {0, 1, 2}) {
      LocalJob job(3, std::chrono::milliseconds(100));
      job.SetFault(1, when, fault);
      std::vector<absl::Status> ends(3);
      RunJob(job, [&](Peers& peers, Backend&) {
        absl::Status status;
        for (int i = 0; i < 4 && status.ok(); ++i) status = peers.Agree({}).status();
        EXPECT_EQ(peers.Agree({}).status(), status);  // nothing works any more
        ends[peers.rank()] = status;
      });
      for (const absl::Status& status : ends) {
        EXPECT_THAT(std::string(status.message()), HasSubstr(text)) << when;
      }
    }
  }
}

TEST(Peers, OneThatIsLateIsWaitedFor) {
  LocalJob job(2);
  job.SetFault(0, 1, LocalJob::Fault::kLate);
  RunJob(job, [](Peers& peers, Backend&) {
    for (uint64_t i = 0; i < 4; ++i) {
      const auto words = peers.Agree({i});
      ASSERT_TRUE(words.ok());
      EXPECT_EQ((*words)[1 - peers.rank()][0], i);
    }
  });
}

}  // namespace
}  // namespace spmd::runtime
