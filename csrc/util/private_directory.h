// SPDX-License-Identifier: Apache-2.0
// A directory of files that one user writes and reads again, in which anything may be found all the
// same: what another process left half written, a link, a pipe, a directory where a file should be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace spmd {

// Files are named relative to the directory that was opened, wherever its path leads later.
// Movable. Thread safety: thread-compatible.
class PrivateDirectory {
 public:
  // Makes it where it is not there and `make` says so, for this user alone.
  // Errors: NotFound; PermissionDenied where others than this user may write to it, or own it;
  // Unavailable with what the system says.
  static absl::StatusOr<PrivateDirectory> Open(const std::string& path, bool make);
  PrivateDirectory(PrivateDirectory&& other) noexcept;
  PrivateDirectory& operator=(PrivateDirectory&& other) noexcept;
  ~PrivateDirectory();

  // A regular file of this user's, and no link to one, of at most `max_bytes`. Notes the time, as
  // Entry::used. Never waits for a writer. Errors: NotFound; DataLoss for anything else that has
  // the name; Unavailable.
  absl::StatusOr<std::string> Read(const std::string& name, int64_t max_bytes) const;
  // Written aside, to "<name>.<process>.<number>", and renamed: who reads finds all of it or
  // nothing. Nothing is written through a link. Errors: Unavailable.
  absl::Status Write(const std::string& name, absl::string_view text) const;
  // Whatever it is; of directories, empty ones. False where it is still there.
  bool Remove(const std::string& name) const;

  struct Entry {
    std::string name;
    int64_t bytes = 0;
    int64_t used = 0;  // nanoseconds since 1970
  };
  // All but the directory itself and its parent.
  std::vector<Entry> List() const;

 private:
  PrivateDirectory(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_ = -1;
};

}  // namespace spmd
