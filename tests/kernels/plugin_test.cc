// Kernels of plug-ins in a registry and on a device, without a library: tests/system/kernel_test.py has those.
#include "kernels/plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/context.h"
#include "kernels/cpu/lists.h"
#include "kernels/cpu/matmul_cache.h"
#include "kernels/cpu/team.h"
#include "kernels/digest.h"
#include "kernels/elementwise.h"
#include "kernels/plugin_loader.h"
#include "kernels/stochastic_rounding.h"
#include "runtime/core/block_digest.h"
#include "runtime/core/random.h"
#include "runtime/device/device.h"
#include "runtime/os/paths.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Adds in parts of two elements, on the team, by way of its workspace.
int add_by_parts(const hf_call* call, void* workspace, void* stream) {
  const auto* const op = static_cast<const hf_add*>(call->op);
  if (workspace == nullptr || stream != nullptr) return 1;
  struct Parts {
    const hf_add* op;
    float* sums;
  } parts = {op, static_cast<float*>(workspace)};
  call->parallel_for(
      call, op->count / 2,
      [](void* data, std::int64_t part, std::int32_t) {
        const Parts& all = *static_cast<const Parts*>(data);
        for (std::int64_t i = 2 * part; i < 2 * part + 2; ++i) {
          all.sums[i] = static_cast<const float*>(all.op->a)[i] + static_cast<const float*>(all.op->b)[i];
          static_cast<float*>(all.op->y)[i] = all.sums[i] + 1000.0F;  // which tells it from the default
        }
      },
      &parts);
  return 0;
}
int supports_even(const hf_call* call) {
  return static_cast<const hf_add*>(call->op)->count % 2 == 0;
}
std::size_t bytes_of_sums(const hf_call* call) {
  return static_cast<std::size_t>(static_cast<const hf_add*>(call->op)->count) * sizeof(float);
}

// Sees whether denormal numbers count as zero on this thread, and lets them from now on, as -ffast-math does.
std::atomic<int> fast_threads_seen;
void compute_fast() {
  constexpr unsigned zero_denormals = 0x8040;
  const unsigned mode = __builtin_ia32_stmxcsr();
  if ((mode & zero_denormals) != 0) ++fast_threads_seen;
  __builtin_ia32_ldmxcsr(mode | zero_denormals);
}
int launch_fast(const hf_call* call, void*, void*) {
  call->parallel_for(
      call, 64, [](void*, std::int64_t, std::int32_t) { compute_fast(); }, nullptr);
  compute_fast();
  return 0;
}
int supports_fast(const hf_call*) {
  compute_fast();
  return 1;
}
std::size_t workspace_fast(const hf_call*) {
  compute_fast();
  return 64;
}

class PluginTest : public testing::Test {
 public:
  PluginTest() {
    implementation_.op = OpId::add;
    implementation_.name = "mine";
    implementation_.what = "by parts";
    implementation_.preference = -1;
    implementation_.plugin = &plugin_;
    lists_.assign(cpu::implementation_lists().begin(), cpu::implementation_lists().end());
    lists_.push_back({"mine.so", &implementation_, 1});
  }

 protected:
  hf_kernel kernel_ = {.abi = HF_KERNEL_ABI,
                       .device = HF_CPU,
                       .flags = HF_LAYOUT_FREE,
                       .reserved = 0,
                       .op = "add",
                       .schema = HF_SCHEMA_ADD,
                       .name = "mine",
                       .what = "by parts",
                       .supports = supports_even,
                       .workspace = bytes_of_sums,
                       .launch = add_by_parts};
  PluginFile file_ = {
      .path = "mine.so", .digest = "0123456789abcdef0123456789abcdef", .source = "1a2b3c4 dirty"};
  PluginKernel plugin_ = {.file = &file_,
                          .kernel = &kernel_,
                          .text = "kernel mine of add, of the plug-in mine.so",
                          .line = "add mine 0123456789abcdef mine.so"};
  Implementation implementation_;
  std::vector<ImplementationList> lists_;
};

// What a plug-in computes by its header is what the program computes.
TEST(PluginHeader, HasTheFunctionsOfTheTree) {
  const RandomStream random(1, 2);
  std::vector<float> weight(3000), moment1(3000), moment2(3000);
  std::vector<BFloat16> short1(3000), short2(3000);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    weight[i] = static_cast<float>(random.uniform(3 * i) - 0.5);
    moment1[i] = static_cast<float>(random.uniform(3 * i + 1) - 0.5);
    moment2[i] = static_cast<float>(random.uniform(3 * i + 2));
    short1[i] = to_bfloat16(moment1[i]);
    short2[i] = to_bfloat16(moment2[i]);
  }
  EXPECT_EQ(hf_state_digest(weight.data(), moment1.data(), moment2.data(), 3000, HF_FP32),
            state_digest(weight.data(), moment1.data(), moment2.data(), 3000));
  EXPECT_EQ(hf_state_digest(weight.data(), short1.data(), short2.data(), 2999, HF_BF16),
            state_digest(weight.data(), short1.data(), short2.data(), 2999, DType::bf16));
  EXPECT_EQ(hf_state_digest(weight.data(), nullptr, nullptr, 7, HF_FP32),
            state_digest(weight.data(), nullptr, nullptr, 7));
  EXPECT_EQ(HF_DIGEST_OF_MOMENT1, digest_of_moment1);
  EXPECT_EQ(HF_DIGEST_OF_MOMENT2, digest_of_moment2);
  for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{12345}, std::uint64_t{1} << 40}) {
    EXPECT_EQ(hf_digest_multiplier(index), digest_multiplier(index));
    const RoundingKey key = rounding_key_of_block(index * 77, index + 3);
    const hf_rounding_key twin = hf_rounding_key_of_block(index * 77, index + 3);
    EXPECT_EQ(std::pair(twin.first, twin.second), std::pair(key.first, key.second));
    const auto element = static_cast<std::uint32_t>(index);
    EXPECT_EQ(hf_rounding_bits(twin, element), rounding_bits(key, element));
  }
  for (const std::uint32_t bits :
       {0U, 0x3f801234U, 0xbf80ffffU, 0x7f800000U, 0x7f800001U, 0xffc12345U, 0x7f7fffffU})
    EXPECT_EQ(hf_rounded_with(bits, 0x8765), rounded_with(bits, 0x8765)) << bits;
}

TEST_F(PluginTest, ComputesWhatItSupportsAndTheDefaultTheRest) {
  const KernelRegistry registry(lists_);
  const auto device =
      make_cpu_device({.threads = 3, .kernels = {{OpId::add, "mine"}}, .registry = &registry});
  std::vector<std::string> reports;
  device->report_plugins([&](std::string_view kernel) { reports.emplace_back(kernel); });
  std::vector<float> a(10, 1.0F), b(10, 2.0F), y(10, 0.0F);
  for (const std::int64_t count : {10, 9}) {
    device->launch(Add{.a = a.data(), .b = b.data(), .y = y.data(), .count = count});
    device->synchronize();
    EXPECT_EQ(y[0], count == 10 ? 1003.0F : 3.0F);
    EXPECT_EQ(y[static_cast<std::size_t>(count) - 1], count == 10 ? 1003.0F : 3.0F);
  }
  const std::string text = "add mine 0123456789abcdef mine.so";
  EXPECT_THAT(reports, ElementsAre(text, "", text, ""))
      << "its question about the call that it leaves is its code, too";
}

TEST_F(PluginTest, TheDigestOfItsFileIsPartOfTheBits) {
  const KernelRegistry registry(lists_);
  const KernelTable table =
      registry.choose(CpuIsa::portable, std::vector<KernelPreference>{{OpId::add, "mine"}}).value();
  EXPECT_EQ(bits_of(table[static_cast<std::size_t>(OpId::add)], DType::fp32), "add mine 0123456789abcdef");
  EXPECT_EQ(table[static_cast<std::size_t>(OpId::add)].why,
            "chosen by [kernels], of the plug-in mine.so (digest 0123456789abcdef, commit 1a2b3c4 dirty)");
  EXPECT_THAT(plugins_of(table), ElementsAre("mine.so (digest 0123456789abcdef, commit 1a2b3c4 dirty)"));
  EXPECT_EQ(plugins_of(registry), plugins_of(table));
  EXPECT_TRUE(plugins_of(kernel_registry()).empty());
}

TEST_F(PluginTest, OneThatPromisesNothingIsToldOf) {
  kernel_.flags = HF_SAME_BITS_TWICE;
  const KernelRegistry registry(lists_);
  const KernelTable table =
      registry.choose(CpuIsa::portable, std::vector<KernelPreference>{{OpId::add, "mine"}}).value();
  EXPECT_THAT(table[static_cast<std::size_t>(OpId::add)].why,
              HasSubstr("), which does not promise the same bits in every layout"));
}

TEST_F(PluginTest, ItsFloatingPointModeStaysItsOwn) {
  kernel_.supports = supports_fast;
  kernel_.workspace = workspace_fast;
  kernel_.launch = launch_fast;
  const KernelRegistry registry(lists_);
  const auto device =
      make_cpu_device({.threads = 3, .kernels = {{OpId::add, "mine"}}, .registry = &registry});
  float element = 0.0F;
  fast_threads_seen = 0;
  for (int call = 0; call < 10; ++call)
    device->launch(Add{.a = &element, .b = &element, .y = &element, .count = 1});
  device->synchronize();
  EXPECT_EQ(fast_threads_seen, 0);
}

// Neither can answer from numbers, or write where the op does while nobody waits for it.
TEST_F(PluginTest, QuestionsAboutACallHaveNoMemory) {
  static hf_add asked;
  const auto answer = [](const hf_call* call) { asked = *static_cast<const hf_add*>(call->op); };
  static void (*ask)(const hf_call*) = answer;
  kernel_.supports = [](const hf_call* call) {
    ask(call);
    return 1;
  };
  kernel_.workspace = [](const hf_call* call) {
    ask(call);
    return std::size_t{0};
  };
  float element = 0.0F;
  const Add op{.a = &element, .b = nullptr, .y = &element, .count = 1};
  cpu::Team team(1, cpu::use_one_thread_per_primitive);
  cpu::Scratch scratch(1);
  cpu::MatmulCache matmuls(1);
  const cpu::Context context(team, scratch, matmuls);
  for (const bool of_workspace : {false, true}) {
    asked = {};
    of_workspace ? static_cast<void>(workspace_bytes(implementation_, context, &op))
                 : static_cast<void>(implementation_.computes(&op));
    EXPECT_EQ(asked.count, 1);
    EXPECT_NE(asked.a, nullptr);
    EXPECT_NE(asked.a, static_cast<const void*>(&element));
    EXPECT_EQ(asked.a, asked.y) << "the same memory";
    EXPECT_EQ(asked.b, nullptr) << "left out";
    EXPECT_GE(reinterpret_cast<std::uintptr_t>(asked.a), std::uintptr_t{0x8000} << 48);
  }
}

TEST_F(PluginTest, WorkspaceThatNoCallNeedsIsRefusedWhereItIsPlanned) {
  kernel_.supports = nullptr;
  kernel_.workspace = [](const hf_call*) { return ~std::size_t{0}; };
  const KernelRegistry registry(lists_);
  for (const std::int64_t every : {0, 100}) {  // as the run's kernel, and as a shadow of it
    KernelPreference preference{.op = OpId::add, .name = "mine", .every = every};
    if (every > 0) preference.key = "kernels.shadow[0]";
    const auto device = make_cpu_device({.threads = 1, .kernels = {preference}, .registry = &registry});
    device->begin_planning();
    device->launch(Add{.count = 10});
    const Result<void> planned = device->end_planning();
    ASSERT_FALSE(planned.ok()) << every;
    EXPECT_EQ(planned.error().code, ExitCode::config);
    EXPECT_THAT(planned.error().message,
                HasSubstr("kernel mine of add, of the plug-in mine.so, asks for 18446744073709551615 bytes"));
  }
}

TEST(PluginLoader, AFileThatIsRefusedMayBeWholeOnOtherHosts) {
  const auto refused =
      registry_with_plugins(posix_env(), {program_path()});  // which the system does not load
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ExitCode::config);
  EXPECT_EQ(refused.error().reach, Reach::host);
}

TEST(PluginSchemas, DifferByOp) {
  EXPECT_EQ(plugin_schema(OpId::add), HF_SCHEMA_ADD);
  EXPECT_EQ(plugin_schema(OpId::optimizer_digest), HF_SCHEMA_OPTIMIZER_DIGEST);
  EXPECT_NE(plugin_schema(OpId::add), plugin_schema(OpId::gelu_forward));
}

}  // namespace
}  // namespace holdfast::test
