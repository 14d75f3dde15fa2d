#include "runtime/config/decay_groups.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace holdfast::test {
namespace {

TEST(DecayGroups, AreAPatternAndADecay) {
  const std::vector<std::string> entries = {"*.bias=0", " embedding.* = 1e-2 ", "a=b=100"};
  const auto groups = parse_decay_groups(entries);
  ASSERT_TRUE(groups.ok()) << groups.error().message;
  ASSERT_EQ(groups->size(), 3U);
  EXPECT_EQ((*groups)[0].pattern, "*.bias");
  EXPECT_EQ((*groups)[0].weight_decay, 0.0);
  EXPECT_EQ((*groups)[1].pattern, "embedding.*");
  EXPECT_EQ((*groups)[1].weight_decay, 0.01);
  EXPECT_EQ((*groups)[2].pattern, "a=b");
}

TEST(DecayGroups, OthersAreRefused) {
  for (const std::string entry :
       {"", "*", "=0", " =0", "*=", "*=x", "*=0.1x", "*=-0.1", "*=101", "*=nan", "*=inf"}) {
    const auto groups = parse_decay_groups({&entry, 1});
    ASSERT_FALSE(groups.ok()) << entry;
    EXPECT_EQ(groups.error().code, ExitCode::config);
    EXPECT_THAT(groups.error().message, testing::HasSubstr("\"" + entry + "\""));
  }
}

TEST(DecayGroups, TheFirstThatMatchesCounts) {
  const std::vector<DecayGroup> groups = {{"layers.0.*", 0.5}, {"*.bias", 0.0}, {"layers.*", 0.25}};
  EXPECT_EQ(decay_in_groups(groups, "layers.0.attention.qkv.bias"), 0.5);
  EXPECT_EQ(decay_in_groups(groups, "layers.1.attention.qkv.bias"), 0.0);
  EXPECT_EQ(decay_in_groups(groups, "layers.10.attention.qkv.weight"), 0.25);
  EXPECT_FALSE(decay_in_groups(groups, "head.weight").has_value());
}

TEST(DecayGroups, GlobsMatchWholeNames) {
  for (const auto& [pattern, name] :
       std::vector<std::pair<const char*, const char*>>{{"*", "a.b"},
                                                        {"a.b", "a.b"},
                                                        {"a*", "a"},
                                                        {"*b", "a.b"},
                                                        {"*.*", "a.b"},
                                                        {"a?b", "a.b"},
                                                        {"*norm*", "layers.0.attention_norm.weight"},
                                                        {"layers.*.bias", "layers.0.a.bias"},
                                                        {"*ab", "aab"},
                                                        {"*a*b*c", "xaybabzc"},
                                                        {"**", ""}})
    EXPECT_TRUE(matches_glob(pattern, name)) << pattern << " " << name;
  for (const auto& [pattern, name] : std::vector<std::pair<const char*, const char*>>{
           {"", "a"}, {"a", "a.b"}, {"b", "a.b"}, {"a?", "a"}, {"*.bias", "bias"}, {"*a*b", "ba"}, {"?", ""}})
    EXPECT_FALSE(matches_glob(pattern, name)) << pattern << " " << name;
}

}  // namespace
}  // namespace holdfast::test
