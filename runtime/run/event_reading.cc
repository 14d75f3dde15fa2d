#include "runtime/run/event_reading.h"

#include <algorithm>

#include "runtime/core/json.h"

namespace holdfast::inline run {

void for_each_event(std::string_view event_lines, const std::function<void(const Json&)>& take) {
  while (!event_lines.empty()) {
    const std::size_t end = std::min(event_lines.find('\n'), event_lines.size());
    const Json event = Json::parse_any(event_lines.substr(0, end));
    if (event.is_object()) take(event);
    event_lines.remove_prefix(std::min(end + 1, event_lines.size()));
  }
}

double number_of(const Json& event, const char* key, double otherwise) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() ? found->get<double>() : otherwise;
}

std::uint64_t count_of(const Json& event, const char* key, std::uint64_t otherwise) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : otherwise;
}

std::string text_of(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace holdfast::inline run
