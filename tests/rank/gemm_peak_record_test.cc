#include "runtime/rank/gemm_peak_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/device.h"
#include "tests/support/forwarding_env.h"

namespace holdfast {
namespace {

using testing::HasSubstr;

const std::vector<std::string> two_hosts = {"a, boot 1\none thread", "a, boot 1\ntwo threads",
                                            "b, boot 2\none thread"};
const std::vector<double> rates = {1e9, 2e9, 4e9};

TEST(GemmPeakRecord, SaysWhatTheSameRanksReached) {
  const std::string record = peak_record(two_hosts, rates);
  EXPECT_EQ(recorded_peak(record, two_hosts), 7e9);
  const std::vector<std::string> in_another_order = {two_hosts[2], two_hosts[1], two_hosts[0]};
  EXPECT_EQ(recorded_peak(record, in_another_order), 7e9);
}

TEST(GemmPeakRecord, HoldsForTheHostsThatAreLeft) {
  const std::string record = peak_record(two_hosts, rates);
  EXPECT_EQ(recorded_peak(record, std::vector<std::string>{two_hosts[2]}), 4e9);
  EXPECT_EQ(recorded_peak(record, std::vector<std::string>{two_hosts[0], two_hosts[1]}), 3e9);
}

TEST(GemmPeakRecord, SaysNothingOfWhatNobodyMeasured) {
  const std::string record = peak_record(two_hosts, rates);
  const auto peak = [&](std::vector<std::string> places) { return recorded_peak(record, places); };
  EXPECT_EQ(peak({two_hosts[0]}), std::nullopt) << "another rank shared the processors";
  EXPECT_EQ(peak({two_hosts[2], two_hosts[2]}), std::nullopt);
  EXPECT_EQ(peak({"b, boot 2\ntwo threads"}), std::nullopt);
  EXPECT_EQ(peak({"b, boot 3\none thread"}), std::nullopt) << "it booted: it may be another machine";
  EXPECT_EQ(peak({"c, boot 2\none thread"}), std::nullopt);
  EXPECT_EQ(peak({two_hosts[2], "c, boot 4\none thread"}), std::nullopt);
  EXPECT_EQ(peak({two_hosts[2], ""}), std::nullopt);
}

TEST(GemmPeakRecord, ADamagedOneSaysNothing) {
  const std::vector<std::string> place = {two_hosts[2]};
  const std::string record = peak_record(place, std::vector<double>{4e9});
  for (std::size_t length = 0; length + 2 < record.size(); ++length)
    EXPECT_EQ(recorded_peak(record.substr(0, length), place), std::nullopt) << length;
  for (const std::string text :
       {"7", "[]", "null", R"({"b, boot 2": 4e9})", R"({"b, boot 2": {"flops": 4e9}})",
        R"({"b, boot 2": {"ranks": ["one thread"]}})",
        R"({"b, boot 2": {"ranks": ["one thread"], "flops": "4e9"}})",
        R"({"b, boot 2": {"ranks": ["one thread"], "flops": 0}})",
        R"({"b, boot 2": {"ranks": ["one thread"], "flops": -4e9}})",
        R"({"b, boot 2": {"ranks": 1, "flops": 4e9}})"})
    EXPECT_EQ(recorded_peak(text, place), std::nullopt) << text;
  EXPECT_EQ(recorded_peak(R"({"b, boot 2": {"ranks": ["one thread"], "flops": 4e9}})", place), 4e9);
}

TEST(GemmPeakRecord, WhereSomebodyIsNowhereThereIsNone) {
  EXPECT_EQ(peak_record(std::vector<std::string>{two_hosts[0], ""}, std::vector<double>{1e9, 1e9}), "");
  EXPECT_EQ(peak_record({}, {}), "");
  EXPECT_EQ(recorded_peak("{}", {}), std::nullopt);
}

class OneMachine : public ForwardingEnv {
 public:
  OneMachine() : ForwardingEnv(posix_env()) {}
  std::string host_name() override { return "node-7"; }
  int processor_count() override { return processors; }
  Result<std::string> read_text(const std::string& path) override {
    if (path != "/proc/sys/kernel/random/boot_id") return posix_env().read_text(path);
    if (boot.empty()) return fail(ExitCode::data, "{} is not there", path);
    return boot;
  }
  std::string boot = "f00d\n";
  int processors = 64;
};

TEST(GemmPeakRecord, APlaceIsAllThatTheRateDependsOn) {
  OneMachine env;
  const auto device = [](int threads, CpuIsa isa) {
    return make_cpu_device({.threads = threads, .isa = isa});
  };
  const auto one = device(1, CpuIsa::portable), two = device(2, CpuIsa::portable),
             best = device(1, best_cpu_isa());
  const std::string place = peak_place(env, *one, DType::fp32);
  EXPECT_TRUE(place.starts_with("node-7, boot f00d\n64 processors, 1 threads, cpu, portable")) << place;
  EXPECT_EQ(peak_place(env, *one, DType::fp32), place);
  EXPECT_NE(peak_place(env, *two, DType::fp32), place);
  EXPECT_NE(peak_place(env, *one, DType::bf16), place);
  if (best_cpu_isa() != CpuIsa::portable) {
    EXPECT_NE(peak_place(env, *best, DType::fp32), place);
  }
  env.processors = 32;
  EXPECT_NE(peak_place(env, *one, DType::fp32), place);
  env.processors = 64;
  env.boot = "beef\n";
  EXPECT_THAT(peak_place(env, *one, DType::fp32), HasSubstr("boot beef\n"));
  env.boot = "";
  EXPECT_EQ(peak_place(env, *one, DType::fp32), "");
}

}  // namespace
}  // namespace holdfast
