// A directory of its own for every test, removed with everything in it when the object goes.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "runtime/os/env.h"

namespace holdfast::test {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    path_ = fmt::format("{}/holdfast.{}.{:016x}", std::filesystem::path(testing::TempDir()).string(),
                        getpid(), posix_env().random_u64());
    std::filesystem::create_directories(path_);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return fmt::format("{}/{}", path_, name); }

 private:
  std::string path_;
};

}  // namespace holdfast::test
