// The line that starts mpirun, word for word.
#include "runtime/launch/mpirun_line.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/launch/variables_env.h"

namespace holdfast::test {
namespace {

const LaunchPaths places{.mpirun = "/mpi/bin/mpirun",
                         .opal_prefix = "/mpi",
                         .program = "/bin/holdfast",
                         .one_host = "/conf/one_host.conf",
                         .several_hosts = "/conf/several_hosts.conf"};

std::string line_of(const LaunchOptions& options, const LaunchShape& shape,
                    const std::map<std::string, std::string>& variables = {{"HOME", "/root"}}) {
  VariablesEnv env(variables);
  return shell_line(mpirun_line(env, options, places, shape));
}

TEST(MpirunLine, OneHost) {
  LaunchOptions options;
  options.config = "run.toml";
  EXPECT_EQ(
      line_of(options,
              {.ranks = 4, .overrides = {"--training.steps=9", "--data.sources=[{path = \"it's\"}]"}}),
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OPAL_PREFIX=/mpi "
      "PRTE_MCA_hwloc_default_binding_policy=none PRTE_MCA_rmaps_default_mapping_policy=slot:OVERSUBSCRIBE "
      "/mpi/bin/mpirun --with-ft ulfm --prtemca state_base_recoverable 1 --prtemca state_base_notify_errors "
      "1 "
      "--tune /conf/one_host.conf -np 4 /bin/holdfast train run.toml --training.steps=9 "
      "'--data.sources=[{path = \"it'\\''s\"}]'");
}

// Open MPI takes its settings from there.
TEST(MpirunLine, WithoutHomeItIsTheOneThatWasFound) {
  VariablesEnv env(std::map<std::string, std::string>{});
  LaunchPaths found = places;
  EXPECT_FALSE(mpirun_line(env, {}, found, {}).variables.contains("HOME"));
  found.home = "/home/found";
  EXPECT_EQ(mpirun_line(env, {}, found, {}).variables.at("HOME"), "/home/found");
  VariablesEnv with(std::map<std::string, std::string>{{"HOME", "/h"}});
  EXPECT_FALSE(mpirun_line(with, {}, found, {}).variables.contains("HOME"));
}

TEST(MpirunLine, WhatTheUserHasSetStays) {
  LaunchOptions options;
  options.config = "run.toml";
  options.tune = "my.conf";
  options.hostfile = "hosts";
  EXPECT_EQ(line_of(options, {.ranks = 2, .several_hosts = true},
                    {{"HOME", "/h"},
                     {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                     {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                     {"OPAL_PREFIX", "/other"},
                     {"PRTE_MCA_hwloc_default_binding_policy", "core"},
                     {"PRTE_MCA_rmaps_default_mapping_policy", "node"}}),
            "/mpi/bin/mpirun --with-ft ulfm --prtemca state_base_recoverable 1 --prtemca "
            "state_base_notify_errors 1 "
            "--tune my.conf -np 2 --hostfile hosts /bin/holdfast train run.toml");
}

TEST(MpirunLine, HostsThatAreLeftStandForTheHostfile) {
  LaunchOptions options;
  options.config = "run.toml";
  options.hostfile = "hosts";
  const std::string line = line_of(
      options, {.ranks = 4, .several_hosts = true, .hosts = "a:2,c:2", .forwarded = {"HOLDFAST_LAUNCH"}});
  EXPECT_NE(
      line.find("--tune /conf/several_hosts.conf -np 4 --host a:2,c:2 -x HOLDFAST_LAUNCH /bin/holdfast"),
      std::string::npos)
      << line;
  EXPECT_EQ(line.find("--hostfile"), std::string::npos) << line;
}

// srun refuses any other value of the second.
TEST(MpirunLine, InASlurmJobDaemonsStartBesideThoseOfAStartBefore) {
  LaunchOptions options;
  options.config = "run.toml";
  const std::string line = line_of(options, {.ranks = 4, .several_hosts = true, .hosts = "n0:2,n1:2"},
                                   {{"HOME", "/root"}, {"SLURM_JOB_ID", "7"}});
  EXPECT_NE(line.find(" SLURM_NO_KILL=set SLURM_OVERLAP=1 "), std::string::npos) << line;
  EXPECT_NE(line.find(" -np 4 --host n0:2,n1:2 "), std::string::npos) << line;
}

TEST(MpirunLine, VariablesReachDistantRanks) {
  LaunchOptions options;
  options.config = "run.toml";
  options.hosts = "a:2,b:2";
  const std::map<std::string, std::string> set = {{"HOLDFAST_FAULTS", "step.begin@3:2=kill"},
                                                  {"HOLDFAST_TRAINING_STEPS", "9"},
                                                  {"HOLDFAST_NETWORK_INTERFACE", "eth1"},
                                                  {"HOLDFAST_LAUNCH", "another"}};
  const std::string line = line_of(options, {.ranks = 4, .several_hosts = true}, set);
  EXPECT_NE(line.find("-np 4 --host a:2,b:2 -x HOLDFAST_TRAINING_STEPS -x HOLDFAST_NETWORK_INTERFACE "
                      "-x HOLDFAST_FAULTS /bin/holdfast train run.toml"),
            std::string::npos)
      << line;
}

}  // namespace
}  // namespace holdfast::test
