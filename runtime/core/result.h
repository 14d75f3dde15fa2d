// Result<T>: the return type of operations that can fail because of input, files, peers or devices; bugs are
// HF_CHECK. Exceptions do not cross layers.
//
//   Result<Manifest> read_manifest(...);
//   HF_TRY(Manifest manifest, read_manifest(...));   // returns the error to the caller
//   HF_TRY_VOID(write_shard(...));
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "runtime/core/check.h"

namespace holdfast::core {

// The process exit codes of docs/errors.md. An Error carries the code that the program ends with if nobody
// handles it.
enum class ExitCode : int {
  done = 0,
  config = 2,
  does_not_fit = 3,
  data = 4,
  checkpoint = 5,
  numerics = 20,
  saved = 75,
  communication = 76,
};

// Reach says where and when the same attempt would fail as well. It decides whether a fault ends a run, leaves a
// host out, or is waited for: an exit code is final only if the run's own inputs are wrong everywhere.
enum class Reach : std::uint8_t {
  run,     // always: the config, the model or the data are wrong
  host,    // on this host: its device, mount, program, disk or memory is unfit
  minute,  // now: storage or a link does not respond, or the system is short of something
  // The other two follow from an agreement of all ranks (parallel/comm/agreement.h).
  everywhere,  // on all hosts, each of which lacks it: it may come back
  peers,       // on other hosts alone: this rank is fit
};

// An error with one sentence for a person: what happened, where, what was expected, what to do.
struct Error {
  ExitCode code = ExitCode::config;
  std::string message;
  Reach reach = Reach::run;
  int reason = 0;  // errno of the call of the system that failed; 0: none did, or it is not known
};

// Return the same error with another exit code, and with another reach.
Error with_code(ExitCode code, Error error);
Error with_reach(Reach reach, Error error);
// Returns `error` with the reach and the reason of its cause.
Error with_cause(const Error& cause, Error error);

// Ends the program: out of line, because every type of a Result checks three times.
[[noreturn]] void value_of_error(const Error& error);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : content_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return content_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    if (!ok()) [[unlikely]]
      value_of_error(error());
    return std::get<0>(content_);
  }
  const T& value() const& {
    if (!ok()) [[unlikely]]
      value_of_error(error());
    return std::get<0>(content_);
  }
  T&& value() && {
    if (!ok()) [[unlikely]]
      value_of_error(error());
    return std::get<0>(std::move(content_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const {
    HF_CHECK(content_.index() == 1);
    return std::get<1>(content_);
  }

 private:
  std::variant<T, Error> content_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    HF_CHECK(error_.has_value());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

// Returns the outcome without the value.
template <typename T>
Result<void> outcome_of(const Result<T>& result) {
  return result.ok() ? Result<void>() : Result<void>(result.error());
}

Error fail_with(ExitCode code, fmt::string_view format, fmt::format_args values);

// Makes an error from a code and a formatted message: fail(ExitCode::data, "{}: ...", path).
template <typename... Values>
Error fail(ExitCode code, fmt::format_string<Values...> format, Values&&... values) {
  return fail_with(code, format, fmt::make_format_args(values...));
}

// Makes an error whose cause is another one, which it quotes, and whose reach and reason it has.
template <typename... Values>
Error fail_because(const Error& cause, ExitCode code, fmt::format_string<Values...> format,
                   Values&&... values) {
  return with_cause(cause, fail_with(code, format, fmt::make_format_args(values...)));
}

}  // namespace holdfast::core

#define HF_CONCAT_(a, b) a##b
#define HF_CONCAT(a, b) HF_CONCAT_(a, b)
#define HF_TRY_(temporary, declaration, expression) \
  auto temporary = (expression);                    \
  if (!temporary.ok()) return temporary.error();    \
  declaration = std::move(temporary).value()
#define HF_TRY(declaration, ...) HF_TRY_(HF_CONCAT(hf_result_, __LINE__), declaration, (__VA_ARGS__))
#define HF_TRY_VOID(...)                                                           \
  do {                                                                             \
    if (auto hf_status = (__VA_ARGS__); !hf_status.ok()) return hf_status.error(); \
  } while (false)
