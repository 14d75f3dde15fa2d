#include "runtime/inference/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace holdfast::test {
namespace {

using Parts = std::vector<std::string>;

// Adds a text byte by byte, and returns what is shown after each, and at the end.
Parts shown(std::string_view text, const std::vector<std::string>& stops = {}) {
  TextStream stream(stops);
  Parts parts;
  for (std::size_t i = 0; i < text.size() && !stream.stopped(); ++i)
    parts.push_back(stream.add(text.substr(i, 1)));
  parts.push_back(stream.finish());
  return parts;
}

TEST(TextStream, NeverCutsACharacter) {
  EXPECT_EQ(shown("a\u00e9"), (Parts{"a", "", "\u00e9", ""}));
  EXPECT_EQ(shown("\u20ac!"), (Parts{"", "", "\u20ac", "!", ""}));
  EXPECT_EQ(shown("\U0001F600"), (Parts{"", "", "", "\U0001F600", ""}));
  EXPECT_EQ(shown("x\xF0\x9F\x98"), (Parts{"x", "", "", "", ""})) << "its rest never came";
}

TEST(TextStream, PassesBytesThatAreNoCharacters) {
  EXPECT_EQ(shown("\x80\xFF\xC1"), (Parts{"\x80", "\xFF", "\xC1", ""}));
  EXPECT_EQ(shown("\xC3z"), (Parts{"", "\xC3z", ""}));
}

TEST(TextStream, EndsBeforeTheFirstStop) {
  EXPECT_EQ(shown("say END", {"END"}), (Parts{"s", "a", "y", " ", "", "", "", ""}));
  EXPECT_EQ(shown("ENENDx", {"END"}), (Parts{"", "", "EN", "", "", ""})) << "it may begin again";
  EXPECT_EQ(shown("abcd", {"cd", "bc"}), (Parts{"a", "", "", ""}));
  EXPECT_EQ(shown("EN", {"END"}), (Parts{"", "", "EN"})) << "nothing follows";
  TextStream stream({"b", "d"});
  EXPECT_EQ(stream.add("abcd"), "a");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, StopsAtCharactersOfSeveralBytes) {
  EXPECT_EQ(shown("a\u20ac", {"\u20ac"}), (Parts{"a", "", "", "", ""}));
  EXPECT_EQ(shown("a\u20ab", {"\u20ac"}), (Parts{"a", "", "", "\u20ab", ""}));
}

}  // namespace
}  // namespace holdfast::test
