// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/rounds.h"

#include <cstring>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

// The same in all processes that run the same build.
uint64_t HashOf(const std::vector<c10::Scalar>& scalars) {
  std::string bytes;
  const auto add = [&](auto value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (const c10::Scalar& scalar : scalars) {
    add(static_cast<int>(scalar.type()));
    if (scalar.isComplex()) {
      add(scalar.toComplexDouble());
    } else if (scalar.isFloatingPoint()) {
      add(scalar.toDouble());
    } else if (scalar.type() == at::kUInt64) {
      add(scalar.toUInt64());
    } else {
      add(scalar.toLong());
    }
  }
  return std::hash<std::string>()(bytes);
}

}  // namespace

absl::Status AgreeToRun(Peers& peers, uint64_t program, const std::vector<c10::Scalar>& scalars) {
  const Peers::Words mine = {program, HashOf(scalars)};
  SPMD_ASSIGN_OR_RETURN(const std::vector<Peers::Words> all, peers.Agree(mine));
  for (int r = 1; r < peers.size(); ++r) {
    if (all[r] == all[0]) continue;
    return absl::FailedPreconditionError(
        all[r][0] != all[0][0]
            ? absl::StrCat(ProcessName(r),
                           " runs another program than process 0 for the same ops. "
                           "Programs are compiled alike by equal builds; do all processes "
                           "import the same torch_spmd?")
            : absl::StrCat(ProcessName(r), " runs the program of process 0 with other numbers"));
  }
  return absl::OkStatus();
}

absl::Status Vote(Peers& peers, const absl::Status& mine, int step) {
  SPMD_ASSIGN_OR_RETURN(
      const std::vector<Peers::Words> votes,
      peers.Agree({mine.ok() ? uint64_t{0} : uint64_t{1}, static_cast<uint64_t>(step)}));
  int first = -1;
  for (int r = 0; r < peers.size(); ++r) {
    if (votes[r][0] != 0 && (first < 0 || votes[r][1] < votes[first][1])) first = r;
  }
  if (first < 0) return absl::OkStatus();
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                        peers.Tell(peers.rank() == first ? StatusToText(mine) : ""));
  return InProcess(StatusFromText(texts[first]), first);
}

absl::Status InProcess(const absl::Status& status, int rank) {
  absl::Status named(status.code(),
                     absl::StrCat(status.message(), " (in ", ProcessName(rank), ")"));
  status.ForEachPayload(
      [&](absl::string_view name, const absl::Cord& value) { named.SetPayload(name, value); });
  return named;
}

void FailAsInterrupted(Peers& peers) {
  peers.Fail(absl::CancelledError(absl::StrCat(ProcessName(peers.rank()), " was interrupted")));
}

}  // namespace spmd::runtime
