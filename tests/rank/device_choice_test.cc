// Names of devices.
#include "runtime/rank/device_choice.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/config/loader.h"

namespace holdfast::test {
namespace {

TEST(DeviceChoice, NamesAGpuAsNvidiaSmiDoes) {
  CudaFacts gpu;
  gpu.uuid = "0123456789abcdef0123456789abcdef";
  EXPECT_EQ(hardware_name(gpu), "GPU-01234567-89ab-cdef-0123-456789abcdef");
  gpu.uuid = "short";
  EXPECT_EQ(hardware_name(gpu), "GPU-short");
}

TEST(DeviceChoice, RanksOfAHostShareItsProcessors) {
  Config config;
  config.device = "cpu";
  EXPECT_EQ(hardware_name(posix_env(), config, {.rank_on_host = 3}), "cpu");
}

CudaPresence gpus_with(const std::vector<std::string>& uuids) {
  CudaPresence cuda;
  for (const std::string& uuid : uuids) {
    CudaFacts gpu;
    gpu.uuid = uuid;
    gpu.ordinal = static_cast<int>(cuda.devices.size());
    cuda.devices.push_back(gpu);
  }
  return cuda;
}

TEST(DeviceChoice, RanksTakeTheGpusInTurnUnlessTheyAreGivenOne) {
  const CudaPresence cuda = gpus_with({"a", "b", "c"});
  EXPECT_EQ(gpu_of_rank(cuda, {.rank_on_host = 4})->uuid, "b");
  EXPECT_EQ(gpu_of_rank(cuda, {.rank_on_host = 4, .gpu = "GPU-c"})->ordinal, 2);
  const Result<CudaFacts> gone = gpu_of_rank(gpus_with({"a", "b"}), {.rank_on_host = 2, .gpu = "GPU-c"});
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().reach, Reach::host) << gone.error().message;
}

TEST(DeviceChoice, AGpuHasSoManyRanksAsAreAllowed) {
  const std::vector<std::string> gpus = {"a", "b", "a", "b", "a"};
  EXPECT_EQ(largest_sharing(gpus), 3);
  const auto fits = [&](int rank, int allowed) { return check_sharing(gpus, rank, allowed).ok(); };
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(fits(rank, 1), rank < 2) << rank;
    EXPECT_EQ(fits(rank, 2), rank < 4) << rank;
    EXPECT_TRUE(fits(rank, 3)) << rank;
  }
  const Error error = check_sharing(gpus, 4, 2).error();
  EXPECT_EQ(error.reach, Reach::host);
  EXPECT_NE(error.message.find("parallel.ranks_per_gpu = 3"), std::string::npos) << error.message;
}

TEST(DeviceChoice, ALibraryThatDoesNotLoadIsAFindingAboutItsHost) {
  setenv(cuda_module_variable, "/no/such/library.so", 1);
  Config config;
  config.device = "cuda";
  const Result<void> checked = check_device(posix_env(), config, {});
  unsetenv(cuda_module_variable);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().code, ExitCode::config);
  EXPECT_EQ(checked.error().reach, Reach::host) << checked.error().message;
}

}  // namespace
}  // namespace holdfast::test
