// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/private_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace spmd {
namespace {

namespace fs = std::filesystem;

std::string Content(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class PrivateDirectoryTest : public testing::Test {
 protected:
  PrivateDirectoryTest()
      : base_(fs::path(testing::TempDir()) /
              absl::StrCat("private_directory_", ::getpid(), "_",
                           testing::UnitTest::GetInstance()->current_test_info()->name())),
        path_((base_ / "a" / "b").string()) {
    fs::remove_all(base_);
    fs::create_directories(base_);
  }
  ~PrivateDirectoryTest() override { fs::remove_all(base_); }

  PrivateDirectory Made() const {
    absl::StatusOr<PrivateDirectory> directory = PrivateDirectory::Open(path_, /*make=*/true);
    EXPECT_TRUE(directory.ok()) << directory.status();
    return *std::move(directory);
  }

  fs::path base_;
  std::string path_;
};

TEST_F(PrivateDirectoryTest, KeepsFilesForThisUserAlone) {
  EXPECT_TRUE(absl::IsNotFound(PrivateDirectory::Open(path_, /*make=*/false).status()));
  const PrivateDirectory directory = Made();
  struct stat status;
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  ASSERT_TRUE(directory.Write("x", "one").ok());
  ASSERT_TRUE(directory.Write("x", "two").ok());
  EXPECT_EQ(*directory.Read("x", 100), "two");
  ASSERT_EQ(::stat((path_ + "/x").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_TRUE(absl::IsNotFound(directory.Read("y", 100).status()));
  EXPECT_EQ(directory.List().size(), 1u);
  EXPECT_TRUE(directory.Remove("x"));
  EXPECT_TRUE(directory.List().empty());
}

TEST_F(PrivateDirectoryTest, IsNotUsedWhereOthersMayWrite) {
  Made();
  for (const mode_t mode : {0770, 0702, 01777}) {
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
    const absl::Status status = PrivateDirectory::Open(path_, /*make=*/true).status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "chmod go-w")) << status;
  }
  ASSERT_EQ(::chmod(path_.c_str(), 0755), 0);
  EXPECT_TRUE(PrivateDirectory::Open(path_, /*make=*/false).ok());
}

TEST_F(PrivateDirectoryTest, WhatIsNoFileIsNeitherReadNorWaitedFor) {
  const PrivateDirectory directory = Made();
  ASSERT_EQ(::mkfifo((path_ + "/pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", path_ + "/zero");
  fs::create_symlink("nowhere", path_ + "/link");
  fs::create_directory(path_ + "/directory");
  std::ofstream(path_ + "/large") << "12345";
  for (const char* name : {"pipe", "zero", "link", "directory", "large"}) {
    EXPECT_TRUE(absl::IsDataLoss(directory.Read(name, 4).status()))
        << name << ": " << directory.Read(name, 4).status();
    EXPECT_TRUE(directory.Remove(name)) << name;
  }
  EXPECT_TRUE(directory.List().empty());
}

TEST_F(PrivateDirectoryTest, NothingIsWrittenThroughLinks) {
  const PrivateDirectory directory = Made();
  const fs::path victim = base_ / "victim";
  std::ofstream(victim) << "precious";
  for (int k = 0; k < 40; ++k) {
    fs::create_symlink(victim, absl::StrCat(path_, "/x.", ::getpid(), ".", k));
  }
  fs::create_symlink(victim, path_ + "/x");
  ASSERT_TRUE(directory.Write("x", "text").ok());
  EXPECT_EQ(Content(victim), "precious");
  EXPECT_EQ(*directory.Read("x", 100), "text");
}

}  // namespace
}  // namespace spmd
