#include "runtime/rank/kernel_choice.h"
#include "runtime/core/json.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include "kernels/cpu/lists.h"
#include "kernels/plugin.h"
#include "runtime/config/option_value.h"
#include "runtime/run/event_log.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

std::string& implementation_of(Config& config, OpId op) {
  return config.kernels.implementations[static_cast<std::size_t>(op)];
}

TEST(KernelRequest, HoldsWhatTheConfigNamesAndWhere) {
  Config config;
  EXPECT_EQ(kernel_request(posix_env(), config.kernels).value().isa, best_cpu_isa());
  EXPECT_TRUE(kernel_request(posix_env(), config.kernels).value().requests.empty());
  config.kernels.isa = "portable";
  implementation_of(config, OpId::rotary) = "mine";
  const KernelRequest request =
      kernel_request(posix_env(), config.kernels, {{"kernels.rotary", "run.toml:3:10"}}).value();
  EXPECT_EQ(request.isa, CpuIsa::portable);
  ASSERT_EQ(request.requests.size(), 1U);
  EXPECT_EQ(request.requests[0].op, OpId::rotary);
  EXPECT_EQ(request.requests[0].name, "mine");
  EXPECT_EQ(request.requests[0].origin, "run.toml:3:10");
}

TEST(KernelRequest, WhatAPluginLacksHereItMayHaveOnOtherHosts) {
  const std::span<const ImplementationList> own = cpu::implementation_lists();
  const KernelRegistry with_plugins(std::vector<ImplementationList>(own.begin(), own.end()));
  KernelRequest request;
  request.requests = {{OpId::add, "mine"}};
  EXPECT_EQ(settle_kernels(request).error().reach, Reach::run);
  request.registry = &with_plugins;
  EXPECT_EQ(settle_kernels(request).error().reach, Reach::host);
}

TEST(KernelRequest, EveryIsaOfTheConfigIsOneOfTheKernels) {
  const Option* option = find_option("kernels.isa");
  ASSERT_EQ(option->choices.size(), std::size(cpu_isas) + 1);
  EXPECT_EQ(option->choices[0], "auto");
  for (std::size_t i = 1; i < option->choices.size(); ++i)
    EXPECT_EQ(cpu_isa_of(option->choices[i]), cpu_isas[i - 1]) << option->choices[i];
}

TEST(KernelTables, TellTheCommonChoiceOnceAndWhatDiffers) {
  const auto device = make_cpu_device({.isa = CpuIsa::portable, .kernels = {{OpId::rotary, "reference"}}});
  const std::string why =
      best_cpu_isa() == CpuIsa::portable ? "best for this processor (portable)" : "best for portable";
  EXPECT_THAT(kernel_summary(device->kernels()),
              ElementsAre("portable, " + why, HasSubstr("matmul: onednn, "),
                          "rotary: reference, chosen by [kernels]"));
  const std::vector<std::string> lines = kernel_lines(device->kernels(), kernel_registry(), CpuIsa::portable);
  ASSERT_EQ(lines.size(), op_count);
  EXPECT_THAT(lines,
              testing::Contains("rotary                 reference   chosen by [kernels]; also portable"));
  EventLine line;
  const auto json =
      Json::parse(put_event(StartEvent{.kernels = kernels_in_use(device->kernels())}, line).end());
  EXPECT_EQ(json["kernels"].size(), op_count);
  EXPECT_EQ(json["kernels"]["rotary"]["name"], "reference");
  EXPECT_EQ(json["kernels"]["add"]["why"], why);
}

// A registry with kernels of a plug-in for two ops.
class LeftOutKernels : public testing::Test {
 protected:
  LeftOutKernels() {
    for (std::size_t each = 0; each < 2; ++each) {
      plugins_[each].name = {
          .op = name_of(ops_[each]), .implementation = "mine", .digest = "01", .library = "mine.so"};
      mine_[each].op = ops_[each];
      mine_[each].name = "mine";
      mine_[each].preference = -1;
      mine_[each].plugin = &plugins_[each];
    }
    const std::span<const ImplementationList> own = cpu::implementation_lists();
    std::vector<ImplementationList> lists(own.begin(), own.end());
    lists.push_back({"mine.so", mine_.data(), mine_.size()});
    registry_.emplace(lists);
    implementation_of(config_, OpId::rotary) = implementation_of(config_, OpId::add) = "mine";
    config_.kernels.rules = {{.op = "rotary", .layers = "0", .where = {}, .use = "mine"},
                             {.op = "rotary", .layers = "1", .where = {}, .use = "portable"},
                             {.op = "add", .layers = "1", .where = {}, .use = "mine"}};
    config_.kernels.shadows = {{.op = "rotary", .layers = "", .where = {}, .use = "mine", .every_steps = 7}};
  }
  KernelFault fault_of(OpId op, const std::string& digest = "01") const {
    return {.kernel = {.op = name_of(op), .implementation = "mine", .digest = digest, .library = "mine.so"},
            .how = KernelEnd::crash};
  }

  std::array<OpId, 2> ops_ = {OpId::rotary, OpId::add};
  std::array<PluginKernel, 2> plugins_ = {};
  std::array<Implementation, 2> mine_ = {};
  std::optional<KernelRegistry> registry_;
  Config config_;
};

TEST_F(LeftOutKernels, AreThoseOfTheOpAlone) {
  const KernelFaults left_out =
      leave_out_kernels(config_.kernels, *registry_, {}, {fault_of(OpId::rotary), fault_of(OpId::cast)});
  EXPECT_THAT(left_out, ElementsAre(fault_of(OpId::rotary)));
  EXPECT_EQ(implementation_of(config_, OpId::rotary), "auto");
  EXPECT_EQ(implementation_of(config_, OpId::add), "mine");
  ASSERT_EQ(config_.kernels.rules.size(), 2U);
  EXPECT_EQ(config_.kernels.rules[0].use, "portable");
  EXPECT_EQ(config_.kernels.rules[1].op, "add");
  EXPECT_TRUE(config_.kernels.shadows.empty());
  EXPECT_TRUE(leave_out_kernels(config_.kernels, *registry_, {}, {fault_of(OpId::rotary)}).empty())
      << "again";
}

TEST_F(LeftOutKernels, AreThoseOfTheLibraryAsItWas) {
  EXPECT_TRUE(leave_out_kernels(config_.kernels, *registry_, {}, {fault_of(OpId::rotary, "02")}).empty());
  EXPECT_EQ(implementation_of(config_, OpId::rotary), "mine");
  EXPECT_EQ(config_.kernels.rules.size(), 3U);
  KernelFault unknown = fault_of(OpId::rotary);
  unknown.kernel.op = "rotray";
  EXPECT_TRUE(leave_out_kernels(config_.kernels, *registry_, {}, {unknown}).empty());
}

TEST(KernelBits, AreTheSameInTheFamilyOfPortable) {
  const Config usual;
  Config other;
  implementation_of(other, OpId::rotary) = "portable";
  EXPECT_TRUE(same_kernel_bits(usual.kernels, other.kernels, OpId::rotary, DType::bf16));
  implementation_of(other, OpId::rotary) = "reference";
  EXPECT_FALSE(same_kernel_bits(usual.kernels, other.kernels, OpId::rotary, DType::fp32));
  implementation_of(other, OpId::rotary) = "one that was removed";
  EXPECT_FALSE(same_kernel_bits(usual.kernels, other.kernels, OpId::rotary, DType::fp32));
}

// Where a composed op is not launched, the kernels of its parts decide the bits.
TEST(KernelBits, OfAComposedOpAreThoseOfItsPartsAlone) {
  Config usual, other;
  implementation_of(other, OpId::residual_rmsnorm) = "portable";
  EXPECT_TRUE(same_kernel_bits(usual.kernels, other.kernels, OpId::residual_rmsnorm, DType::bf16));
  implementation_of(other, OpId::residual_rmsnorm) = "reference";
  EXPECT_FALSE(same_kernel_bits(usual.kernels, other.kernels, OpId::residual_rmsnorm, DType::fp32));
  implementation_of(other, OpId::residual_rmsnorm) = "portable";
  for (Config* const each : {&usual, &other}) implementation_of(*each, OpId::rmsnorm_forward) = "reference";
  EXPECT_FALSE(same_kernel_bits(usual.kernels, other.kernels, OpId::residual_rmsnorm, DType::fp32));
}

class KernelChoiceTest : public TrainingTest {
 protected:
  static constexpr const char* short_run = "training.steps=6";

  static std::vector<std::string> all_on_reference() {
    std::vector<std::string> overrides = {short_run};
    for (const char* op : op_names) overrides.push_back(fmt::format("kernels.{}=reference", op));
    return overrides;
  }

  // The events of one kind of a run.
  std::vector<Json> events(const std::string& run, const std::string& event) const {
    std::vector<Json> found;
    const std::string text = posix_env().read_text(run_directory(run) + "/events.jsonl").value();
    for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      auto json = Json::parse(text.substr(begin, end - begin));
      if (json["event"] == event) found.push_back(std::move(json));
    }
    return found;
  }
};

TEST_F(KernelChoiceTest, ARunWorksWithEveryOpOnTheReference) {
  ASSERT_EQ(train({.run = "usual", .overrides = {short_run}}).code, ExitCode::done);
  const RunEnd end = train({.run = "reference", .overrides = all_on_reference()});
  ASSERT_EQ(end.code, ExitCode::done) << end.message;
  ASSERT_EQ(train({.run = "two ranks", .ranks = 2, .overrides = all_on_reference()}).code, ExitCode::done);
  EXPECT_EQ(digest("reference"), digest("two ranks"));
  EXPECT_NE(digest("reference"), digest("usual"));
  const auto usual = events("usual", "step"), reference = events("reference", "step");
  ASSERT_EQ(reference.size(), 6U);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double loss = usual[i]["loss"];
    EXPECT_NEAR(reference[i]["loss"].get<double>(), loss, 1e-4 * loss);
  }
  const Json kernels = events("reference", "start").at(0)["kernels"];
  for (const Json& choice : kernels) EXPECT_EQ(choice["name"], "reference");
}

TEST_F(KernelChoiceTest, PortableKernelsGiveTheBitsOfTheDefault) {
  ASSERT_EQ(train({.run = "usual", .overrides = {short_run}}).code, ExitCode::done);
  const std::unique_ptr<Device> device = make_cpu_device({});
  std::vector<std::string> overrides = {short_run};
  for (const KernelChoice& choice : device->kernels()) {
    if (choice.first().same_bits_as_portable)
      overrides.push_back(fmt::format("kernels.{}=portable", name_of(choice.first().op)));
  }
  ASSERT_GT(overrides.size(), 10U);
  ASSERT_EQ(train({.run = "portable", .overrides = overrides}).code, ExitCode::done);
  EXPECT_EQ(digest("portable"), digest("usual"));
}

TEST_F(KernelChoiceTest, AResumeWithAnotherChoiceSaysWhatItMeans) {
  ASSERT_EQ(train({.run = "one", .stop_after_steps = 3}).code, ExitCode::saved);
  testing::internal::CaptureStdout();
  const RunEnd end = train({.run = "one",
                            .stop_after_steps = 3,
                            .overrides = {"kernels.rotary=reference", "kernels.loss_sum=portable"}});
  const std::string reported = testing::internal::GetCapturedStdout();
  EXPECT_EQ(end.code, ExitCode::saved) << end.message;
  EXPECT_THAT(reported, HasSubstr("resume: kernels.rotary: \"auto\" -> \"reference\"  (numeric: "));
  EXPECT_THAT(reported, HasSubstr("resume: kernels.loss_sum: \"auto\" -> \"portable\"  (safe)"));
  EXPECT_THAT(reported, ContainsRegex(", rotary reference.*\"  .numeric: "));
}

TEST_F(KernelChoiceTest, AnUnknownImplementationEndsTheStart) {
  const RunEnd end = train({.run = "none", .ranks = 2, .overrides = {"kernels.rotary=minee"}});
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_THAT(end.message, HasSubstr("kernels.rotary = \"minee\" (command line): there is no such"));
}

}  // namespace
}  // namespace holdfast::test
