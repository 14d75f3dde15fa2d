// Hosts that a command prints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/launch/named_hosts.h"
#include "tests/launch/variables_env.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

LaunchOptions with_command(const std::string& command) {
  LaunchOptions options;
  options.ranks = 2;
  options.host_command = command;
  return options;
}

std::string refused(const std::string& command) {
  const Result<std::vector<LaunchHost>> hosts = named_hosts(posix_env(), with_command(command));
  EXPECT_FALSE(hosts.ok()) << command;
  if (hosts.ok()) return "";
  EXPECT_EQ(hosts.error().code, ExitCode::config);
  return hosts.error().message;
}

TEST(NamedHosts, AreThoseThatACommandPrints) {
  const auto hosts =
      named_hosts(posix_env(), with_command("echo warning >&2; echo a slots=2; echo b slots=4"));
  ASSERT_TRUE(hosts.ok()) << hosts.error().message;
  ASSERT_EQ(hosts->size(), 2U) << "what it says on stderr is no host";
  EXPECT_EQ(hosts->front().name, "a");
  EXPECT_EQ(hosts->back().slots, 4);
}

TEST(NamedHosts, ACommandLearnsWhatIsMissing) {
  const LaunchOptions options = with_command(
      "echo \"a$HOLDFAST_HOSTS_MISSING slots=$HOLDFAST_RANKS_MISSING\"; echo $HOLDFAST_WHY_MISSING");
  const auto hosts = named_hosts(posix_env(), options, {.hosts = 1, .ranks = 2, .why = "n2"});
  ASSERT_TRUE(hosts.ok()) << hosts.error().message;
  ASSERT_EQ(hosts->size(), 2U);
  EXPECT_EQ(hosts->front().name, "a1");
  EXPECT_EQ(hosts->front().slots, 2);
  EXPECT_EQ(hosts->back().name, "n2");
}

// Two thousand hosts, whose names are longer than what is kept of other commands.
TEST(NamedHosts, AreAllOfThem) {
  const auto hosts = named_hosts(
      posix_env(),
      with_command("i=0; while [ $i -lt 2000 ]; do echo node$i.example slots=8; i=$((i+1)); done"));
  ASSERT_TRUE(hosts.ok()) << hosts.error().message;
  EXPECT_EQ(hosts->size(), 2000U);
  EXPECT_EQ(hosts->front().name, "node0.example");
}

TEST(NamedHosts, ACommandThatFailsIsASentence) {
  EXPECT_THAT(refused("exit 3"), HasSubstr("the command of --host-command ended with exit code 3"));
  EXPECT_THAT(refused("kill -9 $$"), HasSubstr("was killed by signal 9"));
  EXPECT_THAT(refused("true"), HasSubstr("the command of --host-command names no host"));
  EXPECT_THAT(refused("echo -oProxyCommand=x"),
              HasSubstr("names \"-oProxyCommand=x\", which cannot be the name"));
  EXPECT_THAT(refused("echo 'a;reboot'"),
              HasSubstr("names \"a;reboot\", which cannot be the name of a host"));
  EXPECT_THAT(refused("head -c 2000000 /dev/zero"), HasSubstr("printed more than 1 MiB"));
}

// Lists of nodes and of counts as Slurm writes them, and the hosts of a job.

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::vector<std::string> nodes_of(const std::string& list) {
  const Result<std::vector<std::string>> nodes = nodes_of_slurm_list(list);
  return nodes.ok() ? *nodes : std::vector<std::string>{nodes.error().message};
}

std::vector<int> counts_in(const std::string& list) {
  const Result<std::vector<int>> counts = counts_of_slurm_list(list);
  return counts.ok() ? *counts : std::vector<int>{-1};
}

TEST(SlurmLists, Nodes) {
  EXPECT_THAT(nodes_of("n1"), ElementsAre("n1"));
  EXPECT_THAT(nodes_of("n[01-03,7],m2"), ElementsAre("n01", "n02", "n03", "n7", "m2"));
  EXPECT_THAT(nodes_of("gpu-a[098-101]"), ElementsAre("gpu-a098", "gpu-a099", "gpu-a100", "gpu-a101"));
  EXPECT_THAT(nodes_of("r[0-1]n[2,4]-ib"), ElementsAre("r0n2-ib", "r0n4-ib", "r1n2-ib", "r1n4-ib"));
  EXPECT_THAT(nodes_of("a,b[1],c"), ElementsAre("a", "b1", "c"));
  EXPECT_THAT(nodes_of("n[0-2047]"), SizeIs(2048));
}

TEST(SlurmLists, NoNodes) {
  for (const char* list :
       {"", "n[1-", "n1-2]", "n[]", "n[a]", "n[3-1]", "n[1-2", "n[1,,2]", "n[1]]", "a,,b", "n[-1]",
        "n[0-999999999]", "n[0-99999]x[0-99999]", "n[1-2-3]", "n[99999999999999999999]"})
    EXPECT_FALSE(nodes_of_slurm_list(list).ok()) << list;
  EXPECT_THAT(nodes_of("m,n[3-1]"), ElementsAre("cannot be read at \"3-1\""));
}

TEST(SlurmLists, Counts) {
  EXPECT_THAT(counts_in("4(x2),1"), ElementsAre(4, 4, 1));
  EXPECT_THAT(counts_in("8"), ElementsAre(8));
  EXPECT_THAT(counts_in("2(x2048)"), SizeIs(2048));
  for (const char* list :
       {"", "x", "0", "-1", "4(x0)", "4(x", "4(x2", "4x2", "4(x999999999)", "1,,1", "4(x2)1"})
    EXPECT_THAT(counts_in(list), ElementsAre(-1)) << list;
}

std::string hosts_of(const std::map<std::string, std::string>& variables, int ranks = 1, int least = 0) {
  VariablesEnv env(variables);
  LaunchOptions options;
  options.ranks = ranks;
  options.min_ranks = least;
  const Result<std::vector<LaunchHost>> hosts = named_hosts(env, options);
  return hosts.ok() ? list_of_hosts_left(*hosts, 1 << 20) : hosts.error().message;
}

TEST(SlurmAllocation, ItsNodesAreTheHosts) {
  std::map<std::string, std::string> job = {
      {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[0-1],m"}, {"SLURM_TASKS_PER_NODE", "4(x2),1"}};
  EXPECT_EQ(hosts_of(job, 9), "n0:4,n1:4,m:1");
  job["SLURM_TASKS_PER_NODE"] = "1";  // of a step of one node
  job["SLURM_JOB_CPUS_PER_NODE"] = "8(x2),2";
  EXPECT_EQ(hosts_of(job), "n0:8,n1:8,m:2");
  job["SLURM_CPUS_PER_TASK"] = "4";
  EXPECT_EQ(hosts_of(job), "n0:2,n1:2,m:1");
  job["SLURM_NTASKS_PER_NODE"] = "3";
  EXPECT_EQ(hosts_of(job), "n0:3,n1:3,m:3");
  job["SLURM_JOB_ID"] = "";
  EXPECT_EQ(hosts_of(job), "");
}

TEST(SlurmAllocation, SentencesForWhatIsWrong) {
  const std::map<std::string, std::string> job = {
      {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[0-2]"}, {"SLURM_TASKS_PER_NODE", "2(x3)"}};
  EXPECT_THAT(hosts_of(job, 7),
              HasSubstr("-np asks for 7 ranks, and Slurm job 7 has room for 6: 6 tasks on 3 nodes, n[0-2];"));
  EXPECT_THAT(hosts_of(job, 9, 7), HasSubstr("asks for at least 7 ranks"));
  EXPECT_EQ(hosts_of(job, 9, 6), "n0:2,n1:2,n2:2");
  std::map<std::string, std::string> broken = job;
  broken["SLURM_JOB_NODELIST"] = "n[0-";
  EXPECT_THAT(hosts_of(broken), HasSubstr("SLURM_JOB_NODELIST = \"n[0-\" cannot be read at \"n[0-\""));
  broken = job;
  broken["SLURM_TASKS_PER_NODE"] = "2";
  EXPECT_THAT(
      hosts_of(broken),
      HasSubstr("SLURM_TASKS_PER_NODE = \"2\" is of 1 node, and SLURM_JOB_NODELIST = \"n[0-2]\" of 3;"));
}

TEST(SlurmAllocation, MpirunUsesSrunUnlessItIsToldOtherwise) {
  using Variables = std::map<std::string, std::string>;
  VariablesEnv outside(Variables{}), job(Variables{{"SLURM_JOB_ID", "7"}});
  VariablesEnv by_ssh(Variables{{"SLURM_JOB_ID", "7"}, {"PRTE_MCA_plm", "ssh"}});
  EXPECT_FALSE(mpirun_uses_srun(outside));
  EXPECT_TRUE(mpirun_uses_srun(job));
  EXPECT_FALSE(mpirun_uses_srun(by_ssh));
  EXPECT_THAT(
      srun_line(job, "n1", {"/bin/holdfast", "launch", "x;y"}),
      ElementsAre("srun", "--jobid=7", "--overlap", "--mpi=none", "--input=none", "--export=ALL", "--nodes=1",
                  "--ntasks=1", "--nodelist=n1", "sh", "-c", "/bin/holdfast launch 'x;y'"));
}

}  // namespace

}  // namespace holdfast::test
