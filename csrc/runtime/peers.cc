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

int64_t Sum(absl::Span<const int64_t> values) {
  int64_t sum = 0;
  for (const int64_t value : values) sum += value;
  return sum;
}

}  // namespace

absl::Status Peers::Exchange(const at::Tensor& send, absl::Span<const int64_t> send_bytes,
                             const at::Tensor& receive, absl::Span<const int64_t> receive_bytes) {
  SPMD_CHECK(std::ssize(send_bytes) == size_ && std::ssize(receive_bytes) == size_ &&
                 send.numel() == Sum(send_bytes) && receive.numel() == Sum(receive_bytes) &&
                 send_bytes[rank_] == 0 && receive_bytes[rank_] == 0,
             "the sizes of an exchange do not fit its buffers");
  SPMD_RETURN_IF_ERROR(failure());
  return DoExchange(send, send_bytes, receive, receive_bytes);
}

absl::StatusOr<std::vector<Peers::Words>> Peers::Agree(const Words& mine) {
  std::vector<int64_t> sizes(size_, sizeof(Words));
  sizes[rank_] = 0;
  const at::Tensor send = Bytes(Sum(sizes)), receive = Bytes(Sum(sizes));
  auto* const to = static_cast<char*>(send.data_ptr());
  for (int i = 0; i < size_ - 1; ++i) std::memcpy(to + i * sizeof(Words), &mine, sizeof(Words));
  SPMD_RETURN_IF_ERROR(Exchange(send, sizes, receive, sizes));
  const auto* from = static_cast<const char*>(receive.data_ptr());
  std::vector<Words> all(size_);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) {
      all[r] = mine;
      continue;
    }
    std::memcpy(&all[r], from, sizeof(Words));
    from += sizeof(Words);
  }
  return all;
}

absl::StatusOr<std::vector<std::string>> Peers::Tell(const std::string& mine) {
  SPMD_ASSIGN_OR_RETURN(const std::vector<Words> lengths, Agree({mine.size()}));
  std::vector<int64_t> send_bytes(size_, static_cast<int64_t>(mine.size())), receive_bytes;
  send_bytes[rank_] = 0;
  for (int r = 0; r < size_; ++r) {
    receive_bytes.push_back(r == rank_ ? 0 : static_cast<int64_t>(lengths[r][0]));
  }
  const at::Tensor send = Bytes(Sum(send_bytes)), receive = Bytes(Sum(receive_bytes));
  if (!mine.empty()) {
    auto* const to = static_cast<char*>(send.data_ptr());
    for (int i = 0; i < size_ - 1; ++i) std::memcpy(to + i * mine.size(), mine.data(), mine.size());
  }
  SPMD_RETURN_IF_ERROR(Exchange(send, send_bytes, receive, receive_bytes));
  std::vector<std::string> all;
  const auto* from = static_cast<const char*>(receive.data_ptr());
  for (int r = 0; r < size_; ++r) {
    all.push_back(r == rank_ ? mine : std::string(from, receive_bytes[r]));
    from += receive_bytes[r];
  }
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
