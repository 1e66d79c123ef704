// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/peers.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "csrc/runtime/in_place.h"
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
      std::vector<SentRange> send;
      std::vector<int64_t> receive;
      std::vector<at::Tensor> parts = {at::empty({0}, at::kByte)};
      int64_t at = 0;
      for (int q = 0; q < size; ++q) {
        send.push_back({at, bytes(peers.rank(), q)});
        at += send.back().bytes;
        receive.push_back(bytes(q, peers.rank()));
        parts.push_back(at::full({send.back().bytes}, 10 * peers.rank() + q, at::kByte));
      }
      bool taken = false;
      const absl::Status status = ExchangeInPlace(
          peers, at::cat(parts), send, receive, [&](absl::Span<const at::Tensor> got, bool) {
            taken = true;
            for (int q = 0; q < size; ++q) {
              ASSERT_EQ(got[q].defined() ? got[q].numel() : 0, receive[q]);
              if (receive[q] == 0) continue;
              EXPECT_TRUE(got[q].eq(10 * q + peers.rank()).all().item<bool>());
            }
          });
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(taken);
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

// Byte i of what process `from` sends to process `to` in a round.
uint8_t ByteOf(int round, int from, int to, int64_t i) {
  return static_cast<uint8_t>(17 * round + 5 * from + 3 * to + i + (i >> 8));
}

// Of sizes that follow each other in any order: none, small, large, larger than ever before.
TEST(Peers, MemoryCarriesBytesOfAnySizes) {
  for (const int size : {2, 3, 4}) {
    RunJobInMemory(size, [&](Peers& peers, Backend&) {
      std::mt19937 draw(size);
      for (int round = 0; round < 60; ++round) {
        std::vector<std::vector<int64_t>> bytes(size, std::vector<int64_t>(size));
        for (int p = 0; p < size; ++p) {
          for (int q = 0; q < size; ++q) {
            const int64_t most = std::vector<int64_t>{0, 100, 40000, 300000}[draw() % 4];
            bytes[p][q] = p == q || most == 0 ? 0 : draw() % most;
          }
        }
        const int me = peers.rank();
        int64_t sent = 0;
        std::vector<SentRange> out;
        std::vector<int64_t> in;
        for (int q = 0; q < size; ++q) {
          out.push_back({sent, bytes[me][q]});
          in.push_back(bytes[q][me]);
          sent += bytes[me][q];
        }
        // Every second round packs where it sends from.
        absl::StatusOr<at::Tensor> send = at::empty({sent}, at::kByte);
        if (round % 2 == 0) send = BufferToSend(peers, sent);
        ASSERT_TRUE(send.ok()) << send.status();
        auto* to = send->mutable_data_ptr<uint8_t>();
        for (int q = 0; q < size; ++q) {
          for (int64_t i = 0; i < bytes[me][q]; ++i) *to++ = ByteOf(round, me, q, i);
        }
        const auto check = [&](absl::Span<const at::Tensor> got, bool) {
          for (int q = 0; q < size; ++q) {
            ASSERT_EQ(got[q].defined() ? got[q].numel() : 0, in[q]);
            if (in[q] == 0) continue;
            const auto* from = got[q].const_data_ptr<uint8_t>();
            int64_t wrong = 0;
            for (int64_t i = 0; i < in[q]; ++i) wrong += from[i] != ByteOf(round, q, me, i) ? 1 : 0;
            ASSERT_EQ(wrong, 0) << "round " << round << " from " << q;
          }
        };
        const absl::Status status = ExchangeInPlace(peers, *send, out, in, check);
        ASSERT_TRUE(status.ok()) << status;
      }
      const auto texts = peers.Tell(std::string(100000 * (peers.rank() + 1), 'x'));
      ASSERT_TRUE(texts.ok());
      for (size_t r = 0; r < texts->size(); ++r) EXPECT_EQ((*texts)[r].size(), 100000 * (r + 1));
    });
  }
}

TEST(Peers, MemoryIsSharedByAllOrByNone) {
  LocalJob job(3);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RunJob(job, [&](Peers& peers, Backend&) {
    const auto watch = JobWatch::Make(store, peers.rank(), 3);
    auto made = ShareMemory(peers, peers.rank() != 1, watch, "test", std::chrono::seconds(20));
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(*made, nullptr);
  });
}

TEST(Peers, WhoDoesNotComeToMemoryIsNamedByAll) {
  std::vector<absl::Status> ends(3);
  const auto end_late = [&](Peers& peers, Backend&) {
    EXPECT_TRUE(peers.Agree({}).ok());
    if (peers.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(800));
    // Whoever is late may still find what the others have written.
    absl::Status status;
    while (status.ok()) status = peers.Agree({}).status();
    ends[peers.rank()] = status;
    EXPECT_EQ(peers.Agree({}).status(), ends[peers.rank()]);  // nothing works any more
  };
  RunJobInMemory(3, end_late, true, std::chrono::milliseconds(300));
  for (const absl::Status& status : ends) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("for process 1"));
  }
}

// Process p adds p + n to what all have given for its portion n. Exchanges of bytes in between and
// more portions than there are places do not disturb.
TEST(Peers, PortionsAreGivenAddedAndTaken) {
  for (const int size : {2, 3, 4}) {
    RunJobInMemory(size, [&](Peers& peers, Backend&) {
      InPlacePeers* const memory = InPlace(peers);
      ASSERT_NE(memory, nullptr);
      const auto bytes = static_cast<size_t>(memory->portion_bytes());
      const int me = peers.rank();
      for (const int64_t count : {1, 0, 11, 4}) {
        int64_t wrong = 0, taken = 0;
        const auto check = [&](const char* at, uint8_t wanted) {
          for (size_t i = 0; i < bytes; ++i) wrong += static_cast<uint8_t>(at[i]) != wanted ? 1 : 0;
        };
        const auto give = [&](int64_t n, absl::Span<char* const> to) {
          for (int q = 0; q < size; ++q) {
            if (q != me) std::memset(to[q], static_cast<int>(10 * me + q + n), bytes);
          }
          return absl::OkStatus();
        };
        const auto add = [&](int64_t n, absl::Span<const char* const> from, char* to) {
          for (int q = 0; q < size; ++q) {
            if (q != me) check(from[q], static_cast<uint8_t>(10 * q + me + n));
          }
          std::memset(to, static_cast<int>(100 + me + n), bytes);
          return absl::OkStatus();
        };
        const auto take = [&](int64_t n, absl::Span<const char* const> from) {
          ++taken;
          for (int q = 0; q < size; ++q) check(from[q], static_cast<uint8_t>(100 + q + n));
        };
        const absl::Status status = memory->RunPortions(count, {give, add, take});
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_EQ(wrong, 0);
        EXPECT_EQ(taken, count);
        EXPECT_TRUE(peers.Tell(std::string(300000, 'x')).ok());
      }
    });
  }
}

// Process 1 fails in one portion, or does not come to any.
TEST(Peers, PortionsEndWithTheFirstError) {
  for (const bool fails : {true, false}) {
    std::vector<absl::Status> ends(3);
    const auto run = [&](Peers& peers, Backend&) {
      const auto give = [](int64_t, auto) { return absl::OkStatus(); };
      const auto add = [&](int64_t n, auto, char*) {
        if (peers.rank() == 1 && n == 5) peers.Fail(absl::ResourceExhaustedError("of portion 5"));
        return peers.failure();
      };
      if (peers.rank() == 1 && !fails) {
        std::this_thread::sleep_for(std::chrono::milliseconds(800));
      }
      ends[peers.rank()] = InPlace(peers)->RunPortions(20, {give, add, [](int64_t, auto) {}});
    };
    RunJobInMemory(3, run, true, std::chrono::milliseconds(fails ? 20000 : 300));
    EXPECT_THAT(std::string(ends[0].message()),
                HasSubstr(fails ? "of portion 5" : "for process 1"));
    for (const absl::Status& status : ends) EXPECT_EQ(status, ends[0]);
  }
}

}  // namespace
}  // namespace spmd::runtime
