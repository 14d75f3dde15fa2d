// Records: structs that say their fields once, from which their text (JSON) is both written and read.
//
//   struct Offer {
//     std::uint64_t step = 0;
//     std::optional<double> loss = {};
//     std::vector<Part> parts = {};  // each a record again
//
//     static void visit_fields(auto& self, auto&& visit) {
//       visit("step", self.step);
//       visit("loss", self.loss);
//       visit("parts", self.parts);
//     }
//   };
//   const std::string text = record_to_text(offer);
//   HF_TRY(const Offer same, record_from_text<Offer>(text));
//
// A field is a number, a truth value, a text, an enumeration (written as its number), an optional (null where
// there is none), a vector or an array of fields, or a record. The struct stays an aggregate, and is not
// local to a function, which may have no templates. A field that is absent from the text keeps its default;
// one that is not known is ignored. What is not UTF-8 in a text is replaced, and a number that is not finite
// cannot be read back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "runtime/core/json.h"
#include "runtime/core/result.h"

namespace holdfast::core {

inline constexpr auto ignore_field = [](const char*, const auto&) {};
template <typename T>
concept Record = requires(T& record) {
  T::visit_fields(record, ignore_field);
};

template <typename T>
inline constexpr bool is_optional_field = false;
template <typename T>
inline constexpr bool is_optional_field<std::optional<T>> = true;

template <typename T>
Json field_to_json(const T& field) {
  if constexpr (Record<const T>) {
    Json json = Json::object();
    T::visit_fields(field, [&json](const char* name, const auto& each) { json[name] = field_to_json(each); });
    return json;
  } else if constexpr (is_optional_field<T>) {
    return field.has_value() ? field_to_json(*field) : Json();
  } else if constexpr (std::is_enum_v<T>) {
    return Json(static_cast<std::underlying_type_t<T>>(field));
  } else if constexpr (JsonRange<T>) {
    Json json = Json::array();
    for (const auto& each : field) json.push_back(field_to_json(each));
    return json;
  } else {
    return Json(field);
  }
}

template <JsonNumber T>
bool number_from_json(const Json& json, T& number) {
  if constexpr (std::floating_point<T>) {
    if (!json.is_number()) return false;
    number = json.get<T>();
  } else if (json.is_number_unsigned()) {
    const auto value = json.get<std::uint64_t>();
    if (!std::in_range<T>(value)) return false;
    number = static_cast<T>(value);
  } else {
    if (!json.is_number_integer()) return false;
    const auto value = json.get<std::int64_t>();
    if (!std::in_range<T>(value)) return false;
    number = static_cast<T>(value);
  }
  return true;
}

// Reads the field from JSON that may be anything. Returns whether that is possible; where it is not,
// `problem` names the innermost field that cannot be read, and empty stands for the whole.
template <typename T>
bool field_from_json(const Json& json, T& field, std::string& problem) {
  if constexpr (Record<T>) {
    if (!json.is_object()) return false;
    bool is_read = true;
    T::visit_fields(field, [&](const char* name, auto& each) {
      const JsonIterator found = json.find(name);
      if (!is_read || found == json.end()) return;
      is_read = field_from_json(*found, each, problem);
      if (!is_read && problem.empty()) problem = name;
    });
    return is_read;
  } else if constexpr (is_optional_field<T>) {
    field.reset();
    if (json.is_null()) return true;
    typename T::value_type value{};
    const bool is_read = field_from_json(json, value, problem);
    if (is_read) field = std::move(value);
    return is_read;
  } else if constexpr (std::is_enum_v<T>) {
    std::underlying_type_t<T> number = 0;
    if (!number_from_json(json, number)) return false;
    field = static_cast<T>(number);
    return true;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) return false;
    field = json.get<bool>();
    return true;
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) return false;
    field = json.text();
    return true;
  } else if constexpr (JsonNumber<T>) {
    return number_from_json(json, field);
  } else {
    if (!json.is_array()) return false;
    if constexpr (requires { field.resize(json.size()); }) field.resize(json.size());
    if (field.size() != json.size()) return false;
    std::size_t next = 0;
    for (auto& each : field)
      if (!field_from_json(json[next++], each, problem)) return false;
    return true;
  }
}

template <typename T>
std::string record_to_text(const T& record) {
  return field_to_json(record).dump_any();
}

// Reads text that may be anything. Errors: ExitCode::communication, a clause that names the field.
template <typename T>
Result<T> record_from_text(std::string_view text) {
  T record{};
  std::string problem;
  if (field_from_json(Json::parse_any(text), record, problem)) return record;
  if (problem.empty()) return fail(ExitCode::communication, "it is not such a record");
  return fail(ExitCode::communication, "its field {} has another type or is out of range", problem);
}

}  // namespace holdfast::core
