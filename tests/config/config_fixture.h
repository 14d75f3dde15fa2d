// What the config tests share: a folder of files that goes away, environment variables that go away, and the
// overrides that make any text a complete config.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/config/loader.h"

namespace holdfast::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) /
            (std::string("holdfast-config-") + test->test_suite_name() + "-" + test->name() + "-" +
             std::to_string(getpid()));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return file.string();
  }
  std::string path(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~ScopedVariable() { unsetenv(name_.c_str()); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  std::string name_;
};

// Values for everything that is required.
inline std::vector<Override> complete() {
  return {{"run.directory", "runs/a"}, {"data.sources", "[{ path = \"corpus.txt\" }]"},
          {"training.steps", "100"},   {"model.layers", "2"},
          {"model.heads", "4"},        {"model.width", "64"}};
}

// The same as TOML, on four lines.
inline constexpr const char* kCompleteText =
    "run = { directory = \"runs/a\" }\n"
    "data = { sources = [{ path = \"corpus.txt\" }] }\n"
    "training = { steps = 100 }\n"
    "model = { layers = 2, heads = 4, width = 64 }\n";

inline Result<LoadedConfig> load(const std::string& text, const std::vector<Override>& overrides) {
  return load_config_text(posix_env(), text, "run.toml", overrides);
}

// The message of the failure; the config exit code is part of the promise.
inline std::string failure(const Result<LoadedConfig>& result) {
  if (result.ok()) return "(no failure)";
  EXPECT_EQ(result.error().code, ExitCode::config);
  return result.error().message;
}

}  // namespace holdfast::test
