// The schema of the events of a run's log, for people and tests: made from the structs of event.h. The tests
// of whole runs compare the logs that they find with its page, docs/events.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace holdfast::run {

struct EventField {
  std::string_view name;
  std::string_view type;  // "integer", "number" (null where it is not finite), "text", "boolean", "object"
  std::string_view unit;  // empty: none, or the name says it
  std::string_view meaning;
  bool always = true;  // false: not in every event of the kind; the meaning says when
};

// One kind of event. Beside its fields each has `event`, its name, and `time_us`.
struct EventKind {
  std::string_view name;
  std::string_view meaning;
  std::vector<EventField> fields;
};

std::vector<EventKind> event_schema();

// Returns the page for people: docs/events.md.
std::string event_reference();

}  // namespace holdfast::run
