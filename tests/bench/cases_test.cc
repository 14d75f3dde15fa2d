// Every case runs to its end and fills in its figures. No times are judged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/bench_native/cases.h"
#include "tools/bench_native/synthetic_run.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

TEST(OpCase, MeasuresEveryImplementation) {
  const Result<Json> figures = run_op_case(
      posix_env(), {.name = "add", .device = {.threads = 2}, .shape = "llama-15m 4x64", .milliseconds = 1});
  ASSERT_TRUE(figures.ok()) << figures.error().message;
  const Json& shapes = (*figures)["ops"]["add"];
  ASSERT_EQ(shapes.size(), 1U);
  EXPECT_GT(shapes[0]["limit_microseconds"], 0.0);
  EXPECT_GE(shapes[0]["implementations"].size(), 1U);
  for (const Json& implementation : shapes[0]["implementations"]) {
    EXPECT_GT(implementation["microseconds"], 0.0);
    EXPECT_GE(implementation["calls"], 5);
  }
}

TEST(OpCase, CountsTheProductsThatDocumentsLeave) {
  const Result<Json> figures = run_op_case(posix_env(), {.name = "attention_forward",
                                                         .device = {.threads = 2},
                                                         .sizes = SampleSizes::toy,
                                                         .shape = "1x32 4/4 heads of 64",
                                                         .milliseconds = 1});
  ASSERT_TRUE(figures.ok()) << figures.error().message;
  EXPECT_EQ((*figures)["sizes"], "toy");
  const Json& shapes = (*figures)["ops"]["attention_forward"];
  ASSERT_EQ(shapes.size(), 2U);
  EXPECT_EQ(shapes[0]["shape"], "1x32 4/4 heads of 64");
  EXPECT_EQ(shapes[1]["shape"], "1x32 4/4 heads of 64 in documents");
  EXPECT_LT(shapes[1]["flops"], 0.5 * shapes[0]["flops"].get<double>());
  for (const Json& implementation : shapes[1]["implementations"]) {
    EXPECT_NEAR(implementation["flops_per_sec"].get<double>() * implementation["microseconds"].get<double>(),
                1e6 * shapes[1]["flops"].get<double>(), 1.0);
  }
}

TEST(OpCase, RefusesWhatIsNotThere) {
  const Result<Json> no_op = run_op_case(posix_env(), {.name = "gelu"});
  ASSERT_FALSE(no_op.ok());
  EXPECT_THAT(no_op.error().message, HasSubstr("there is no op gelu"));
  const Result<Json> no_implementation = run_op_case(posix_env(), {.name = "add", .implementation = "sse9"});
  ASSERT_FALSE(no_implementation.ok());
  EXPECT_THAT(no_implementation.error().message, HasSubstr("sse9"));
  const Result<Json> no_shape = run_op_case(posix_env(), {.name = "add", .shape = "gpt5"});
  ASSERT_FALSE(no_shape.ok());
  EXPECT_THAT(no_shape.error().message,
              HasSubstr("no shape or use of add with --sizes=cpu contains \"gpt5\""));
}

class OptimizerCase : public testing::TestWithParam<const char*> {};

TEST_P(OptimizerCase, MeasuresUpdatesAndSums) {
  const Result<Json> figures = run_optimizer_case(posix_env(), {.preset = "llama-15m",
                                                                .dtype = DType::bf16,
                                                                .moments = GetParam(),
                                                                .device = {.threads = 2},
                                                                .updates = 2,
                                                                .limit_ms = 1});
  ASSERT_TRUE(figures.ok()) << figures.error().message;
  const auto elements = (*figures)["square_sum"]["bytes_read"].get<std::uint64_t>() / sizeof(float);
  EXPECT_GE(elements, (*figures)["parameters"].get<std::uint64_t>());
  const auto digests =
      (*figures)["square_sum_without_digests"]["bytes_written"].get<std::uint64_t>();  // 8 bytes a block, too
  EXPECT_EQ((*figures)["square_sum"]["bytes_written"].get<std::uint64_t>(), 2 * digests);
  const std::uint64_t moments = (*figures)["moments"] == "bf16" ? 4 : 8;  // bytes of both
  EXPECT_EQ((*figures)["adamw"]["bytes_read"].get<std::uint64_t>(), (8 + moments) * elements + 2 * digests);
  EXPECT_EQ((*figures)["adamw"]["bytes_written"].get<std::uint64_t>(), (6 + moments) * elements + digests);
  EXPECT_EQ((*figures)["adamw_without_digests"]["bytes_written"].get<std::uint64_t>(),
            (6 + moments) * elements);
  EXPECT_GT((*figures)["adamw_without_digests"]["ms"], 0.0);
  EXPECT_EQ((*figures)["adamw_keeping_state"]["bytes_written"].get<std::uint64_t>(),
            (6 + moments + 4 + moments) * elements + digests);
  EXPECT_EQ((*figures)["optimizer_digest"]["bytes_read"].get<std::uint64_t>(), (4 + moments) * elements);
  EXPECT_EQ((*figures)["optimizer_digest"]["bytes_written"].get<std::uint64_t>(), digests);
  EXPECT_GT((*figures)["adamw"]["ms"], 0.0);
  EXPECT_GT((*figures)["adamw"]["limit_ms"], 0.0);
}

INSTANTIATE_TEST_SUITE_P(Moments, OptimizerCase, testing::Values("fp32", "bf16"));

TEST(OptimizerCaseOptions, RefuseAPresetThatIsNotThere) {
  const Result<Json> figures = run_optimizer_case(posix_env(), {.preset = "gpt5"});
  ASSERT_FALSE(figures.ok());
  EXPECT_THAT(figures.error().message, HasSubstr("there is no preset gpt5; there are gpt2-124m"));
}

TEST(LoaderCase, ReadsEveryFormatColdAndWarm) {
  const Result<Json> figures =
      run_loader_case(posix_env(), {.tokens = 20'000, .sequence_length = 16, .steps = 1});
  ASSERT_TRUE(figures.ok()) << figures.error().message;
  EXPECT_GT((*figures)["step_tokens_per_sec"], 0.0);
  EXPECT_EQ((*figures)["formats"].size(), token_file_kinds().size());
  for (const Json& format : (*figures)["formats"]) {
    EXPECT_GT(format["cold_tokens_per_sec"], 0.0);
    EXPECT_GT(format["warm_tokens_per_sec"], 0.0);
  }
}

TEST(StepCase, PrintsTheBudgetOfASmallModel) {
  for (const std::string precision : {"fp32", "bf16"}) {
    const Result<Json> figures = run_step_case(posix_env(), {.overrides = {{"model.preset", ""},
                                                                           {"model.style", "llama"},
                                                                           {"model.layers", "1"},
                                                                           {"model.heads", "4"},
                                                                           {"model.kv_heads", "2"},
                                                                           {"model.width", "32"},
                                                                           {"model.vocabulary", "1000"},
                                                                           {"training.precision", precision},
                                                                           {"training.sequence_length", "16"},
                                                                           {"device", "cpu"},
                                                                           {"threads", "2"}},
                                                             .warmup_steps = 1,
                                                             .steps = 2,
                                                             .limit_ms = 1});
    ASSERT_TRUE(figures.ok()) << figures.error().message;
    EXPECT_GT((*figures)["step_ms"], 0.0);
    EXPECT_GT((*figures)["bound_ms"], 0.0);
    EXPECT_EQ((*figures)["steps_ms"].size(), 2U);
    EXPECT_EQ((*figures)["threads"], 2);
    EXPECT_GT((*figures)["parts"]["attention"]["ms"], 0.0);
    EXPECT_GT((*figures)["parts"]["optimizer"]["ms"], 0.0);
    EXPECT_EQ((*figures)["kinds"]["swiglu_forward"]["calls"], 1);
  }
}

}  // namespace
}  // namespace holdfast::test
