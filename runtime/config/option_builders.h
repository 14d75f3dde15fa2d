// Constructors of registry entries. The accessor's return type is checked against the option's type at
// compile time.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "runtime/config/option.h"

namespace holdfast::config::builders {

// Makes the accessor of the field `name` of a Config that the constructors below take.
#define HF_FIELD(name)           \
  [](Config & config) -> auto& { \
    return config.name;          \
  }

struct Range {
  double minimum, maximum;
};

template <typename Value, typename Access>
Option make(std::string_view key, OptionType type, Access access, ResumeEffect effect,
            std::string_view help) {
  Option option;
  option.key = key;
  option.type = type;
  option.help = help;
  option.effect = effect;
  option.field = [access](Config& config) -> void* {
    Value& field = access(config);
    return &field;
  };
  return option;
}

template <typename Access>
Option text(std::string_view key, Access access, ResumeEffect effect, std::string_view help) {
  return make<std::string>(key, OptionType::text, access, effect, help);
}

template <typename Access>
Option texts(std::string_view key, Access access, ResumeEffect effect, std::string_view help) {
  return make<TextList>(key, OptionType::texts, access, effect, help);
}

template <typename Access>
Option choice(std::string_view key, Access access, std::vector<std::string_view> choices, ResumeEffect effect,
              std::string_view help) {
  Option option = make<std::string>(key, OptionType::choice, access, effect, help);
  option.choices = std::move(choices);
  return option;
}

// Makes an integer option. `Value` is std::int64_t, or std::uint64_t for values that never exceed what
// std::int64_t holds.
template <typename Value = std::int64_t, typename Access>
Option integer(std::string_view key, Access access, std::string_view unit, Range range, ResumeEffect effect,
               std::string_view help) {
  Option option = make<Value>(key, OptionType::integer, access, effect, help);
  option.unit = unit;
  option.minimum = range.minimum;
  option.maximum = range.maximum;
  return option;
}

// Makes an option that is an integer >= 0, or "auto".
template <typename Access>
Option integer_or_auto(std::string_view key, Access access, std::string_view unit, Range range,
                       ResumeEffect effect, std::string_view help) {
  Option option = integer(key, access, unit, range, effect, help);
  option.or_auto = true;
  return option;
}

template <typename Access>
Option real(std::string_view key, Access access, std::string_view unit, Range range, ResumeEffect effect,
            std::string_view help) {
  Option option = make<double>(key, OptionType::real, access, effect, help);
  option.unit = unit;
  option.minimum = range.minimum;
  option.maximum = range.maximum;
  return option;
}

template <typename Access>
Option boolean(std::string_view key, Access access, ResumeEffect effect, std::string_view help) {
  return make<bool>(key, OptionType::boolean, access, effect, help);
}

// Makes a duration option. The field holds milliseconds; users write "3h50m" or a number of seconds.
template <typename Access>
Option duration(std::string_view key, Access access, Range range_ms, ResumeEffect effect,
                std::string_view help) {
  Option option = make<std::int64_t>(key, OptionType::duration, access, effect, help);
  option.unit = "duration";
  option.minimum = range_ms.minimum;
  option.maximum = range_ms.maximum;
  return option;
}

template <typename Access>
Option sources(std::string_view key, Access access, ResumeEffect effect, std::string_view help) {
  return make<SourceList>(key, OptionType::sources, access, effect, help);
}

// Makes an option that is a list of rules; with `every` where they are shadows.
template <typename Access>
Option kernel_rules(std::string_view key, Access access, bool has_every, ResumeEffect effect,
                    std::string_view help) {
  Option option = make<KernelRuleList>(key, OptionType::kernel_rules, access, effect, help);
  option.has_every = has_every;
  return option;
}

// Makes an option that is a list of paths; those of a file begin at its folder.
template <typename Access>
Option paths(std::string_view key, Access access, ResumeEffect effect, std::string_view help) {
  Option option = texts(key, access, effect, help);
  option.begins_at_file = true;
  return option;
}

inline Option required(Option option, std::string_view example) {
  option.required = true;
  option.example = example;
  return option;
}

}  // namespace holdfast::config::builders
