// The option surface is frozen: a key, a type, a default or an effect on resume changes only together with
// golden/options.txt, where a reader sees it.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "kernels/op.h"
#include "runtime/config/option_value.h"

namespace holdfast::test {
namespace {

std::string surface() {
  constexpr std::array<std::string_view, 3> effects = {"safe", "numeric", "forbidden"};
  std::set<std::string_view> of_ops;
  for (const char* op : kernels::op_names) of_ops.insert(op);
  std::string text, last;
  for (const Option& option : option_registry()) {
    const bool is_of_op = option.key.starts_with("kernels.") && of_ops.contains(option.key.substr(8));
    const std::string line =
        fmt::format("{}: {}; {}; {}\n", is_of_op ? "kernels.OP" : option.key, type_text(option),
                    option.required ? "required" : default_text(option),
                    effects[static_cast<std::size_t>(option.effect)]);
    if (line != last) text += line;
    last = line;
  }
  return text;
}

TEST(OptionRegistry, SurfaceIsFrozen) {
  std::ifstream file(std::string(HF_SOURCE_DIR) + "/tests/config/golden/options.txt");
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(surface(), golden.str())
      << "a wanted change of the options belongs into tests/config/golden/options.txt";
}

TEST(OptionRegistry, EntriesAreWellFormed) {
  std::set<std::string_view> keys;
  std::set<void*> fields;
  std::string_view section;
  std::set<std::string_view> closed_sections;
  Config config;
  for (const Option& option : option_registry()) {
    EXPECT_TRUE(keys.insert(option.key).second) << option.key << " is there twice";
    EXPECT_TRUE(fields.insert(option.field(config)).second) << option.key << " shares a field";
    EXPECT_FALSE(option.help.empty()) << option.key;
    EXPECT_EQ(option.help.find('\n'), std::string_view::npos) << option.key;
    EXPECT_EQ(option.type == OptionType::choice, !option.choices.empty()) << option.key;
    const bool ranged = option.type == OptionType::integer || option.type == OptionType::real ||
                        option.type == OptionType::duration;
    EXPECT_EQ(ranged, option.maximum > option.minimum) << option.key;
    if (section_of(option.key) != section) {
      EXPECT_TRUE(closed_sections.insert(section).second) << option.key << " stands apart from its section";
      section = section_of(option.key);
    }
  }
  EXPECT_FALSE(closed_sections.contains(section));
}

}  // namespace
}  // namespace holdfast::test
