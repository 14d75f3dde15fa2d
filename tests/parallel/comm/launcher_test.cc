#include "parallel/comm/launcher.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace holdfast::test {
namespace {

constexpr const char* all_names[] = {"OMPI_COMM_WORLD_RANK",
                                     "OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_RANK",
                                     "MPI_LOCALRANKID",
                                     "SLURM_LOCALID",
                                     "PMIX_RANK",
                                     "PMIX_NAMESPACE",
                                     "PMI_RANK",
                                     "PMI_SIZE",
                                     "MPI_LOCALNRANKS",
                                     "SLURM_STEP_NUM_TASKS",
                                     "SLURM_STEP_TASKS_PER_NODE",
                                     "SLURM_TASKS_PER_NODE"};

// The launcher's variables are these and no others until the object goes.
class Launched {
 public:
  Launched(std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const char* name : all_names) {
      const char* value = getenv(name);
      before_.emplace_back(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name, value, 1);
  }
  ~Launched() {
    for (const auto& [name, value] : before_) {
      unsetenv(name);
      if (value) setenv(name, value->c_str(), 1);
    }
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

// srun --mpi=none starts tasks that know of no others.
TEST(Launcher, TasksWithoutPmixAreNoRanks) {
  const auto is_refused = [](std::initializer_list<std::pair<const char*, const char*>> variables) {
    const Launched launched(variables);
    return !check_tasks_are_ranks(posix_env()).ok();
  };
  EXPECT_TRUE(is_refused({{"SLURM_STEP_NUM_TASKS", "4"}}));
  EXPECT_FALSE(is_refused({{"SLURM_STEP_NUM_TASKS", "1"}}));
  EXPECT_FALSE(is_refused({{"SLURM_STEP_NUM_TASKS", "4"}, {"PMIX_RANK", "2"}}));
  EXPECT_FALSE(is_refused({{"SLURM_STEP_NUM_TASKS", "3"}, {"OMPI_COMM_WORLD_SIZE", "6"}}))
      << "daemons of mpirun";
  const Launched by_srun({{"SLURM_STEP_NUM_TASKS", "4"}, {"PMIX_RANK", "2"}});
  EXPECT_TRUE(launched_by_srun(posix_env()));
}

TEST(Launcher, AloneIsOneRank) {
  const Launched nothing({});
  EXPECT_FALSE(launched_by_mpi(posix_env()));
  EXPECT_EQ(launched_ranks(posix_env()), 1);
  EXPECT_EQ(launched_ranks_on_host(posix_env()), 1);
  EXPECT_EQ(launched_rank_on_host(posix_env()), 0);
}

TEST(Launcher, RanksOfOneStartHaveANameInCommon) {
  {
    const Launched first({{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_NAMESPACE", "prterun-a-4711@1"}});
    EXPECT_EQ(launched_job(posix_env()), "prterun-a-4711");
  }
  {
    const Launched spawned({{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_NAMESPACE", "prterun-a-4711@2"}});
    EXPECT_EQ(launched_job(posix_env()), "prterun-a-4711");
  }
  {
    const Launched other({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
    EXPECT_TRUE(launched_job(posix_env()).starts_with(fmt::format("job-{}-", getppid())));
  }
  const Launched alone({});
  EXPECT_EQ(launched_job(posix_env()), fmt::format("alone-{}", getpid()));
}

// A batch script, which has Slurm's variables, is no rank.
TEST(Launcher, ABatchScriptIsOneRank) {
  const Launched batch({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_TASKS_PER_NODE", "4"}});
  EXPECT_FALSE(launched_by_mpi(posix_env()));
  EXPECT_EQ(launched_ranks(posix_env()), 1);
  EXPECT_EQ(launched_ranks_on_host(posix_env()), 1);
}

TEST(Launcher, OpenMpi) {
  const Launched rank({{"OMPI_COMM_WORLD_RANK", "2"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"SLURM_LOCALID", "0"},
                       {"SLURM_STEP_NUM_TASKS", "2"}});  // of mpirun's own daemons
  EXPECT_TRUE(launched_by_mpi(posix_env()));
  EXPECT_EQ(launched_rank(posix_env()), 2);
  EXPECT_EQ(launched_ranks(posix_env()), 4);
  EXPECT_EQ(launched_ranks_on_host(posix_env()), 3);
  EXPECT_EQ(launched_rank_on_host(posix_env()), 1);
  EXPECT_EQ(launched_as(posix_env()), "rank 2 of 4 (OMPI_COMM_WORLD_SIZE=4)");
}

TEST(Launcher, SlurmWithPmix) {
  const Launched rank({{"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_TASKS_PER_NODE", "4(x2)"}});
  EXPECT_TRUE(launched_by_mpi(posix_env()));
  EXPECT_EQ(launched_ranks(posix_env()), 8);
  EXPECT_EQ(launched_ranks_on_host(posix_env()), 4);
  EXPECT_EQ(launched_as(posix_env()), "rank 0 of 8 (SLURM_STEP_NUM_TASKS=8)");
}

TEST(Launcher, AnotherMpi) {
  const Launched rank({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_TRUE(launched_by_mpi(posix_env()));
  EXPECT_EQ(launched_as(posix_env()), "rank 1 of 2 (PMI_SIZE=2)");
}

TEST(Launcher, WhatIsNotSaidOrNoNumberIsLeftOut) {
  const Launched rank({{"PMIX_RANK", "3"}, {"PMI_SIZE", "many"}, {"SLURM_STEP_NUM_TASKS", "0"}});
  EXPECT_TRUE(launched_by_mpi(posix_env()));
  EXPECT_EQ(launched_ranks(posix_env()), 1);
  EXPECT_EQ(launched_as(posix_env()), "rank 3");
}

}  // namespace
}  // namespace holdfast::test
