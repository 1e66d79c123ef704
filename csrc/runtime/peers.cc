// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/peers.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

at::Tensor Bytes(int64_t size) { return at::empty({size}, at::kByte); }

}  // namespace

absl::Status Peers::Exchange(const at::Tensor& send, absl::Span<const Range> ranges,
                             absl::Span<const int64_t> received_bytes, Take take) {
  SPMD_CHECK(std::ssize(ranges) == size_ && std::ssize(received_bytes) == size_ &&
                 ranges[rank_].bytes == 0 && received_bytes[rank_] == 0,
             "the sizes of an exchange do not fit its processes");
  for (const Range& range : ranges) {
    SPMD_CHECK(range.begin >= 0 && range.bytes >= 0 && range.begin + range.bytes <= send.numel(),
               "an exchange sends more than there is");
  }
  SPMD_RETURN_IF_ERROR(failure());
  return DoExchange(send, ranges, received_bytes, take);
}

absl::StatusOr<at::Tensor> Peers::BufferToSend(int64_t bytes) { return Bytes(bytes); }

absl::StatusOr<std::vector<Peers::Words>> Peers::Agree(const Words& mine) {
  std::vector<Range> ranges(size_, {0, sizeof(Words)});
  ranges[rank_] = {};
  std::vector<int64_t> received(size_, sizeof(Words));
  received[rank_] = 0;
  const at::Tensor send = Bytes(sizeof(Words));
  std::memcpy(send.mutable_data_ptr(), &mine, sizeof(Words));
  std::vector<Words> all(size_, mine);
  SPMD_RETURN_IF_ERROR(Exchange(send, ranges, received, [&](absl::Span<const at::Tensor> theirs) {
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) std::memcpy(&all[r], theirs[r].const_data_ptr(), sizeof(Words));
    }
  }));
  return all;
}

absl::StatusOr<std::vector<std::string>> Peers::Tell(const std::string& mine) {
  const auto length = static_cast<int64_t>(mine.size());
  SPMD_ASSIGN_OR_RETURN(const std::vector<Words> lengths, Agree({mine.size()}));
  std::vector<Range> ranges(size_, {0, length});
  ranges[rank_] = {};
  std::vector<int64_t> received;
  for (int r = 0; r < size_; ++r) {
    received.push_back(r == rank_ ? 0 : static_cast<int64_t>(lengths[r][0]));
  }
  const at::Tensor send = Bytes(length);
  if (length > 0) std::memcpy(send.mutable_data_ptr(), mine.data(), mine.size());
  std::vector<std::string> all(size_);
  all[rank_] = mine;
  SPMD_RETURN_IF_ERROR(Exchange(send, ranges, received, [&](absl::Span<const at::Tensor> theirs) {
    for (int r = 0; r < size_; ++r) {
      if (received[r] == 0) continue;
      all[r].assign(static_cast<const char*>(theirs[r].const_data_ptr()), received[r]);
    }
  }));
  return all;
}

std::string ProcessName(int rank) { return absl::StrCat("process ", rank); }

std::string StatusToText(const absl::Status& status) {
  std::string text = absl::StrCat(static_cast<int>(status.code()), "\n");
  status.ForEachPayload([&](absl::string_view name, const absl::Cord& value) {
    absl::StrAppend(&text, name, "=", std::string(value), "\n");
  });
  return absl::StrCat(text, "\n", status.message());
}

absl::Status StatusFromText(absl::string_view text) {
  const auto line = [&] {
    const size_t end = text.find('\n');
    const absl::string_view found = text.substr(0, end);
    text.remove_prefix(end == absl::string_view::npos ? text.size() : end + 1);
    return found;
  };
  int code = 0;
  if (!absl::SimpleAtoi(line(), &code)) {
    return absl::InternalError("a process sent what is no status");
  }
  std::vector<std::pair<std::string, std::string>> payloads;
  for (absl::string_view l = line(); !l.empty(); l = line()) {
    const size_t equals = l.find('=');
    if (equals != absl::string_view::npos) {
      payloads.emplace_back(l.substr(0, equals), l.substr(equals + 1));
    }
  }
  absl::Status status(static_cast<absl::StatusCode>(code), text);
  for (const auto& [name, value] : payloads) status.SetPayload(name, absl::Cord(value));
  return status;
}

}  // namespace spmd::runtime
