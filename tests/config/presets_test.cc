// That the presets are the published models is tests/model/preset_test.cc.
#include "runtime/config/presets.h"

#include <gtest/gtest.h>

#include <set>

namespace holdfast::test {
namespace {

TEST(Presets, AreFoundByTheirNameAndSayWhereTheyArePublished) {
  std::set<std::string_view> names;
  for (const ModelPreset& preset : model_presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    EXPECT_EQ(find_preset(preset.name), &preset);
    EXPECT_EQ(preset.model.preset, preset.name);
    EXPECT_FALSE(preset.source.empty()) << preset.name;
  }
}

TEST(Presets, UnknownNameIsNull) {
  EXPECT_EQ(find_preset("gpt2"), nullptr);
}

}  // namespace
}  // namespace holdfast::test
