#include "runtime/core/json.h"

#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace holdfast::test {
namespace {

TEST(Json, WritesWhatIsSaidInItsOrder) {
  Json json = {{"z", 1}, {"a", {1, -2, 0.5}}, {"pair", {"x", "y"}}};
  json["none"] = nullptr;
  json["deep"]["er"] = true;
  json["list"].push_back({{"n", std::numeric_limits<std::uint64_t>::max()}});
  json["empty"] = {Json::array(), Json::object()};
  EXPECT_EQ(
      json.dump(),
      R"({"z":1,"a":[1,-2,0.5],"pair":["x","y"],"none":null,"deep":{"er":true},"list":[{"n":18446744073709551615}],"empty":[[],{}]})");
  EXPECT_EQ(Json({{"a", {1}}, {"b", Json::object()}}).dump(1), "{\n \"a\": [\n  1\n ],\n \"b\": {}\n}");
}

TEST(Json, WritesNumbersThatReadTheSame) {
  const Json numbers = {1.0, 0.1, -0.0, 1e300, 3e-5, 0.1F, std::numeric_limits<double>::infinity()};
  EXPECT_EQ(numbers.dump(), "[1.0,0.1,-0.0,1e+300,3e-05,0.10000000149011612,null]");
  EXPECT_EQ(Json::parse("[1,-1,1.0]").dump(), "[1,-1,1.0]");
  EXPECT_TRUE(Json::parse("18446744073709551615").is_number_unsigned());
  EXPECT_TRUE(Json::parse("18446744073709551616").is_number_float());
}

TEST(Json, ReadsItsContainers) {
  const std::map<std::string, int> map = {{"a", 1}, {"b", 2}};
  const Json json = {{"list", std::vector<int>{1, 2}}, {"array", std::array<int, 2>{3, 4}}, {"map", map}};
  EXPECT_EQ(json.dump(), R"({"list":[1,2],"array":[3,4],"map":{"a":1,"b":2}})");
  const std::vector<int> list = json["list"];
  const std::array<int, 2> array = json["array"];
  EXPECT_THAT(list, testing::ElementsAre(1, 2));
  EXPECT_THAT(array, testing::ElementsAre(3, 4));
  std::string keys;
  for (const auto& [key, value] : json["map"].items()) keys += key + value.dump();
  EXPECT_EQ(keys, "a1b2");
  EXPECT_EQ(json.value("absent", 7), 7);
  EXPECT_EQ(json.value("absent", "text"), "text");
  EXPECT_FALSE(json["list"].contains("a"));
}

TEST(Json, ComparesWhatItHolds) {
  EXPECT_EQ(Json::parse(R"({"a":1,"b":[2]})"), Json::parse(R"({"b":[2],"a":1})"));
  EXPECT_EQ(Json(1), 1.0);
  EXPECT_EQ(Json("a"), std::string("a"));
  EXPECT_NE(Json("1"), 1);
  EXPECT_NE(Json(false), nullptr);
  EXPECT_LT(Json(1), Json(2U));
  EXPECT_GE(Json(7), 6);
}

TEST(Json, HasTheTypeOfWhatItHolds) {
  const std::vector<std::pair<Json, std::string>> values = {{nullptr, "null"},
                                                            {true, "boolean"},
                                                            {1, "number"},
                                                            {-1, "number"},
                                                            {0.5, "number"},
                                                            {"a", "string"},
                                                            {Json::array({1}), "array"},
                                                            {Json::parse(R"({"a":1})"), "object"},
                                                            {Json::array(), "array"},
                                                            {Json::object(), "object"}};
  for (const auto& [value, type] : values) {
    EXPECT_EQ(value.type_name(), type) << value;
    EXPECT_EQ(value, Json(value)) << "a copy";
    for (const auto& [other, other_type] : values) {
      EXPECT_EQ(value == other, &other == &value) << value << " and " << other << ", " << other_type;
    }
  }
  EXPECT_EQ(Json().size(), 0U);
  EXPECT_EQ(Json(7).size(), 1U);
  EXPECT_EQ(Json(7).begin(), Json(7).end()) << "no container";
}

TEST(Json, IteratesOverElementsAndValues) {
  const Json list = {1, 2, 3}, object = {{"a", 1}, {"b", 2}};
  int sum = 0;
  for (JsonIterator each = list.begin(); each != list.end(); each++) sum += each->get<int>();
  for (const Json& each : object) sum += 10 * each.get<int>();
  EXPECT_EQ(sum, 36);
  EXPECT_EQ(list.back(), 3);
  Json all = object;
  all.update({{"b", 5}, {"c", 6}});
  EXPECT_EQ(all.dump(), R"({"a":1,"b":5,"c":6})");
}

TEST(Json, ConvertsAndOrdersNumbers) {
  EXPECT_EQ(Json(2.75).get<int>(), 2);
  EXPECT_EQ(Json(2.75).get<std::uint32_t>(), 2U);
  EXPECT_EQ(Json(-3).get<double>(), -3.0);
  EXPECT_EQ(Json(3U).get<double>(), 3.0);
  EXPECT_LT(Json(-1), Json(1));
  EXPECT_LT(Json(1), Json(1.5));
  constexpr std::uint64_t large = std::uint64_t{1} << 63;
  EXPECT_GT(Json(large), Json(0)) << "no cast makes it negative";
  EXPECT_LT(Json(-1), Json(large));
  EXPECT_EQ(Json(3U), Json(3));
  EXPECT_LT(Json("a"), Json("b"));
  EXPECT_FALSE(Json("a") < Json(1) || Json("a") > Json(1)) << "they have no order";
}

TEST(Json, TakesAnyText) {
  for (const char* text : {"", "{", "{\"a\":1}}", "[1,]", "nul", "\"\xff\"", "1e999", "// 1"})
    EXPECT_TRUE(Json::parse_any(text).is_null()) << text;
  EXPECT_EQ(Json::parse_any(R"({"a":1,"a":2})").dump(), R"({"a":2})");
  const std::string deep(1'000'000, '[');
  EXPECT_TRUE(Json::parse_any(deep).is_null());
  EXPECT_TRUE(Json::parse_any(deep + std::string(deep.size(), ']')).is_null());
  EXPECT_TRUE(Json::parse_any(deep.substr(0, 513) + std::string(513, ']')).is_null());
  const Json deepest = Json::parse_any(deep.substr(0, 512) + std::string(512, ']'));
  EXPECT_TRUE(deepest.is_array());
  EXPECT_EQ(deepest.dump().size(), 1024u);
}

TEST(Json, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(Json("a\xff").dump_any(), "\"a\xef\xbf\xbd\"");
  EXPECT_DEATH(static_cast<void>(Json("a\xff").dump()), "bug: the check");
  EXPECT_DEATH(static_cast<void>(Json::parse("{")), "bug: the check");
}

// An object with many members has an index while it is parsed.
TEST(Json, OfManyMembersEachIsFoundAndOfTwoWithOneNameTheLastCounts) {
  std::string text = "{";
  for (int i = 0; i < 500; ++i) text += fmt::format("\"{}\": {{\"of\": {}}}, ", i, i);
  const Json json = Json::parse_any(text + "\"70\": 1, \"3\": 2, \"499\": 3, \"last\": 4}");
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json.size(), 501u);
  EXPECT_EQ(json.at("70"), 1);
  EXPECT_EQ(json.at("3"), 2);
  EXPECT_EQ(json.at("499"), 3);
  EXPECT_EQ(json.at("last"), 4);
  EXPECT_EQ(json.at("100").at("of"), 100);
  EXPECT_EQ(json.items()[70].key, "70");
}

}  // namespace
}  // namespace holdfast::test
