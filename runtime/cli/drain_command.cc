// holdfast drain: requests that the launcher of a run leave a host (runtime/run/requests.h), and waits
// until the run goes on without it.
#include <fmt/core.h>

#include <optional>
#include <string>
#include <utility>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/core/units.h"
#include "runtime/os/console.h"
#include "runtime/run/requests.h"
#include "runtime/run/run_directory.h"

namespace holdfast::cli {
namespace {

constexpr std::int64_t look_at_answer_us = 100'000;
constexpr std::int64_t report_waiting_ns = 10'000'000'000;

constexpr const char* drain_usage =
    "usage: holdfast drain RUN HOST [--deadline 30s]\n"
    "       holdfast drain RUN HOST --cancel\n"
    "\n"
    "Lets the run of the run directory RUN leave the host HOST, as `holdfast launch` was given it: the run "
    "ends "
    "after its\n"
    "next step with its state in the memory of the other hosts, and is started again on these. No step is "
    "computed\n"
    "again. Returns when it trains without HOST, which then may be switched off. The run does not use HOST "
    "any "
    "more, for as\n"
    "long as the launch lasts.\n"
    "\n"
    "  --deadline S  leave it within that time, even if the step takes longer: it is then computed again\n"
    "  --cancel      HOST may be used again; a run that has room for it takes it back\n"
    "\n"
    "Exit code 2: there is no such host, or the run cannot do without it; 76: no `holdfast launch` has the "
    "run.\n";

std::optional<DrainRequest> find_drain(Env& env, const RunPaths& paths, const std::string& host) {
  for (DrainRequest& request : read_drain_requests(env, paths)) {
    if (request.host == host) return std::move(request);
  }
  return std::nullopt;
}

Error not_launched(const RunPaths& paths) {
  return fail(
      ExitCode::communication,
      "no holdfast launch has {} at the moment, and nothing else can move a run to other hosts. Stop it "
      "(SIGUSR2 to mpirun), and start it where it should be",
      paths.directory);
}

// Reports that the run has ended. A run that has ended well meanwhile has nothing on the host, either.
Result<void> say_ended(Env& env, const RunPaths& paths) {
  const RunStatus status = read_status(env, paths);
  if (status.state != "finished" && status.state != "saved") return not_launched(paths);
  fmt::print("the run in {} has ended ({}, step {})\n", paths.directory, status.state, status.step);
  return {};
}

Result<void> wait_until_drained(Env& env, const RunPaths& paths, const std::string& host) {
  const std::int64_t begin_ns = env.monotonic_ns();
  std::int64_t reported_ns = begin_ns;
  bool has_begun = false;
  while (true) {
    const std::optional<DrainRequest> request = find_drain(env, paths, host);
    if (!request.has_value()) {
      return fail(ExitCode::communication,
                  "the request to drain {} was withdrawn, or {} was launched again meanwhile", host,
                  paths.directory);
    }
    if (request->state == DrainRequest::State::refused) {
      static_cast<void>(remove_drain_request(env, paths, host).ok());
      return fail(ExitCode::config, "host {} is not drained: {}", host, request->sentence);
    }
    if (request->state == DrainRequest::State::drained) {
      fmt::print("host {} is drained: the run goes on without it from step {}\n", host, request->step);
      return {};
    }
    if (request->state == DrainRequest::State::begun && !std::exchange(has_begun, true))
      print_message("the run ends after its step, and is started again without {}", host);
    HF_TRY(const bool is_launched, has_launcher(env, paths));
    if (!is_launched) return say_ended(env, paths);
    const std::int64_t now_ns = env.monotonic_ns();
    if (now_ns - reported_ns > report_waiting_ns) {
      reported_ns = now_ns;
      print_message("still waiting, for {}", format_duration((now_ns - begin_ns) / 1'000'000'000 * 1000));
    }
    env.sleep_us(look_at_answer_us);
  }
}

Result<void> drain(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments,
         Arguments::parse("drain", words, {"RUN", "HOST"}, {"deadline"}, {"cancel"}));
  Env& env = posix_env();
  const RunPaths paths{arguments.positional(0)};
  const std::string host = arguments.positional(1);
  HF_TRY_VOID(expect_run_directory(env, paths));
  const std::optional<DrainRequest> known = find_drain(env, paths, host);
  if (arguments.has("cancel")) {
    if (!known.has_value())
      return fail(ExitCode::config, "host {} is not being drained, nor was it drained", host);
    HF_TRY_VOID(remove_drain_request(env, paths, host));
    fmt::print("host {} may be used again\n", host);
    return {};
  }
  constexpr std::int64_t ms = 1'000;
  std::int64_t deadline_ms = 0;
  if (arguments.has("deadline")) {
    HF_TRY(deadline_ms, parse_duration(arguments.text("deadline", "")));
  }
  HF_TRY(const bool is_launched, has_launcher(env, paths));
  if (!is_launched) return say_ended(env, paths);
  const bool is_drained = known.has_value() && known->state == DrainRequest::State::drained;
  const bool is_asked = known.has_value() && known->state != DrainRequest::State::refused;
  if (!is_asked || (deadline_ms > 0 && !is_drained)) {
    HF_TRY_VOID(write_drain_request(env, paths, {.host = host, .deadline_s = (deadline_ms + ms - 1) / ms}));
  }
  return wait_until_drained(env, paths, host);
}

}  // namespace

int run_drain_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", drain_usage);
    return 0;
  }
  const Result<void> drained = drain(arguments);
  return drained.ok() ? 0 : complain(drained.error());
}

}  // namespace holdfast::cli
