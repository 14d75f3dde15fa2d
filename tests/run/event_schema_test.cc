// Tests that the schema of events says everything once.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "runtime/run/event_schema.h"

namespace holdfast {
namespace {

TEST(EventSchema, SaysEveryKindAndFieldOnce) {
  const std::set<std::string_view> types = {"integer", "number", "text", "object", "boolean"};
  std::set<std::string_view> kinds;
  for (const EventKind& kind : event_schema()) {
    EXPECT_TRUE(kinds.insert(kind.name).second) << kind.name;
    EXPECT_FALSE(kind.meaning.empty()) << kind.name;
    std::set<std::string_view> fields = {"event", "time_us"};
    for (const EventField& field : kind.fields) {
      EXPECT_TRUE(fields.insert(field.name).second) << kind.name << "." << field.name;
      EXPECT_TRUE(types.contains(field.type)) << kind.name << "." << field.name;
      EXPECT_FALSE(field.meaning.empty()) << kind.name << "." << field.name;
    }
  }
  EXPECT_TRUE(kinds.contains("recovery"));
}

TEST(EventSchema, ThePageNamesAllOfIt) {
  const std::string page = event_reference();
  for (const EventKind& kind : event_schema()) {
    EXPECT_NE(page.find("\n## `" + std::string(kind.name) + "`\n"), std::string::npos) << kind.name;
    for (const EventField& field : kind.fields)
      EXPECT_NE(page.find("| `" + std::string(field.name) + "`"), std::string::npos) << field.name;
  }
}

}  // namespace
}  // namespace holdfast
