// The events of a run's log: every kind and every field, said once. docs/events.md is generated from it, and
// the tests of whole runs compare the logs that they find with that page.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace holdfast::inline run {

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
  std::span<const EventField> fields;
};

std::span<const EventKind> event_schema();

// Returns the page for people: docs/events.md.
std::string event_reference();

}  // namespace holdfast::inline run
