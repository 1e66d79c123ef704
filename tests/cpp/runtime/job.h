// SPDX-License-Identifier: Apache-2.0
// Threads in the roles of the processes of a job, each with a backend of its own.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "csrc/runtime/executor.h"
#include "csrc/runtime/job_watch.h"
#include "csrc/runtime/peers_local.h"
#include "csrc/runtime/peers_shared.h"
#include "csrc/runtime/tiled_tensor.h"

namespace spmd::runtime {

inline constexpr int64_t kJobDevices = 8;

// Calls f(peers, backend) for each process, on a thread of its own; returns when all have ended.
inline void RunJob(LocalJob& job, const std::function<void(Peers&, Backend&)>& f,
                   bool exact_sums = true) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Peers> peers = job.MakePeers(rank);
      const std::shared_ptr<Backend> backend = *MakeBackend("cpu", kJobDevices);
      backend->Join(peers.get(), kJobDevices / job.size(), exact_sums);
      f(*peers, *backend);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The same with processes that exchange through memory. They find each other as those of a host do,
// each with segments of its own.
inline void RunJobInMemory(int size, const std::function<void(Peers&, Backend&)>& f,
                           bool exact_sums = true,
                           std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  LocalJob job(size);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RunJob(
      job,
      [&](Peers& peers, Backend& backend) {
        const auto watch = JobWatch::Make(store, peers.rank(), size);
        auto shared = ShareMemory(peers, true, watch, "test", timeout);
        ASSERT_TRUE(shared.ok()) << shared.status();
        ASSERT_NE(*shared, nullptr);
        backend.Join(shared->get(), kJobDevices / size, exact_sums);
        f(**shared, backend);
      },
      exact_sums);
}

// What each process returns for a program that is given as text: by rank.
struct JobResult {
  absl::Status status;
  std::vector<at::Tensor> values;             // of the results, as each process reads them
  std::vector<LoadedProgram::Argument> left;  // the arguments after the run
};
inline std::vector<JobResult> RunTextInJob(LocalJob& job, const std::string& text,
                                           const std::vector<at::Tensor>& inputs,
                                           const std::vector<c10::Scalar>& scalars = {},
                                           int64_t overlap_from = Backend::kNoOverlap) {
  std::vector<JobResult> results(job.size());
  RunJob(job, [&](Peers& peers, Backend& backend) {
    backend.set_overlap_from(overlap_from);
    JobResult& result = results[peers.rank()];
    const auto run = [&]() -> absl::Status {
      auto program = program::Program::Parse(text);
      if (!program.ok()) return program.status();
      const std::shared_ptr<Backend> shared(std::shared_ptr<void>(), &backend);
      auto loaded = LoadedProgram::Load(*std::move(program), shared);
      if (!loaded.ok()) return loaded.status();
      for (size_t i = 0; i < inputs.size(); ++i) {
        const program::Input& input = (*loaded)->program().inputs[i];
        const Layout layout = (*loaded)->program().LayoutOf(input.value);
        result.left.push_back({Upload(inputs[i], layout, backend), input.donated});
      }
      auto ran = (*loaded)->Run(absl::MakeSpan(result.left), scalars);
      if (!ran.ok()) return ran.status();
      for (const TiledTensorPtr& value : *ran) {
        auto host = Download(*value, &peers);
        if (!host.ok()) return host.status();
        result.values.push_back(*std::move(host));
      }
      return absl::OkStatus();
    };
    result.status = run();
  });
  return results;
}

}  // namespace spmd::runtime
