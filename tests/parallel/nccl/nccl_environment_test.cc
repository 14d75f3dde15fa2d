// Where NCCL finds its settings, and which of them a run refuses.
#include "parallel/nccl/nccl_environment.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <map>

#include "runtime/device/nccl_library.h"
#include "tests/support/forwarding_env.h"

namespace holdfast::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A machine with these variables and files, and no others.
class Settings final : public ForwardingEnv {
 public:
  Settings() : ForwardingEnv(posix_env()) {}
  std::string variable(const std::string& name) override {
    const auto found = variables.find(name);
    return found == variables.end() ? "" : found->second;
  }
  Result<std::string> read_text(const std::string& path) override {
    const auto found = files.find(path);
    if (found == files.end()) return fail(ExitCode::data, "{} is not there", path);
    return found->second;
  }
  std::string found(const std::string& name) {
    const std::optional<NcclSetting> setting = find_nccl_setting(*this, name);
    return setting.has_value() ? setting->value + " in " + setting->place : "none";
  }

  std::map<std::string, std::string> variables = {{"HOME", "/home/ada"}};
  std::map<std::string, std::string> files = {};
};

TEST(NcclEnvironment, IsSearchedInNcclsOrder) {
  Settings env;
  EXPECT_EQ(env.found("NCCL_DEBUG"), "none");
  env.files["/etc/nccl.conf"] = "# ours\nNCCL_DEBUG=INFO\nNCCL_DEBUG=TRACE\nNCCL_IB_TIMEOUT=20";
  EXPECT_EQ(env.found("NCCL_DEBUG"), "INFO in /etc/nccl.conf");
  EXPECT_EQ(env.found("NCCL_IB_TIMEOUT"), "20 in /etc/nccl.conf");
  EXPECT_EQ(env.found("NCCL_IB"), "none");
  env.files["/home/ada/.nccl.conf"] = "NCCL_DEBUG=WARN\n";
  EXPECT_EQ(env.found("NCCL_DEBUG"), "WARN in /home/ada/.nccl.conf");
  env.variables["NCCL_CONF_FILE"] = "/job/nccl";
  EXPECT_EQ(env.found("NCCL_DEBUG"), "INFO in /etc/nccl.conf") << "instead of the one at home";
  env.files["/job/nccl"] = "NCCL_DEBUG=VERSION\n";
  EXPECT_EQ(env.found("NCCL_DEBUG"), "VERSION in /job/nccl");
  env.variables["NCCL_DEBUG"] = "TRACE";
  EXPECT_EQ(env.found("NCCL_DEBUG"), "TRACE in the environment");
}

TEST(NcclEnvironment, ThatMakesNcclBlockingIsRefused) {
  Settings env;
  EXPECT_TRUE(check_nccl_environment(env).ok());
  env.files["/etc/nccl.conf"] = "NCCL_COMM_BLOCKING=1\n";
  const Result<void> by_file = check_nccl_environment(env);
  ASSERT_FALSE(by_file.ok());
  EXPECT_EQ(by_file.error().code, ExitCode::config);
  EXPECT_THAT(by_file.error().message,
              AllOf(HasSubstr("NCCL_COMM_BLOCKING is 1 in /etc/nccl.conf, but must be 0 or unset"),
                    HasSubstr("parallel.exchange = \"host\"")));
  // NCCL takes some texts for a 1, and others not.
  for (const char* value : {"1", "0x1", "+1", "1 "}) {
    env.variables["NCCL_COMM_BLOCKING"] = value;
    EXPECT_FALSE(check_nccl_environment(env).ok()) << value;
  }
  for (const char* value : {"0", "2", "true", "-1"}) {
    env.variables["NCCL_COMM_BLOCKING"] = value;
    EXPECT_TRUE(check_nccl_environment(env).ok()) << value << ", which wins over the file";
  }
}

TEST(NcclEnvironment, ThreadBlocksOfTheUserAreTheMostThatNcclWouldTake) {
  Settings env;
  EXPECT_EQ(nccl_thread_blocks(env).count, 0);
  env.files["/etc/nccl.conf"] = "NCCL_MAX_CTAS=0x10\n";
  EXPECT_EQ(nccl_thread_blocks(env).setting, "NCCL_MAX_CTAS is 16 in /etc/nccl.conf");
  env.variables["NCCL_MIN_P2P_NCHANNELS"] = "8";
  EXPECT_EQ(nccl_thread_blocks(env).count, 16);
  env.variables["NCCL_MIN_P2P_NCHANNELS"] = "99999";
  EXPECT_EQ(nccl_thread_blocks(env).setting, "NCCL_MIN_P2P_NCHANNELS is 64 in the environment");
  for (const char* value : {"-1", "0", "many", ""}) {
    env.variables["NCCL_MIN_P2P_NCHANNELS"] = value;
    EXPECT_EQ(nccl_thread_blocks(env).count, 16) << value << ", which NCCL ignores";
  }
}

TEST(NcclEnvironment, WhatTheUserSetStays) {
  Settings env;
  const auto variable = [](const char* name) { return posix_env().variable(name); };
  for (const char* name : {"NCCL_NVLS_ENABLE", "NCCL_RAS_ENABLE"}) ASSERT_EQ(variable(name), "");
  env.files["/etc/nccl.conf"] = "NCCL_RAS_ENABLE=1\n";
  set_nccl_variables(env);
  EXPECT_EQ(variable("NCCL_RAS_ENABLE"), "") << "NCCL finds it in its file";
  EXPECT_EQ(variable("NCCL_NVLS_ENABLE"), "0");
  EXPECT_EQ(variable("NCCL_MULTI_RANK_GPU_ENABLE"), "1");
  for (const char* name : {"NCCL_NVLS_ENABLE", "NCCL_MULTI_RANK_GPU_ENABLE"}) unsetenv(name);
}

TEST(NcclLibrary, ThreadBlocksOfAllCommunicatorsOnAGpuFitAtOnce) {
  EXPECT_EQ(nccl_max_ctas(1, 1), 0) << "NCCL's own";
  EXPECT_EQ(nccl_max_ctas(2, 1), 16);
  EXPECT_EQ(nccl_max_ctas(3, 1), 8) << "NCCL would make 16 of 10";
  EXPECT_EQ(nccl_max_ctas(1, 6), 4);
  EXPECT_EQ(nccl_max_ctas(2, 6), 2);
  EXPECT_EQ(nccl_max_ctas(8, 6), 1);
}

}  // namespace
}  // namespace holdfast::test
