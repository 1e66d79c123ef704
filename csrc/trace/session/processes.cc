// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/session/processes.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <sched.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "csrc/runtime/in_place.h"
#include "csrc/runtime/interrupt.h"
#include "csrc/runtime/peers.h"
#include "csrc/trace/device/generator.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {
namespace {

// What must be the same in all processes so that they compile and compute the same, line by line.
std::string Setup(const SessionState& state, const runtime::Backend& backend,
                  const std::string& gpu) {
  const Options& o = state.options;
  return absl::StrCat("PyTorch: ", TORCH_VERSION, "\nthe backend: ", backend.name(),
                      "\nthe number of devices: ", backend.num_devices(),
                      "\nthe CPU's instructions: ", at::get_cpu_capability(), "\nthe GPU: ", gpu,
                      "\nset_deduplication: ", o.deduplicate, "\nSPMD_PRICE_MOVES: ", o.price_moves,
                      "\nthe memory limit: ", o.memory_limit, "\nSPMD_EXACT: ", o.exact,
                      "\nSPMD_VERIFY: ", o.verify, "\nSPMD_REPLAY: ", o.replay,
                      "\nthe seed: ", DefaultGenerator().current_seed());
}

std::string HostName() {
  char name[256] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "an unnamed host";
}

absl::Status CheckSetups(const std::vector<std::string>& all) {
  const std::vector<std::string> first = absl::StrSplit(all[0], '\n');
  std::string differences;
  for (size_t r = 1; r < all.size(); ++r) {
    const std::vector<std::string> other = absl::StrSplit(all[r], '\n');
    for (size_t k = 0; k < std::min(first.size(), other.size()); ++k) {
      if (other[k] == first[k]) continue;
      absl::StrAppend(&differences, differences.empty() ? "" : "; ", first[k], " in process 0, ",
                      other[k].substr(other[k].rfind(": ") + 2), " in process ", r);
    }
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the processes of the job are not set up alike: ", differences));
}

// A backend whose devices can be dealt in equal parts. If nobody has said how many there are, each
// process has one on a GPU, or an equal number of virtual ones on CPUs.
absl::StatusOr<std::shared_ptr<runtime::Backend>> Dealt(const runtime::Backend& backend,
                                                        const runtime::PartOfJob& job) {
  if (!backend.runs_in_jobs()) {
    return absl::UnimplementedError(absl::StrCat(
        "backend '", backend.name(), "' runs in one process, and this job has ", job.processes,
        "; several processes run on the backends 'cpu' and 'cuda'. Set SPMD_DISTRIBUTED=0 to let "
        "each process work alone"));
  }
  int64_t count = backend.num_devices();
  if (!backend.count_is_given()) {
    if (!backend.here().device.is_cpu()) count = 0;
    count = CeilDiv(std::max<int64_t>(count, job.processes), job.processes) * job.processes;
  } else if (count % job.processes != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        count, " devices cannot be dealt to ", job.processes,
        " processes in equal parts; set SPMD_NUM_DEVICES to a multiple of ", job.processes));
  }
  return runtime::MakeBackend(backend.name(), count, std::nullopt, &job);
}

// What the processes know about their GPUs, by rank: as many lines as Gpu has fields.
std::string AsText(const JobConnection::Gpu& gpu) {
  return absl::StrCat(gpu.id, "\n", gpu.kind, "\n", gpu.may_share, "\n", gpu.has_nccl);
}

// True if tiles go from GPU to GPU: NCCL is there, and no two processes share a GPU, with which it
// would refuse to work.
bool UseNccl(const std::vector<std::string>& gpus) {
  absl::flat_hash_set<std::string> ids;
  for (const std::string& text : gpus) {
    const std::vector<std::string> lines = absl::StrSplit(text, '\n');
    if (lines.size() != 4 || lines[3] != "1") return false;
    if (!ids.insert(lines[0]).second && lines[2] != "1") return false;
  }
  return true;
}

// True if each of the `processes` of this host has a core for an exchange beside those on which it
// computes.
bool HasIdleCores(int64_t processes) {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return false;
  return CPU_COUNT(&cores) >= processes * (at::get_num_threads() + 1);
}

// Starting a thread takes some ten microseconds, about the time in which this many bytes are packed
// and copied.
constexpr int64_t kOverlapFrom = 256 << 10;

absl::Status Join(SessionState& state, std::shared_ptr<runtime::Backend>& backend) {
  SPMD_ASSIGN_OR_RETURN(const std::optional<JobConnection> job,
                        state.hooks.join_job(state.options.timeout));
  if (!job.has_value()) return absl::OkStatus();
  Processes& processes = state.processes;
  const int rank = job->script->rank(), size = job->script->size();
  job->script->set_doing("starts torch_spmd");
  const auto tell = [&](const std::string& mine) {
    const GilReleased no_gil(state);
    return job->script->Tell(mine);
  };
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, tell(HostName()));
  const auto on_host = [&](int before) {
    return static_cast<int>(std::count(hosts.begin(), hosts.begin() + before, hosts[rank]));
  };
  SPMD_ASSIGN_OR_RETURN(backend, Dealt(*backend, {size, on_host(size), on_host(rank)}));
  const c10::Device device = backend->here().device;
  JobConnection::Gpu gpu;
  if (!device.is_cpu()) {
    SPMD_ASSIGN_OR_RETURN(gpu, job->describe_gpu(device));
  }
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> setups,
                        tell(Setup(state, *backend, gpu.kind)));
  SPMD_RETURN_IF_ERROR(CheckSetups(setups));
  runtime::Peers* tile_peers = nullptr;
  if (!device.is_cpu()) {
    SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> gpus, tell(AsText(gpu)));
    if (UseNccl(gpus)) {
      SPMD_ASSIGN_OR_RETURN(tile_peers, job->connect_gpus(device));
    }
  }
  job->programs->set_interrupted([] { return runtime::Interrupted(); });
  job->programs->set_doing("runs a program");
  const int64_t each = backend->num_devices() / size;
  backend->Join(job->programs, each, state.options.exact);
  if (tile_peers != nullptr) backend->set_tile_peers(tile_peers);
  if (state.options.overlap.value_or(HasIdleCores(on_host(size)))) {
    backend->set_overlap_from(kOverlapFrom);
  }
  processes.job = *job;
  const bool share_memory = dynamic_cast<runtime::InPlacePeers*>(job->programs) != nullptr;
  processes.description =
      absl::StrCat(backend->name(), ": ", backend->num_devices(), " virtual devices in ", size,
                   " processes", share_memory ? " that share memory" : "",
                   device.is_cpu()         ? ""
                   : tile_peers != nullptr ? ", tiles through NCCL"
                                           : ", tiles through the host");
  for (int r = 0; r < size; ++r) {
    absl::StrAppend(&processes.description, "\n  process ", r, r == rank ? " (this one)" : "",
                    " on ", hosts[r], ": device", each == 1 ? " " : "s ", r * each,
                    each == 1 ? "" : absl::StrCat("-", (r + 1) * each - 1),
                    r == rank && !device.is_cpu() ? absl::StrCat(" on ", device.str()) : "");
  }
  return absl::OkStatus();
}

}  // namespace

int Processes::rank() const { return several() ? job.script->rank() : 0; }
int Processes::size() const { return several() ? job.script->size() : 1; }

void FailJob(const SessionState& state, const absl::Status& why) {
  if (!state.processes.several()) return;
  state.processes.job.script->Fail(absl::Status(
      why.code(), absl::StrCat(runtime::ProcessName(state.processes.rank()), ": ", why.message())));
}

absl::Status JoinProcesses(SessionState& state, std::shared_ptr<runtime::Backend>& backend) {
  Processes& processes = state.processes;
  SPMD_RETURN_IF_ERROR(processes.not_joined);
  // A planning backend computes nothing: each process plans alone.
  if (backend->planning() || state.hooks.join_job == nullptr || !state.options.distributed) {
    return absl::OkStatus();
  }
  if (std::exchange(processes.looked_for, true)) return absl::OkStatus();
  processes.not_joined = Join(state, backend);
  return processes.not_joined;
}

}  // namespace spmd::trace
