// SPDX-License-Identifier: Apache-2.0
// A directory of files that one user writes and reads back. Readers must expect anything in it: a
// file that another process left half written, a link, a pipe, a directory in place of a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace spmd {

// Names are relative to the directory that was opened, even if its path later leads elsewhere.
// Movable.
// Thread safety: thread-compatible.
class PrivateDirectory {
 public:
  // Opens `path`. If `make`, creates it when it is missing, for this user alone.
  // Errors: NotFound; PermissionDenied if others can write to it or own it; Unavailable with the
  // system's message.
  static absl::StatusOr<PrivateDirectory> Open(const std::string& path, bool make);
  PrivateDirectory(PrivateDirectory&& other) noexcept;
  PrivateDirectory& operator=(PrivateDirectory&& other) noexcept;
  ~PrivateDirectory();

  // The contents of `name`, which must be a regular file (not a link) of this user with at most
  // `max_bytes`. Sets its time of use (Entry::used). Never waits for a writer.
  // Errors: NotFound; DataLoss for anything else that has the name; Unavailable.
  absl::StatusOr<std::string> Read(const std::string& name, int64_t max_bytes) const;
  // Writes a temporary file "<name>.<process>.<number>" and renames it, so that a reader finds all
  // of `text` or nothing. Never writes through a link.
  // Errors: Unavailable.
  absl::Status Write(const std::string& name, absl::string_view text) const;
  // Removes `name`, whatever it is; a directory only if it is empty. Returns false if it is still
  // there.
  bool Remove(const std::string& name) const;

  struct Entry {
    std::string name;
    int64_t bytes = 0;
    int64_t used = 0;  // nanoseconds since 1970
  };
  // All entries except "." and "..".
  std::vector<Entry> List() const;

 private:
  PrivateDirectory(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_ = -1;
};

}  // namespace spmd
