// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/private_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

absl::Status SystemError(absl::string_view what, int error) {
  const std::string text = absl::StrCat(what, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

// Closes the descriptor when it is destroyed.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

absl::Status CheckOwner(const std::string& path, const struct stat& status) {
  if (status.st_uid != ::geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the directory ", path, " belongs to another user"));
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("other users may write to the directory ", path, "; `chmod go-w` it"));
  }
  return absl::OkStatus();
}

// Creates every missing directory of the path; the last one for this user alone.
absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (error) return absl::UnavailableError(absl::StrCat(parent.string(), ": ", error.message()));
  if (::mkdir(path.c_str(), S_IRWXU) == 0 || errno == EEXIST) return absl::OkStatus();
  return SystemError(path, errno);
}

absl::Status WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("cannot write", errno);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

int64_t Nanoseconds(const struct timespec& time) {
  return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

}  // namespace

absl::StatusOr<PrivateDirectory> PrivateDirectory::Open(const std::string& path, bool make) {
  if (make) SPMD_RETURN_IF_ERROR(MakeDirectories(path));
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return SystemError(path, errno);
  PrivateDirectory directory(path, fd);
  struct stat status;
  if (::fstat(fd, &status) != 0) return SystemError(path, errno);
  SPMD_RETURN_IF_ERROR(CheckOwner(path, status));
  return directory;
}

PrivateDirectory::PrivateDirectory(PrivateDirectory&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

PrivateDirectory& PrivateDirectory::operator=(PrivateDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

PrivateDirectory::~PrivateDirectory() {
  if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<std::string> PrivateDirectory::Read(const std::string& name,
                                                   int64_t max_bytes) const {
  const std::string path = absl::StrCat(path_, "/", name);
  const File file(
      ::openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  const int error = errno;
  if (!file.ok() && (error == ELOOP || error == ENXIO)) {
    return absl::DataLossError(absl::StrCat(path, " is no regular file"));
  }
  if (!file.ok()) return SystemError(path, error);
  struct stat status;
  if (::fstat(file.fd(), &status) != 0) return SystemError(path, errno);
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) {
    return absl::DataLossError(absl::StrCat(path, " is no regular file of this user's"));
  }
  if (status.st_size > max_bytes) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", status.st_size, " bytes, more than ", max_bytes));
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::read(file.fd(), text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path, errno);
    if (got == 0) break;  // another process truncated the file meanwhile
    have += static_cast<size_t>(got);
  }
  text.resize(have);
  ::futimens(file.fd(), nullptr);
  return text;
}

absl::Status PrivateDirectory::Write(const std::string& name, absl::string_view text) const {
  static std::atomic<int64_t> next_number{0};
  constexpr int kTries = 100;  // a dead process with our number may have left files of these names
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  std::string aside;
  int fd = -1;
  for (int i = 0; i < kTries && fd < 0; ++i) {
    aside = absl::StrCat(name, ".", ::getpid(), ".", next_number++);
    fd = ::openat(fd_, aside.c_str(), kFlags, S_IRUSR | S_IWUSR);
    if (fd < 0 && errno != EEXIST) break;
  }
  if (fd < 0) return SystemError(absl::StrCat(path_, "/", aside), errno);
  absl::Status status;
  {
    const File file(fd);
    status = WriteAll(fd, text);
  }
  if (status.ok() && ::renameat(fd_, aside.c_str(), fd_, name.c_str()) != 0) {
    status = SystemError(absl::StrCat(path_, "/", name), errno);
  }
  if (!status.ok()) Remove(aside);
  return status;
}

bool PrivateDirectory::Remove(const std::string& name) const {
  if (::unlinkat(fd_, name.c_str(), 0) == 0 || errno == ENOENT) return true;
  return ::unlinkat(fd_, name.c_str(), AT_REMOVEDIR) == 0;
}

std::vector<PrivateDirectory::Entry> PrivateDirectory::List() const {
  std::vector<Entry> entries;
  const int own = ::openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = own < 0 ? nullptr : ::fdopendir(own);
  if (listing == nullptr) {
    if (own >= 0) ::close(own);
    return entries;
  }
  while (const dirent* item = ::readdir(listing)) {
    const std::string name = item->d_name;
    struct stat status;
    if (name == "." || name == ".." ||
        ::fstatat(fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    entries.push_back({name, int64_t{status.st_size}, Nanoseconds(status.st_mtim)});
  }
  ::closedir(listing);
  return entries;
}

}  // namespace spmd
