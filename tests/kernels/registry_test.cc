#include "kernels/registry.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <span>

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/rotary.h"
#include "runtime/device/device.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

void run_nothing(const cpu::Context&, const void*) {}
bool supports_odd(const void* arguments) {
  return *static_cast<const int*>(arguments) % 2 == 1;
}
std::string library() {
  return "a library 1.2";
}

Implementation of_rotary(const char* name, CpuIsa needs, int preference = 0) {
  Implementation result;
  result.op = OpId::rotary;
  result.name = name;
  result.needs = needs;
  result.preference = preference;
  result.run = run_nothing;
  return result;
}

// A registry of some implementations of rotary; every other op has one, "plain".
class Rotary {
 public:
  explicit Rotary(std::vector<Implementation> of_rotary, std::vector<Implementation> in_another_file = {})
      : own_(std::move(of_rotary)), other_(std::move(in_another_file)) {
    for (std::size_t op = 0; op < op_count; ++op) {
      if (static_cast<OpId>(op) == OpId::rotary) continue;
      rest_.push_back(test::of_rotary("plain", CpuIsa::portable));
      rest_.back().op = static_cast<OpId>(op);
      rest_.back().same_bits_as_portable = true;
    }
    lists_ = {{"one.cc", own_.data(), own_.size()},
              {"two.cc", other_.data(), other_.size()},
              {"rest.cc", rest_.data(), rest_.size()}};
  }

  KernelRegistry registry() const { return KernelRegistry(lists_); }
  Result<KernelTable> choose(CpuIsa isa, const std::string& name = {}) const {
    std::vector<KernelPreference> requests;
    if (!name.empty()) requests.push_back({OpId::rotary, name, "run.toml:3:5"});
    return registry().choose(isa, requests);
  }
  Result<KernelTable> choose_built(CpuIsa isa, std::span<const CpuIsa> built) const {
    return KernelRegistry(lists_, built).choose(isa, {});
  }
  // The names in the order of the table, and why.
  std::vector<std::string> order(CpuIsa isa, const std::string& name = {}) const {
    const Result<KernelTable> table = choose(isa, name);
    const KernelChoice& choice = table.value()[static_cast<std::size_t>(OpId::rotary)];
    std::vector<std::string> names;
    for (const Implementation* each : choice.order)
      names.push_back(fmt::format("{}/{}", each->name, name_of(each->needs)));
    names.push_back(choice.why);
    return names;
  }

 private:
  std::vector<Implementation> own_, other_, rest_;
  std::vector<ImplementationList> lists_;
};

TEST(KernelRegistry, TheDefaultNeedsTheMostThatTheProcessorHas) {
  const Rotary rotary({of_rotary("reference", CpuIsa::portable, -1), of_rotary("portable", CpuIsa::portable),
                       of_rotary("mine", CpuIsa::portable, -1)});
  EXPECT_THAT(rotary.order(CpuIsa::portable), ElementsAre("portable/portable", "the only default"));
  if (best_cpu_isa() < CpuIsa::avx2) GTEST_SKIP() << "needs a processor with avx2";
  const Rotary two({of_rotary("portable", CpuIsa::portable), of_rotary("avx2", CpuIsa::avx2)});
  EXPECT_THAT(two.order(CpuIsa::portable), ElementsAre("portable/portable", "best for portable"));
  EXPECT_THAT(two.order(best_cpu_isa()),
              ElementsAre("avx2/avx2", fmt::format("best for this processor ({})", name_of(best_cpu_isa()))));
}

TEST(KernelRegistry, APreferenceComesBeforeTheInstructionSet) {
  if (best_cpu_isa() < CpuIsa::avx2) GTEST_SKIP() << "needs a processor with avx2";
  const Rotary rotary({of_rotary("wide", CpuIsa::avx2), of_rotary("clever", CpuIsa::portable, 1)});
  EXPECT_EQ(rotary.order(CpuIsa::avx2).front(), "clever/portable");
}

// A GPU of 9.0 has instructions that others lack, and kernels that use them (sm_90a).
TEST(KernelRegistry, WhatOneKindOfGpuHasIsForThatKindAlone) {
  Implementation hopper = of_rotary("warpgroup", CpuIsa::portable, 1);
  hopper.needs_gpu = 90;
  const Rotary rotary({of_rotary("cuda", CpuIsa::portable), hopper});
  const auto first_on = [&](int gpu, const std::string& name = {}) -> std::string {
    std::vector<KernelPreference> requests;
    if (!name.empty()) requests.push_back({OpId::rotary, name, "run.toml:3:5"});
    const Result<KernelTable> table = rotary.registry().choose({.gpu = gpu}, requests);
    return table.ok() ? (*table)[static_cast<std::size_t>(OpId::rotary)].first().name : table.error().message;
  };
  EXPECT_EQ(first_on(90), "warpgroup");
  EXPECT_EQ(first_on(80), "cuda");
  EXPECT_EQ(first_on(100), "cuda");
  EXPECT_EQ(first_on(90, "cuda"), "cuda");
  EXPECT_EQ(
      first_on(100, "warpgroup"),
      "kernels.rotary = \"warpgroup\" (run.toml:3:5): it needs a GPU of compute capability 9.0, and this one "
      "has 10.0; choose one of cuda");
}

TEST(KernelRegistry, TheBuildsOfOneSourceShareAName) {
  if (best_cpu_isa() < CpuIsa::avx2) GTEST_SKIP() << "needs a processor with avx2";
  const Rotary rotary({of_rotary("same", CpuIsa::portable), of_rotary("same", CpuIsa::avx2)});
  EXPECT_THAT(rotary.order(CpuIsa::avx2), ElementsAre("same/avx2", "the only default"));
  EXPECT_EQ(rotary.order(CpuIsa::portable, "same").front(), "same/portable");
  EXPECT_EQ(rotary.registry().of(OpId::rotary).size(), 2U);
}

TEST(KernelRegistry, ARequestWinsAndFallsBackForWhatItDoesNotSupport) {
  Implementation mine = of_rotary("mine", CpuIsa::portable, -1);
  mine.supports = supports_odd;
  const Rotary rotary({of_rotary("portable", CpuIsa::portable), mine});
  EXPECT_THAT(rotary.order(CpuIsa::portable, "mine"),
              ElementsAre("mine/portable", "portable/portable", "chosen by [kernels]"));
  EXPECT_THAT(rotary.order(CpuIsa::portable, "portable"),
              ElementsAre("portable/portable", "chosen by [kernels]"));
  const Result<KernelTable> table = rotary.choose(CpuIsa::portable, "mine");
  const KernelChoice& choice = table.value()[static_cast<std::size_t>(OpId::rotary)];
  const int odd = 3, even = 4;
  EXPECT_STREQ(first_that_computes(choice.order, &odd).name, "mine");
  EXPECT_STREQ(first_that_computes(choice.order, &even).name, "portable");
}

TEST(KernelRegistry, AnUnknownNameIsAnErrorWithTheKnownOnes) {
  const Rotary rotary({of_rotary("portable", CpuIsa::portable), of_rotary("mine", CpuIsa::portable, -1)});
  const Result<KernelTable> table = rotary.choose(CpuIsa::portable, "mien");
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.error().code, ExitCode::config);
  EXPECT_EQ(table.error().message,
            "kernels.rotary = \"mien\" (run.toml:3:5): there is no such implementation, did you mean mine? "
            "Choose one of portable, mine; or name the plug-in that has it in kernels.plugins");
}

TEST(KernelRegistry, WhatTheProcessorOrTheConfigRulesOutIsAnError) {
  const Rotary rotary({of_rotary("portable", CpuIsa::portable), of_rotary("tiles", CpuIsa::amx)});
  const Result<KernelTable> table = rotary.choose(CpuIsa::portable, "tiles");
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.error().code, ExitCode::config);
  EXPECT_THAT(table.error().message, HasSubstr("kernels.rotary = \"tiles\" (run.toml:3:5): it needs amx, "));
  EXPECT_THAT(
      table.error().message,
      HasSubstr(best_cpu_isa() < CpuIsa::amx ? "this processor has" : "kernels.isa = \"portable\" rules"));
  EXPECT_THAT(table.error().message, testing::EndsWith("choose one of portable"));
}

// As in a build of tools/quickstart, on another processor than the one that it was made for: others have
// other bits, perhaps.
TEST(KernelRegistry, WhatWasNotBuiltIsNotReplacedByWhatWas) {
  const Rotary rotary({of_rotary("portable", CpuIsa::portable)});
  EXPECT_TRUE(rotary.choose_built(CpuIsa::portable, std::array{CpuIsa::portable}).ok());
  const Result<KernelTable> table =
      rotary.choose_built(CpuIsa::portable, std::array{CpuIsa::avx512, CpuIsa::amx});
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.error().code, ExitCode::config);
  EXPECT_EQ(
      table.error().message,
      "kernels for portable are not in this build, which tools/quickstart made for a processor with avx512 "
      "and amx; build all of them with cmake --preset release && cmake --build --preset release");
}

TEST(KernelRegistry, OneNameForTwoThingsIsAnErrorThatNamesTheFiles) {
  const Rotary rotary({of_rotary("portable", CpuIsa::portable), of_rotary("mine", CpuIsa::portable, -1)},
                      {of_rotary("mine", CpuIsa::portable, -1)});
  const Result<KernelTable> table = rotary.choose(CpuIsa::portable);
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.error().code, ExitCode::config);
  EXPECT_EQ(table.error().message,
            "one.cc and two.cc both register rotary \"mine\": give one of them another name and build again");
}

TEST(KernelRegistry, BitsNameLibrariesAndWhatHasBitsOfItsOwn) {
  Implementation portable = of_rotary("portable", CpuIsa::portable);
  portable.same_bits_as_portable = true;
  Implementation linked = of_rotary("linked", CpuIsa::portable, -1);
  linked.library = library;
  const Rotary rotary({portable, linked, of_rotary("mine", CpuIsa::portable, -1)});
  for (const DType precision : {DType::fp32, DType::bf16}) {
    EXPECT_EQ(bits_of(rotary.choose(CpuIsa::portable).value(), precision), "");
    EXPECT_EQ(bits_of(rotary.choose(CpuIsa::portable, "linked").value(), precision), "a library 1.2");
    EXPECT_EQ(bits_of(rotary.choose(CpuIsa::portable, "mine").value(), precision), "rotary mine");
  }
}

TEST(KernelRegistry, WhatComputesBf16AloneDecidesNoBitOfFp32) {
  Implementation tiles = of_rotary("tiles", CpuIsa::portable, 1);
  tiles.bf16_only = true;
  tiles.supports = supports_odd;
  Implementation portable = of_rotary("portable", CpuIsa::portable);
  portable.same_bits_as_portable = true;
  const Rotary rotary({tiles, portable});
  const KernelTable table = rotary.choose(CpuIsa::portable).value();
  EXPECT_EQ(bits_of(table, DType::fp32), "");
  EXPECT_EQ(bits_of(table, DType::bf16), "rotary tiles");
}

template <typename Op>
void expect_bf16_only_implementations_refuse_fp32() {
  const Op bf16{.dtype = DType::bf16}, fp32{.dtype = DType::fp32};
  for (const Implementation* each : kernel_registry().of(Op::id)) {
    if (!each->bf16_only) continue;
    EXPECT_TRUE(each->supports(&bf16)) << each->name;
    EXPECT_FALSE(each->supports(&fp32)) << each->name;
  }
}

TEST(KernelRegistry, ThisProgramsBf16OnlyImplementationsRefuseFp32) {
  expect_bf16_only_implementations_refuse_fp32<Matmul>();
  expect_bf16_only_implementations_refuse_fp32<AttentionForward>();
  expect_bf16_only_implementations_refuse_fp32<AttentionBackward>();
  for (std::size_t op = 0; op < op_count; ++op) {
    for (const Implementation* each : kernel_registry().of(static_cast<OpId>(op))) {
      const bool seen = each->op == OpId::matmul || each->op == OpId::attention_forward ||
                        each->op == OpId::attention_backward;
      EXPECT_TRUE(seen || !each->bf16_only) << op_names[op] << " " << each->name << ": add it above";
    }
  }
}

TEST(KernelRegistry, ThisProgramsHasEveryOpForEveryProcessorAndAsReference) {
  std::set<std::string> names;
  for (const CpuIsa isa : cpu_isas) {
    if (isa > best_cpu_isa()) continue;
    const Result<KernelTable> table = kernel_registry().choose(isa, {});
    ASSERT_TRUE(table.ok()) << table.error().message;
    for (std::size_t index = 0; index < op_count; ++index) {
      const auto op = static_cast<OpId>(index);
      EXPECT_EQ((*table)[index].first().op, op);
      EXPECT_LE((*table)[index].first().needs, isa);
      EXPECT_NE(kernel_registry().find(op, "reference", isa), nullptr) << name_of(op);
      names.insert(name_of(op));
    }
  }
  EXPECT_EQ(names.size(), op_count);
}

// Two implementations beside the default of rotary, and rules about them.
class RuleTest : public testing::Test {
 protected:
  Result<KernelTable> choose(const std::vector<KernelPreference>& requests) const {
    return rotary_.registry().choose(CpuIsa::portable, requests);
  }
  static KernelPreference rule(const std::string& name, const std::string& layers, int number = 0,
                               std::vector<ShapeCondition> where = {}, std::int64_t every = 0) {
    return {.op = OpId::rotary,
            .name = name,
            .key = fmt::format("kernels.rules[{}]", number),
            .layers = layers,
            .where = std::move(where),
            .every = every};
  }
  static const KernelChoice& of_rotary(const KernelTable& table) {
    return table[static_cast<std::size_t>(OpId::rotary)];
  }
  static std::string name_in(const KernelTable& table, int layer, std::int64_t rows = 1) {
    const Call call{.rows = rows};
    const ImplementationOrder& order =
        of_rotary(table).order_of({.layer = layer, .part = OpScope::Part::attention}, &call);
    return first_that_computes(order, &call).name;
  }
  using Call = kernels::Rotary;
  static Implementation with_bits(Implementation one) {
    one.same_bits_as_portable = true;
    return one;
  }
  Rotary rotary_{{with_bits(test::of_rotary("portable", CpuIsa::portable)),
                  test::of_rotary("mine", CpuIsa::portable, -1),
                  test::of_rotary("other", CpuIsa::portable, -1)}};
};

TEST_F(RuleTest, ChoosesByLayerAndShapeBeforeTheChoiceOfTheOp) {
  const KernelTable table =
      choose({rule("mine", "0-1"), {OpId::rotary, "other"}, rule("portable", "3", 1, {{"rows", "8"}})})
          .value();
  EXPECT_EQ(name_in(table, 0), "mine");
  EXPECT_EQ(name_in(table, 1), "mine");
  EXPECT_EQ(name_in(table, 2), "other");
  EXPECT_EQ(name_in(table, 3), "other");
  EXPECT_EQ(name_in(table, 3, 8), "portable");
  EXPECT_EQ(name_in(table, -1), "other");
}

TEST_F(RuleTest, IsPartOfTheBitsAlsoWhereItsOwnAreKnown) {
  const auto bits = [this](const std::vector<KernelPreference>& requests) {
    return bits_of(of_rotary(choose(requests).value()), DType::fp32);
  };
  EXPECT_EQ(bits({rule("mine", "0-1")}), "rotary mine in layers 0-1");
  EXPECT_EQ(bits({rule("portable", "0-1")}), "") << "which every run has";
  EXPECT_EQ(bits({{OpId::rotary, "mine"}, rule("portable", "0-1")}),
            "rotary mine, rotary portable in layers 0-1")
      << "in which the run differs from one with mine everywhere";
}

TEST_F(RuleTest, RefusesContradictionsAndUnknownNames) {
  EXPECT_THAT(
      choose({rule("mine", "0-2"), rule("other", "2-", 1)}).error().message,
      HasSubstr("kernels.rules[1], rotary = \"other\": kernels.rules[0] says \"mine\" in layers 0-2, and "
                "both are about some calls in layers 2-"));
  EXPECT_TRUE(choose({rule("mine", "0-2"), rule("mine", "2-", 1)}).ok()) << "they agree";
  EXPECT_TRUE(choose({rule("mine", "0-1"), rule("other", "2-", 1)}).ok());
  EXPECT_THAT(
      choose({rule("mien", "0")}).error().message,
      HasSubstr("kernels.rules[0], rotary = \"mien\": there is no such implementation, did you mean mine?"));
  EXPECT_THAT(choose({rule("mine", "one")}).error().message,
              HasSubstr("kernels.rules[0], rotary = \"mine\": layers"));
}

TEST_F(RuleTest, TellsThatShapesFollowFromTheLayout) {
  const KernelTable table = choose({rule("mine", "0"), rule("mine", "1", 1, {{"rows", "8"}})}).value();
  EXPECT_EQ(of_rotary(table).rules[0].why, "chosen by kernels.rules[0]");
  EXPECT_THAT(of_rotary(table).rules[1].why,
              HasSubstr("in another layout, which may cut calls to other shapes"));
}

}  // namespace
}  // namespace holdfast::test
