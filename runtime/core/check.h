// HF_CHECK: an assertion that is always compiled in. It states what only a bug can break; input never reaches
// it (bad input is a Result with a message). A failed check prints the file, the line and the message, and
// aborts.
#pragma once

#ifndef __CUDACC__
#include <fmt/core.h>
#endif

#include <string_view>

namespace holdfast::core {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message);

#ifndef __CUDACC__
[[noreturn]] void check_failed_with(const char* file, int line, const char* condition,
                                    fmt::string_view format, fmt::format_args values);

// Checks the format against the values at compile time; the message is formatted out of line, because nearly
// every file has checks.
template <typename... Values>
[[noreturn]] void check_failed_as(const char* file, int line, const char* condition,
                                  fmt::format_string<Values...> format, Values&&... values) {
  check_failed_with(file, line, condition, format, fmt::make_format_args(values...));
}
#endif

}  // namespace holdfast::core

// HF_CHECK takes (condition) or (condition, "format {}", values...).
#ifdef __CUDACC__  // nvcc does not take fmt: its files say the format without the values
#define HF_CHECK(condition, ...)                                                       \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::holdfast::core::check_failed(__FILE__, __LINE__, #condition, "" #__VA_ARGS__); \
  } while (false)
#else
#define HF_CHECK(condition, ...)                                                         \
  do {                                                                                   \
    if (!(condition)) [[unlikely]]                                                       \
      ::holdfast::core::check_failed_as(__FILE__, __LINE__, #condition, "" __VA_ARGS__); \
  } while (false)
#endif
