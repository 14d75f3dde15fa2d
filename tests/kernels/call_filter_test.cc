#include "kernels/call_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using Part = OpScope::Part;
using Where = std::vector<ShapeCondition>;

CallFilter filter_of(std::string_view layers, const Where& where = {}) {
  return CallFilter::parse(OpId::rmsnorm_forward, layers, where).value();
}
bool has_layer(const CallFilter& filter, int layer, Part part = Part::attention) {
  return filter.has_place({.layer = layer, .part = part});
}
std::string problem_of(OpId op, std::string_view layers, const Where& where = {}) {
  const Result<CallFilter> filter = CallFilter::parse(op, layers, where);
  return filter.ok() ? "" : filter.error().message;
}

TEST(CallFilter, ListsLayersAndTheirHalves) {
  const CallFilter some = filter_of("0-1, 3,12-");
  for (const int layer : {0, 1, 3, 12, 1000}) EXPECT_TRUE(has_layer(some, layer)) << layer;
  for (const int layer : {2, 4, 11, -1}) EXPECT_FALSE(has_layer(some, layer)) << layer;
  const CallFilter halves = filter_of("*.feed_forward,2.attention");
  EXPECT_TRUE(has_layer(halves, 5, Part::feed_forward));
  EXPECT_FALSE(has_layer(halves, 5, Part::attention));
  EXPECT_TRUE(has_layer(halves, 2, Part::attention));
  EXPECT_FALSE(has_layer(halves, -1, Part::head)) << "the head is no layer";
  EXPECT_TRUE(has_layer(filter_of("head"), -1, Part::head));
  EXPECT_FALSE(has_layer(filter_of("head"), 0));
  EXPECT_FALSE(has_layer(filter_of("head"), -1, Part::none));
  EXPECT_TRUE(has_layer(filter_of(""), -1, Part::none)) << "without layers it is about every call";
}

TEST(CallFilter, LimitsShapesTypesAndFlags) {
  const RmsNormForward call{.rows = 128, .width = 64, .dtype = DType::bf16};
  const auto has = [&call](const std::string& field, const std::string& value) {
    return filter_of("", {{field, value}}).has({}, &call);
  };
  for (const char* value : {"128", "100-128", "128-200", ">127", ">=128", "<129", "<=128", ">= 128"})
    EXPECT_TRUE(has("rows", value)) << value;
  for (const char* value : {"64", "129-200", ">128", "<128", "<=127"})
    EXPECT_FALSE(has("rows", value)) << value;
  EXPECT_TRUE(has("dtype", "bf16"));
  EXPECT_FALSE(has("dtype", "fp32"));
  const Matmul product{.m = 4, .n = 8, .k = 2, .transpose_b = true};
  const auto of_product = [&product](const Where& where) {
    return CallFilter::parse(OpId::matmul, "", where).value().has({}, &product);
  };
  EXPECT_TRUE(of_product({{"transpose_b", "true"}, {"n", "8"}}));
  EXPECT_FALSE(of_product({{"transpose_b", "true"}, {"n", "4"}})) << "all conditions count";
  EXPECT_FALSE(of_product({{"transpose_b", "false"}}));
}

TEST(CallFilter, KnowsWhichShareACall) {
  const CallFilter first = filter_of("0-3"), narrow = filter_of("2-9", {{"rows", "<8"}});
  EXPECT_TRUE(first.overlaps(narrow));
  EXPECT_TRUE(filter_of("").overlaps(first));
  EXPECT_FALSE(first.overlaps(filter_of("4-")));
  EXPECT_FALSE(first.overlaps(filter_of("head")));
  EXPECT_FALSE(filter_of("1.attention").overlaps(filter_of("*.feed_forward")));
  EXPECT_FALSE(narrow.overlaps(filter_of("2", {{"rows", ">=8"}})));
  EXPECT_TRUE(narrow.overlaps(filter_of("2", {{"width", "64"}}))) << "of other fields nobody knows";
}

TEST(CallFilter, SaysWhatIsWrong) {
  for (const char* layers : {"x*", "3-1", "-2", "1..3", "0-3.mlp", "0,,1", "0,", "99999999999"})
    EXPECT_THAT(problem_of(OpId::rmsnorm_forward, layers), HasSubstr("layers")) << layers;
  EXPECT_THAT(problem_of(OpId::adamw, "0"), HasSubstr("calls of adamw belong to no layer"));
  EXPECT_THAT(problem_of(OpId::rmsnorm_forward, "", {{"row", "4"}}),
              HasSubstr("did you mean rows? It has rows, width"));
  EXPECT_THAT(problem_of(OpId::rmsnorm_forward, "", {{"epsilon", "4"}}), HasSubstr("which is no shape"));
  for (const char* value :
       {"", "four", "-4", "9-4", "4-", "true", "99999999999999999999", ">9223372036854775807"})
    EXPECT_THAT(problem_of(OpId::rmsnorm_forward, "", {{"rows", value}}), HasSubstr("expected a number"))
        << value;
  EXPECT_THAT(problem_of(OpId::matmul, "", {{"transpose_a", "1"}}), HasSubstr("expected true or false"));
  EXPECT_THAT(problem_of(OpId::matmul, "", {{"dtype", "f32"}}), HasSubstr("expected fp32, bf16"));
}

TEST(CallFilter, TellsWhatItIsAbout) {
  EXPECT_EQ(filter_of("0-3", {{"rows", ">=4"}, {"width", "64"}}).text(),
            " in layers 0-3 where rows >=4 and width = 64");
  EXPECT_EQ(filter_of("head").text(), " in the head");
  EXPECT_EQ(filter_of("").text(), "");
  const RmsNormForward call{.rows = 7, .width = 64};
  EXPECT_EQ(filter_of("", {{"rows", ">=4"}}).shape_text(&call), "rows = 7");
}

}  // namespace
}  // namespace holdfast::test
