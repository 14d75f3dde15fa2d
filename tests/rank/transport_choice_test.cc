// The choice among the ways of the device's memory between ranks, by table.
#include "runtime/rank/transport_choice.h"

#include <gmock/gmock.h>
#include <stdlib.h>

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr int nccl_2_30 = 23007, nccl_2_28 = 22809;

TransportMeans gpu_rank(const std::string& gpu, int nccl_version) {
  return {.host = "node" + gpu, .gpu = gpu, .nccl_version = nccl_version};
}
TransportMeans without_nccl(const std::string& gpu) {
  return {.host = "node" + gpu, .gpu = gpu, .nccl_missing = "libnccl.so.2 is not there"};
}
TransportMeans cpu_rank() {
  return {.host = "node", .host_sees_memory = true};
}

struct Choice {
  const char* name;
  std::vector<TransportMeans> ranks;
  bool nccl;          // of "auto"
  int ranks_per_gpu;  // of "auto"
  const char* description;
  const char* refusal;  // of "nccl"; null: none
};

std::vector<Choice> choices() {
  return {
      {"one rank", {gpu_rank("a", nccl_2_28)}, false, 1, "none: there is one rank", nullptr},
      {"one rank without", {without_nccl("a")}, false, 1, "none: there is one rank", nullptr},
      {"the CPU", {cpu_rank(), cpu_rank()}, false, 1, "host memory", "but the run computes on the CPU"},
      {"a GPU each", {gpu_rank("a", nccl_2_28), gpu_rank("b", nccl_2_28)}, true, 1, "NCCL 2.28.9", nullptr},
      {"the oldest",
       {gpu_rank("a", NcclLibrary::version_min), gpu_rank("b", NcclLibrary::version_min)},
       true,
       1,
       "NCCL 2.18.1",
       nullptr},
      {"the last before those that crash when they connect again",
       {gpu_rank("a", 22802), gpu_rank("b", 22802)},
       true,
       1,
       "NCCL 2.28.2",
       nullptr},
      {"the first that crashes when it connects again",
       {gpu_rank("a", 22803), gpu_rank("b", 22803)},
       false,
       1,
       "pinned host memory, because NCCL 2.28.3 may crash when ranks connect again after a death (so do "
       "2.28.3 to 2.28.8; install 2.28.9 or newer)",
       "but NCCL 2.28.3 may crash"},
      {"the last that crashes when it connects again",
       {gpu_rank("a", 22808), gpu_rank("b", 22808)},
       false,
       1,
       "pinned host memory, because NCCL 2.28.8 may crash when ranks connect again after a death (so do "
       "2.28.3 to 2.28.8; install 2.28.9 or newer)",
       "but NCCL 2.28.8 may crash"},
      {"a shared GPU and an old NCCL",
       {gpu_rank("a", nccl_2_28), gpu_rank("b", nccl_2_28), gpu_rank("b", nccl_2_28)},
       false,
       2,
       "pinned host memory, because ranks 1 and 2 share a GPU, which NCCL 2.28.9 refuses (2.30.3 is the "
       "first "
       "that takes them)",
       "but ranks 1 and 2 share a GPU"},
      {"the last that refuses",
       {gpu_rank("a", NcclLibrary::version_shared_gpus - 1),
        gpu_rank("a", NcclLibrary::version_shared_gpus - 1)},
       false,
       2,
       "pinned host memory, because ranks 0 and 1 share a GPU, which NCCL 2.30.2 refuses (2.30.3 is the "
       "first "
       "that takes them)",
       "NCCL 2.30.2 refuses"},
      {"the first that takes them",
       {gpu_rank("a", NcclLibrary::version_shared_gpus), gpu_rank("a", NcclLibrary::version_shared_gpus)},
       true,
       2,
       "NCCL 2.30.3, up to 2 ranks on one GPU",
       nullptr},
      {"unevenly shared",
       {gpu_rank("a", nccl_2_30), gpu_rank("b", nccl_2_30), gpu_rank("b", nccl_2_30),
        gpu_rank("a", nccl_2_30), gpu_rank("b", nccl_2_30)},
       true,
       3,
       "NCCL 2.30.7, up to 3 ranks on one GPU",
       nullptr},
      {"missing on one rank",
       {gpu_rank("a", nccl_2_30), without_nccl("b")},
       false,
       1,
       "pinned host memory, because rank 1 (nodeb) has no NCCL: libnccl.so.2 is not there",
       "but rank 1 (nodeb) has no NCCL: libnccl.so.2 is not there. With \"auto\" or \"host\""},
      {"versions differ",
       {gpu_rank("a", nccl_2_30), gpu_rank("b", nccl_2_28)},
       false,
       1,
       "pinned host memory, because rank 0 (nodea) has NCCL 2.30.7, but rank 1 (nodeb) has 2.28.9",
       "but rank 1 (nodeb) has 2.28.9"},
  };
}

TEST(TransportChoice, FollowsFromWhatTheRanksHave) {
  for (const Choice& each : choices()) {
    SCOPED_TRACE(each.name);
    const Result<TransportChoice> choice = choose_transport("auto", each.ranks);
    ASSERT_TRUE(choice.ok());
    EXPECT_EQ(choice->way == TransportWay::nccl, each.nccl);
    EXPECT_EQ(choice->ranks_per_gpu, each.ranks_per_gpu);
    EXPECT_EQ(choice->description, each.description);
  }
}

TEST(TransportChoice, NcclThatIsWantedIsHadOrRefused) {
  for (const Choice& each : choices()) {
    SCOPED_TRACE(each.name);
    const Result<TransportChoice> choice = choose_transport("nccl", each.ranks);
    ASSERT_EQ(choice.ok(), each.refusal == nullptr);
    if (choice.ok()) {
      EXPECT_EQ(choice->way == TransportWay::nccl, each.nccl);
      continue;
    }
    EXPECT_EQ(choice.error().code, ExitCode::config);
    EXPECT_THAT(choice.error().message, HasSubstr("parallel.exchange = \"nccl\", "));
    EXPECT_THAT(choice.error().message, HasSubstr(each.refusal));
  }
}

TEST(TransportChoice, TheHostCanAlwaysBeHad) {
  for (const Choice& each : choices()) {
    SCOPED_TRACE(each.name);
    const Result<TransportChoice> choice = choose_transport("host", each.ranks);
    ASSERT_TRUE(choice.ok());
    EXPECT_EQ(choice->way, TransportWay::host);
  }
  const std::vector<TransportMeans> two = {gpu_rank("a", nccl_2_30), gpu_rank("b", nccl_2_30)};
  EXPECT_EQ(choose_transport("host", two)->description,
            "pinned host memory, as parallel.exchange = \"host\" asks");
}

TEST(TransportChoice, ThreadBlocksOfTheUserBeyondTheLimitAreASentence) {
  std::vector<TransportMeans> ranks = {gpu_rank("a", nccl_2_30), gpu_rank("a", nccl_2_30)};
  EXPECT_EQ(thread_block_warning(ranks, 16), "");
  ranks[1].thread_blocks = 32;
  ranks[1].blocks_setting = "NCCL_MAX_CTAS is 32 in the environment";
  EXPECT_EQ(thread_block_warning(ranks, 0), "") << "one communicator alone on a GPU";
  EXPECT_EQ(thread_block_warning(ranks, 32), "");
  EXPECT_THAT(
      thread_block_warning(ranks, 16),
      HasSubstr("NCCL_MAX_CTAS is 32 in the environment of rank 1 (nodea), which wins over the limit of 16"));
}

Config config_of_shape(int data, int pipeline, int tensor) {
  Config config;
  config.device = "cuda";
  config.parallel.data = data;
  config.parallel.pipeline = pipeline;
  config.parallel.tensor = tensor;
  return config;
}

TEST(TransportChoice, ExchangesAtOnceFollowFromTheLayout) {
  EXPECT_EQ(transports_at_once(config_of_shape(0, 0, 0), 1), 0);
  EXPECT_EQ(transports_at_once(config_of_shape(0, 0, 0), 8), 1);
  EXPECT_EQ(transports_at_once(config_of_shape(0, 0, 8), 8), 1);
  EXPECT_EQ(transports_at_once(config_of_shape(0, 1, 4), 8), 2);
  EXPECT_EQ(transports_at_once(config_of_shape(1, 2, 1), 2), 2);
  EXPECT_EQ(transports_at_once(config_of_shape(2, 4, 1), 8), 5);
  EXPECT_EQ(transports_at_once(config_of_shape(4, 1, 2), 2), 1) << "what is left of four copies";
  Config ring = config_of_shape(2, 2, 2);
  ring.parallel.pipeline_chunks = 2;
  EXPECT_EQ(transports_at_once(ring, 8), 6);
}

class CudaVariables : public testing::Test {
 protected:
  CudaVariables() {
    setenv("HOLDFAST_CUDA_MODULE", "one that is not looked at", 1);
    setenv("NCCL_CONF_FILE", "/nowhere/nccl.conf", 1);
  }
  ~CudaVariables() override {
    for (const char* name :
         {"HOLDFAST_CUDA_MODULE", "NCCL_CONF_FILE", "CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS",
          "NCCL_NVLS_ENABLE", "NCCL_RAS_ENABLE", "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_COMM_BLOCKING"}) {
      unsetenv(name);
    }
  }
  static void prepare(const Config& config, int ranks) {
    const Result<void> prepared = prepare_cuda_for_nccl(posix_env(), config, ranks);
    EXPECT_TRUE(prepared.ok()) << prepared.error().message;
  }
  static std::string nccl(const std::string& name) { return posix_env().variable("NCCL_" + name); }
  std::string loading() const { return posix_env().variable("CUDA_MODULE_LOADING"); }
  std::string connections() const { return posix_env().variable("CUDA_DEVICE_MAX_CONNECTIONS"); }
};

TEST_F(CudaVariables, AreSetWhereSeveralExchangesMayGoByNccl) {
  Config on_host = config_of_shape(2, 2, 1), on_cpu = config_of_shape(2, 2, 1);
  on_host.parallel.exchange = "host";
  on_cpu.device = "cpu";
  for (const Config& config : {on_host, on_cpu, config_of_shape(2, 1, 1)}) {
    prepare(config, 4);
    EXPECT_EQ(loading(), "");
    EXPECT_EQ(connections(), "");
  }
  prepare(config_of_shape(1, 1, 2), 6);
  EXPECT_EQ(loading(), "") << "four of them are spares";
  prepare(config_of_shape(2, 2, 1), 4);
  EXPECT_EQ(loading(), "EAGER");
  EXPECT_EQ(connections(), "32");
}

TEST_F(CudaVariables, OfNcclAreSetWhereItMayBeUsed) {
  Config on_host = config_of_shape(2, 1, 1), on_cpu = config_of_shape(2, 1, 1);
  on_host.parallel.exchange = "host";
  on_cpu.device = "cpu";
  for (const Config& config : {on_host, on_cpu}) {
    prepare(config, 2);
    EXPECT_EQ(nccl("RAS_ENABLE"), "");
  }
  setenv("NCCL_NVLS_ENABLE", "1", 1);
  prepare(config_of_shape(0, 1, 1), 1);
  EXPECT_EQ(nccl("RAS_ENABLE"), "0") << "also of one rank: others may come";
  EXPECT_EQ(nccl("MULTI_RANK_GPU_ENABLE"), "1");
  EXPECT_EQ(nccl("NVLS_ENABLE"), "1") << "the user's";
  EXPECT_EQ(nccl("MAX_CTAS"), "") << "that is said for each communicator";
}

TEST_F(CudaVariables, ThatMakeNcclBlockingAreRefused) {
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  Config on_host = config_of_shape(2, 1, 1), on_cpu = config_of_shape(2, 1, 1);
  on_host.parallel.exchange = "host";
  on_cpu.device = "cpu";
  for (const Config& config : {on_host, on_cpu}) prepare(config, 2);
  prepare(config_of_shape(0, 1, 1), 1);
  for (const char* transport : {"auto", "nccl"}) {
    Config config = config_of_shape(2, 1, 1);
    config.parallel.exchange = transport;
    const Result<void> prepared = prepare_cuda_for_nccl(posix_env(), config, 2);
    ASSERT_FALSE(prepared.ok());
    EXPECT_EQ(prepared.error().code, ExitCode::config);
    EXPECT_THAT(prepared.error().message, HasSubstr("NCCL_COMM_BLOCKING is 1 in the environment"));
  }
  setenv("NCCL_COMM_BLOCKING", "0", 1);
  prepare(config_of_shape(2, 1, 1), 2);
}

TEST_F(CudaVariables, StayWhatTheyWereSetTo) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  prepare(config_of_shape(2, 2, 1), 4);
  EXPECT_EQ(loading(), "LAZY");
  EXPECT_EQ(connections(), "32");
}

}  // namespace
}  // namespace holdfast::test
