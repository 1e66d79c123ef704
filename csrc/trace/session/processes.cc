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
std::string Setup(const SessionState& state, const runtime::Backend& backend) {
  const Options& o = state.options;
  return absl::StrCat("PyTorch: ", TORCH_VERSION, "\nthe backend: ", backend.name(),
                      "\nthe number of devices: ", backend.num_devices(),
                      "\nthe CPU's instructions: ", at::get_cpu_capability(),
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

// A backend whose devices can be dealt in equal parts.
absl::StatusOr<std::shared_ptr<runtime::Backend>> Dealt(
    const std::shared_ptr<runtime::Backend>& backend, int processes) {
  if (backend->name().substr(0, 3) != "cpu") {
    return absl::UnimplementedError(absl::StrCat(
        "backend '", backend->name(), "' runs in one process, and this job has ", processes,
        "; several processes run on backend 'cpu'. Set SPMD_DISTRIBUTED=0 to let each process work "
        "alone"));
  }
  if (!backend->elastic()) {
    if (backend->num_devices() % processes == 0) return backend;
    return absl::InvalidArgumentError(absl::StrCat(
        backend->num_devices(), " devices cannot be dealt to ", processes,
        " processes in equal parts; set SPMD_NUM_DEVICES to a multiple of ", processes));
  }
  const int64_t least = std::max<int64_t>(backend->num_devices(), processes);
  return runtime::MakeBackend(backend->name(), CeilDiv(least, processes) * processes);
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
  SPMD_ASSIGN_OR_RETURN(backend, Dealt(backend, job->script->size()));
  const int rank = job->script->rank(), size = job->script->size();
  job->script->set_doing("starts torch_spmd");
  std::vector<std::string> setups, hosts;
  {
    const GilReleased no_gil(state);
    SPMD_ASSIGN_OR_RETURN(setups, job->script->Tell(Setup(state, *backend)));
    SPMD_ASSIGN_OR_RETURN(hosts, job->script->Tell(HostName()));
  }
  SPMD_RETURN_IF_ERROR(CheckSetups(setups));
  job->programs->set_interrupted([] { return runtime::Interrupted(); });
  job->programs->set_doing("runs a program");
  const int64_t each = backend->num_devices() / size;
  backend->Join(job->programs, each, state.options.exact);
  if (state.options.overlap.value_or(
          HasIdleCores(std::count(hosts.begin(), hosts.end(), hosts[rank])))) {
    backend->set_overlap_from(kOverlapFrom);
  }
  processes.job = *job;
  const bool share_memory = dynamic_cast<runtime::InPlacePeers*>(job->programs) != nullptr;
  processes.description =
      absl::StrCat(backend->name(), ": ", backend->num_devices(), " virtual devices in ", size,
                   " processes", share_memory ? " that share memory" : "");
  for (int r = 0; r < size; ++r) {
    absl::StrAppend(&processes.description, "\n  process ", r, r == rank ? " (this one)" : "",
                    " on ", hosts[r], ": device", each == 1 ? " " : "s ", r * each,
                    each == 1 ? "" : absl::StrCat("-", (r + 1) * each - 1));
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
