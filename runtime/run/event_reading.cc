#include "runtime/run/event_reading.h"

#include <fmt/format.h>

#include <concepts>
#include <numeric>

namespace holdfast::run {

void for_each_event(std::string_view event_lines, const std::function<void(const Json&)>& take) {
  while (!event_lines.empty()) {
    const std::size_t end = std::min(event_lines.find('\n'), event_lines.size());
    const Json event = Json::parse_any(event_lines.substr(0, end));
    if (event.is_object()) take(event);
    event_lines.remove_prefix(std::min(end + 1, event_lines.size()));
  }
}

double number_of(const Json& json, std::string_view key, double otherwise) {
  const auto found = json.find(key);
  if (found != json.end()) read_event_field(*found, otherwise);
  return otherwise;
}

std::uint64_t count_of(const Json& json, std::string_view key, std::uint64_t otherwise) {
  const auto found = json.find(key);
  if (found != json.end()) read_event_field(*found, otherwise);
  return otherwise;
}

std::string text_of(const Json& json, std::string_view key) {
  std::string text;
  const auto found = json.find(key);
  if (found != json.end()) read_event_field(*found, text);
  return text;
}

std::string_view event_kind(const Json& event) {
  const auto found = event.find(event_kind_field);
  return found != event.end() && found->is_string() ? std::string_view(found->text()) : "";
}

std::int64_t event_time(const Json& event) {
  std::int64_t time_us = 0;
  const auto found = event.find(event_time_field);
  if (found != event.end()) read_event_field(*found, time_us);
  return time_us;
}

std::optional<std::uint64_t> event_step(const Json& event) {
  std::optional<std::uint64_t> step;
  const auto found = event.find(field_name(&StepEvent::step));
  if (found != event.end()) read_event_field(*found, step);
  return step;
}

bool read_event_field(const Json& value, double& field) {
  if (!value.is_number()) return false;
  field = value.get<double>();
  return true;
}

bool read_event_field(const Json& value, bool& field) {
  if (!value.is_boolean()) return false;
  field = value.get<bool>();
  return true;
}

bool read_event_field(const Json& value, std::string& field) {
  if (!value.is_string()) return false;
  field = value.text();
  return true;
}

bool read_event_field(const Json& value, Digest& field) {
  return value.is_string() && from_hex(value.text(), field);
}

bool read_event_field(const Json& value, std::map<std::string, int>& field) {
  if (!value.is_object()) return false;
  field.clear();
  for (const JsonMember& each : value.items()) {
    if (int count = 0; read_event_field(each.value, count)) field[each.key] = count;
  }
  return true;
}

bool read_event_field(const Json& value, std::map<std::string, std::string>& field) {
  if (!value.is_object()) return false;
  field.clear();
  for (const JsonMember& each : value.items()) {
    if (each.value.is_string()) field[each.key] = each.value.text();
  }
  return true;
}

bool read_event_field(const Json& value, std::vector<EventKernel>& field) {
  if (!value.is_object()) return false;
  field.clear();
  for (const JsonMember& each : value.items()) {
    if (each.value.is_object())
      field.push_back(
          {.op = each.key, .name = text_of(each.value, "name"), .why = text_of(each.value, "why")});
  }
  return true;
}

bool read_event_field(const Json& value, std::vector<std::uint64_t>& field) {
  if (!value.is_array()) return false;
  field.clear();
  for (const Json& each : value) read_event_field(each, field.emplace_back());
  return true;
}

bool read_event_field(const Json& value, std::variant<double, std::int64_t>& field) {
  if (value.is_number_float()) {
    field = value.get<double>();
    return true;
  }
  std::int64_t whole = 0;
  if (!read_event_field(value, whole)) return false;
  field = whole;
  return true;
}

std::vector<SourceUse> uses_of(const std::vector<EventSource>& sources,
                               std::span<const std::uint64_t> samples, std::uint64_t tokens) {
  std::vector<SourceUse> uses;
  if (sources.size() != samples.size()) return uses;
  const std::uint64_t all = std::accumulate(samples.begin(), samples.end(), std::uint64_t{0});
  const std::uint64_t tokens_per_sample = tokens / std::max<std::uint64_t>(all, 1);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    uses.push_back(
        {.path = sources[i].path, .samples = samples[i], .tokens = samples[i] * tokens_per_sample});
    if (sources[i].samples > 0)
      uses.back().epochs = static_cast<double>(samples[i]) / static_cast<double>(sources[i].samples);
  }
  return uses;
}

std::string text_of(const SourceUse& use) {
  return fmt::format("{}: {} samples, {} tokens, {:.2f} epochs", use.path, use.samples, use.tokens,
                     use.epochs);
}

namespace {

template <typename T>
struct FieldTraits {
  static constexpr bool always = true;
  static constexpr std::string_view type() {
    if constexpr (std::same_as<T, bool>) {
      return "boolean";
    } else if constexpr (std::integral<T>) {
      return "integer";
    } else if constexpr (std::same_as<T, double> || std::same_as<T, std::variant<double, std::int64_t>>) {
      return "number";
    } else if constexpr (std::same_as<T, std::string> || std::same_as<T, Digest>) {
      return "text";
    } else if constexpr (std::same_as<T, std::vector<std::uint64_t>> ||
                         std::same_as<T, std::vector<EventSource>> ||
                         std::same_as<T, std::vector<SourceUse>>) {
      return "list";
    } else {
      return "object";
    }
  }
};
template <typename T>
struct FieldTraits<OrNull<T>> : FieldTraits<T> {};
template <typename T>
struct FieldTraits<std::optional<T>> : FieldTraits<T> {
  static constexpr bool always = false;
};

template <Event E>
EventKind kind_of(const E& event) {
  EventKind kind{.name = E::kind, .meaning = E::meaning, .fields = {}};
  const auto add = [&kind]<typename T>(std::string_view name, const T&, std::string_view unit,
                                       std::string_view meaning) {
    kind.fields.push_back({.name = name,
                           .type = FieldTraits<T>::type(),
                           .unit = unit,
                           .meaning = meaning,
                           .always = FieldTraits<T>::always});
  };
  E::visit_fields(event, add);
  return kind;
}

}  // namespace

std::vector<EventKind> event_schema() {
  return std::apply([](const auto&... event) { return std::vector{kind_of(event)...}; }, EventKinds());
}

std::string event_reference() {
  std::string text = fmt::format(
      "# Events\n"
      "\n"
      "Generated by `holdfast config events` from `runtime/run/event.h`.\n"
      "\n"
      "This is version {} of kinds and fields. What a version has, all later ones with the same first number "
      "have, with the same type and "
      "meaning;\n"
      "they may have more.\n"
      "\n",
      event_schema_version);
  text +=
      "`events.jsonl` in the run directory has one JSON object a line: the source of truth from which "
      "console, report and\n"
      "history are made. Rank 0 writes it, and the launcher what it did between two starts. A reader takes "
      "whole lines, the\n"
      "last of a step that appears twice, and ignores kinds and fields that it does not know. With "
      "`log.rotate_bytes` the older\n"
      "parts are `events-0001.jsonl` and so on. Every event has `event`, its kind, and `time_us`, the wall "
      "clock in microseconds\n"
      "since 1970. A number that is not finite is `null`.\n"
      "\n"
      "    import pandas\n"
      "    log = pandas.read_json(\"runs/mine/events.jsonl\", lines=True)\n"
      "    steps = log[log.event == \"step\"].drop_duplicates(\"step\", keep=\"last\")\n";
  for (const EventKind& kind : event_schema()) {
    text += fmt::format("\n## `{}`\n\n{}\n\n| field | type | unit | |\n|---|---|---|---|\n", kind.name,
                        kind.meaning);
    for (const EventField& field : kind.fields) {
      text += fmt::format("| `{}`{} | {} | {} | {} |\n", field.name, field.always ? "" : " (not always)",
                          field.type, field.unit, field.meaning);
    }
  }
  return text;
}

}  // namespace holdfast::run
