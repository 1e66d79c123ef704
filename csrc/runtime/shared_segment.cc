// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/shared_segment.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "csrc/util/status.h"

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace spmd::runtime {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free, "counters are shared by processes");

// A waiting process looks this often without a pause, then lets others run, then sleeps.
constexpr int kLooks = 100;
constexpr int kYields = 20;

// The segment begins with a number that tells it from any other file.
constexpr int64_t kTokenBytes = sizeof(uint64_t);

std::string LastError(absl::string_view what) {
  return absl::StrCat(what, ": ", std::strerror(errno));
}

#ifdef __linux__

// The running kernel and its numbering of processes.
std::string Host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char numbering[64] = "";
  const ssize_t length = readlink("/proc/self/ns/pid", numbering, sizeof(numbering) - 1);
  return boot.empty() || length <= 0 ? "" : absl::StrCat(boot, " ", numbering);
}

int MakeFile() { return memfd_create("torch_spmd", MFD_CLOEXEC); }

int OpenFile(int64_t process, int64_t file) {
  const std::string path = absl::StrCat("/proc/", process, "/fd/", file);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

int OpenProcess(int64_t process) {
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process), 0));
#else
  return -1;
#endif
}

void Sleep(std::atomic<uint32_t>& word, uint32_t value, std::chrono::milliseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  timespec limit = {};
  limit.tv_sec = seconds.count();
  limit.tv_nsec = std::chrono::nanoseconds(time - seconds).count();
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &limit, nullptr, 0);
}

void Wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

#else  // no memory that other processes can map by a description

std::string Host() { return ""; }
int MakeFile() {
  errno = ENOSYS;
  return -1;
}
int OpenFile(int64_t, int64_t) { return -1; }
int OpenProcess(int64_t) { return -1; }
void Sleep(std::atomic<uint32_t>&, uint32_t, std::chrono::milliseconds) { sched_yield(); }
void Wake(std::atomic<uint32_t>&) {}

#endif

}  // namespace

void SharedCounter::Set(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) Wake(value_);
}

bool SharedCounter::Await(uint32_t wanted, std::chrono::milliseconds slice) {
  for (int i = 0; i < kLooks; ++i) {
    if (reaches(wanted)) return true;
  }
  for (int i = 0; i < kYields; ++i) {
    sched_yield();
    if (reaches(wanted)) return true;
  }
  // Whoever sets the value sees the sleeper, or the sleeper sees the value.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = value_.load(std::memory_order_seq_cst);
  if (static_cast<int32_t>(seen - wanted) < 0) Sleep(value_, seen, slice);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return reaches(wanted);
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Make(int64_t bytes) {
  if (Host().empty()) return absl::UnavailableError("the host has no name for itself");
  std::unique_ptr<SharedSegment> segment(new SharedSegment());
  segment->file_ = MakeFile();
  if (segment->file_ < 0) return absl::UnavailableError(LastError("memory that can be shared"));
  SPMD_RETURN_IF_ERROR(segment->Grow(bytes));
  segment->owner_id_ = getpid();
  std::random_device random;
  segment->token_ = (static_cast<uint64_t>(random()) << 32) | random();
  std::memcpy(segment->data_, &segment->token_, kTokenBytes);
  return segment;
}

std::string SharedSegment::Describe() const {
  return absl::StrCat(Host(), "\n", owner_id_, "\n", file_, "\n", token_, "\n", bytes_);
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Open(absl::string_view description) {
  const std::vector<absl::string_view> parts = absl::StrSplit(description, '\n');
  int64_t process = 0, file = 0, bytes = 0;
  uint64_t token = 0;
  if (parts.size() != 5 || !absl::SimpleAtoi(parts[1], &process) ||
      !absl::SimpleAtoi(parts[2], &file) || !absl::SimpleAtoi(parts[3], &token) ||
      !absl::SimpleAtoi(parts[4], &bytes) || parts[0] != Host()) {
    return absl::UnavailableError("the process is on another host, or shares no memory");
  }
  std::unique_ptr<SharedSegment> segment(new SharedSegment());
  segment->owner_id_ = process;
  if (process != getpid()) segment->owner_ = OpenProcess(process);
  segment->file_ = OpenFile(process, file);
  struct stat status = {};
  if (segment->file_ < 0 || fstat(segment->file_, &status) != 0 || status.st_size < bytes) {
    return absl::UnavailableError(LastError("the memory of another process"));
  }
  SPMD_RETURN_IF_ERROR(segment->Map(bytes));
  std::memcpy(&segment->token_, segment->data_, kTokenBytes);
  if (segment->token_ != token) return absl::UnavailableError("the memory is another's");
  return segment;
}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
  if (file_ >= 0) close(file_);
  if (owner_ >= 0) close(owner_);
}

absl::Status SharedSegment::Map(int64_t bytes) {
  void* const mapped =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped == MAP_FAILED) return absl::ResourceExhaustedError(LastError("shared memory"));
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
  data_ = static_cast<char*>(mapped);
  bytes_ = bytes;
  return absl::OkStatus();
}

absl::Status SharedSegment::Grow(int64_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  const bool is_mine = owner_id_ == 0 || owner_id_ == getpid();
  // Pages that the system does not have are missed here, and not when they are written to.
  if (is_mine) {
    int error = EINTR;
    while (error == EINTR) error = posix_fallocate(file_, 0, bytes);
    if (error != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat(bytes, " bytes of shared memory: ", std::strerror(error)));
    }
  }
  return Map(bytes);
}

bool SharedSegment::OwnerIsGone() const {
  if (owner_id_ == getpid()) return false;
  if (owner_ < 0) return kill(static_cast<pid_t>(owner_id_), 0) != 0 && errno == ESRCH;
  pollfd process = {owner_, POLLIN, 0};
  return poll(&process, 1, 0) > 0;
}

}  // namespace spmd::runtime
