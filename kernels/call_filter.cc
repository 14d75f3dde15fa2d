#include "kernels/call_filter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "kernels/op_fields.h"
#include "runtime/core/text.h"

namespace holdfast::kernels {
namespace {

using Part = OpScope::Part;

constexpr int last_layer = std::numeric_limits<int>::max();
constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min(),
                       highest = std::numeric_limits<std::int64_t>::max();

template <typename Number>
std::optional<Number> number_of(std::string_view digits) {
  Number number = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_whole = error == std::errc() && rest == digits.data() + digits.size();
  return is_whole && number >= 0 ? std::optional(number) : std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

struct Limits {
  std::int64_t minimum = lowest, maximum = highest;
};

// "4", "4-8", ">4", ">=4", "<4", "<=4"
std::optional<Limits> limits_of_number(std::string_view text) {
  const bool above = text.starts_with('>'), below = text.starts_with('<');
  if (above || below) {
    text.remove_prefix(1);
    const bool with_equal = text.starts_with('=');
    if (with_equal) text.remove_prefix(1);
    const std::optional<std::int64_t> number = number_of<std::int64_t>(trimmed(text));
    if (!number) return std::nullopt;
    if (above && !with_equal && *number == highest) return std::nullopt;
    if (above) return Limits{.minimum = *number + (with_equal ? 0 : 1)};
    return Limits{.maximum = *number - (with_equal ? 0 : 1)};
  }
  const std::size_t dash = text.find('-');
  const std::optional<std::int64_t> first = number_of<std::int64_t>(trimmed(text.substr(0, dash)));
  const std::optional<std::int64_t> last =
      dash == std::string_view::npos ? first : number_of<std::int64_t>(trimmed(text.substr(dash + 1)));
  if (!first || !last || *first > *last) return std::nullopt;
  return Limits{.minimum = *first, .maximum = *last};
}

template <typename Field>
constexpr const char* kind_of_value() {
  if constexpr (std::is_same_v<Field, bool>) return "true or false";
  if constexpr (std::is_same_v<Field, DType>) return "fp32, bf16, int32 or fp64";
  return "a number, or text such as \"4-8\", \">=4\" or \"<4\"";
}

template <typename Field>
std::optional<Limits> limits_of(std::string_view text) {
  const auto exactly = [](std::int64_t value) { return Limits{.minimum = value, .maximum = value}; };
  if constexpr (std::is_same_v<Field, bool>) {
    if (text == "true" || text == "false") return exactly(text == "true" ? 1 : 0);
    return std::nullopt;
  } else if constexpr (std::is_same_v<Field, DType>) {
    for (const DType type : {DType::fp32, DType::bf16, DType::int32, DType::fp64}) {
      if (text == name_of(type)) return exactly(static_cast<std::int64_t>(type));
    }
    return std::nullopt;
  } else {
    return limits_of_number(text);
  }
}

// Calls visit(name, offset, field) for each field of the op that tells of its shape.
template <typename Visit>
void visit_shape_fields(OpId id, const Visit& visit) {
  alignas(16) constexpr std::array<std::byte, op_bytes_max> zeros = {};
  visit_op(id, zeros.data(), [&visit](const auto& op) {
    const auto* const begin = reinterpret_cast<const std::byte*>(&op);
    visit_fields(op, [&](const char* name, const auto& field) {
      using Field = std::remove_cvref_t<decltype(field)>;
      if constexpr (std::is_integral_v<Field> || std::is_same_v<Field, DType>)
        visit(name, static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&field) - begin), field);
    });
  });
}

}  // namespace

bool is_launched_for_layers(OpId op) {
  switch (class_of(op)) {
    case OpClass::matmul:
    case OpClass::attention:
    case OpClass::norm:
    case OpClass::activation:
    case OpClass::residual:
    case OpClass::bias_gradient:
      return true;
    default:
      return false;
  }
}

Result<CallFilter::Places> CallFilter::places_of(std::string_view entry) {
  Places places;
  if (entry == "head") return Places{.first = -1, .last = -1, .part = Part::head};
  std::string_view layers = entry;
  for (const auto& [name, part] : {std::pair(std::string_view(".attention"), Part::attention),
                                   std::pair(std::string_view(".feed_forward"), Part::feed_forward)}) {
    if (!layers.ends_with(name)) continue;
    layers.remove_suffix(name.size());
    places.part = part;
    break;
  }
  const std::size_t dash = layers.find('-');
  const bool is_open = dash != std::string_view::npos && dash + 1 == layers.size();
  const std::optional<int> first = layers == "*" ? 0 : number_of<int>(layers.substr(0, dash));
  const std::optional<int> last = layers == "*" || is_open         ? last_layer
                                  : dash == std::string_view::npos ? first
                                                                   : number_of<int>(layers.substr(dash + 1));
  if (!first || !last || *first > *last)
    return fail(ExitCode::config,
                "layers has the entry \"{}\"; expected \"3\", \"0-3\", \"12-\" or \"*\", each also with "
                "\".attention\" or \".feed_forward\" behind it, or \"head\"; layers are counted from 0",
                entry);
  places.first = *first;
  places.last = *last;
  return places;
}

Result<CallFilter::ShapeRange> CallFilter::range_of(OpId op, const ShapeCondition& condition) {
  ShapeRange range{.field = condition.field};
  std::optional<Limits> limits;
  std::string expected;
  std::vector<std::string_view> names;
  visit_shape_fields(op, [&](const char* name, std::size_t offset, const auto& field) {
    using Field = std::remove_cvref_t<decltype(field)>;
    names.emplace_back(name);
    if (condition.field != name) return;
    range.offset = offset;
    range.bytes = sizeof(Field);
    limits = limits_of<Field>(trimmed(condition.value));
    expected = kind_of_value<Field>();
  });
  if (range.bytes == 0) {
    const std::string near = closest(condition.field, names);
    return fail(ExitCode::config, "where has {}, which is no shape of {}{} It has {}", condition.field,
                name_of(op), near.empty() ? "." : fmt::format(", did you mean {}?", near),
                fmt::join(names, ", "));
  }
  if (!limits)
    return fail(ExitCode::config, "where has {} = \"{}\"; expected {}", condition.field, condition.value,
                expected);
  range.minimum = limits->minimum;
  range.maximum = limits->maximum;
  return range;
}

Result<CallFilter> CallFilter::parse(OpId op, std::string_view layers,
                                     std::span<const ShapeCondition> where) {
  CallFilter filter;
  if (!layers.empty() && !is_launched_for_layers(op))
    return fail(
        ExitCode::config,
        "layers is given, and calls of {} belong to no layer: leave layers out, and the rule is about "
        "all of them",
        name_of(op));
  for (std::string_view rest = layers; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    HF_TRY(const Places places, places_of(trimmed(rest.substr(0, comma))));
    filter.places_.push_back(places);
    if (comma + 1 == rest.size()) return fail(ExitCode::config, "layers = \"{}\" ends with a comma", layers);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (!layers.empty())
    filter.text_ = layers == "head" ? " in the head" : fmt::format(" in layers {}", layers);
  std::string conditions;
  for (const ShapeCondition& condition : where) {
    HF_TRY(ShapeRange range, range_of(op, condition));
    filter.ranges_.push_back(std::move(range));
    const bool compares = condition.value.starts_with('<') || condition.value.starts_with('>');
    conditions += fmt::format("{}{} {}{}", conditions.empty() ? "" : " and ", condition.field,
                              compares ? "" : "= ", condition.value);
  }
  if (!conditions.empty()) filter.text_ += fmt::format(" where {}", conditions);
  return filter;
}

bool CallFilter::has_place(const CallPlace& place) const {
  if (places_.empty()) return true;
  return std::ranges::any_of(places_, [&](const Places& each) {
    if (each.part == Part::head || place.layer < 0)
      return each.part == Part::head && place.part == Part::head;
    return each.first <= place.layer && place.layer <= each.last &&
           (each.part == Part::none || each.part == place.part);
  });
}

std::int64_t CallFilter::value_of(const ShapeRange& range, const void* arguments) {
  const std::byte* const field = static_cast<const std::byte*>(arguments) + range.offset;
  switch (range.bytes) {
    case sizeof(std::int8_t): {
      std::int8_t value = 0;
      std::memcpy(&value, field, sizeof(value));
      return value;
    }
    case sizeof(std::int32_t): {
      std::int32_t value = 0;
      std::memcpy(&value, field, sizeof(value));
      return value;
    }
    default: {
      std::int64_t value = 0;
      std::memcpy(&value, field, sizeof(value));
      return value;
    }
  }
}

bool CallFilter::has_shape(const void* arguments) const {
  return std::ranges::all_of(ranges_, [&](const ShapeRange& range) {
    const std::int64_t value = value_of(range, arguments);
    return range.minimum <= value && value <= range.maximum;
  });
}

bool CallFilter::overlaps(const CallFilter& other) const {
  const auto meet = [](const Places& a, const Places& b) {
    if ((a.part == Part::head) != (b.part == Part::head)) return false;
    const bool parts_meet = a.part == b.part || a.part == Part::none || b.part == Part::none;
    return parts_meet && a.first <= b.last && b.first <= a.last;
  };
  const bool places_meet =
      places_.empty() || other.places_.empty() || std::ranges::any_of(places_, [&](const Places& a) {
        return std::ranges::any_of(other.places_, [&](const Places& b) { return meet(a, b); });
      });
  if (!places_meet) return false;
  return std::ranges::none_of(ranges_, [&](const ShapeRange& a) {
    return std::ranges::any_of(other.ranges_, [&](const ShapeRange& b) {
      return a.field == b.field && (a.maximum < b.minimum || b.maximum < a.minimum);
    });
  });
}

std::string CallFilter::text() const {
  return text_;
}

std::string CallFilter::shape_text(const void* arguments) const {
  std::vector<std::string> parts;
  for (const ShapeRange& range : ranges_)
    parts.push_back(fmt::format("{} = {}", range.field, value_of(range, arguments)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace holdfast::kernels
