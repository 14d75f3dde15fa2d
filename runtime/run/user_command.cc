#include "runtime/run/user_command.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/core/units.h"

namespace holdfast::run {
namespace {

std::string sentence_of_end(const CommandEnd& end, const UserCommand& command) {
  switch (end.how) {
    case CommandEnd::How::exited:
      return fmt::format("ended with exit code {}", end.code);
    case CommandEnd::How::killed:
      return fmt::format("was killed by signal {}", end.code);
    case CommandEnd::How::timed_out:
      return fmt::format("took longer than {} = {}", command.timeout_key,
                         format_duration(command.timeout_ms));
    case CommandEnd::How::cancelled:
      return "was killed, because the run ends";
  }
  return "";
}

std::string line_of_output(std::string output) {
  for (char& each : output) {
    if (each == '\n' || each == '\r') each = ' ';
  }
  while (output.ends_with(' ')) output.pop_back();
  return output;
}

// Waits before a retry; returns false when it was cancelled.
bool rest_before_retry(Env& env, std::int64_t milliseconds, const std::atomic<bool>& cancelled) {
  constexpr std::int64_t look_again_ms = 20;
  const std::int64_t end_ns = env.monotonic_ns() + milliseconds * 1'000'000;
  while (!cancelled && env.monotonic_ns() < end_ns)
    env.sleep_us(std::min(milliseconds, look_again_ms) * 1000);
  return !cancelled;
}

}  // namespace

std::string with_printed(const std::string& sentence, const std::string& printed) {
  return sentence + (printed.empty() ? "; it printed nothing" : "; it printed: " + printed);
}

CommandAttempts run_user_command(Env& env, const UserCommand& command,
                                 const std::map<std::string, std::string>& variables,
                                 const std::atomic<bool>& cancelled) {
  const std::int64_t begin_ns = env.monotonic_ns();
  const Command attempt{.line = command.line,
                        .variables = variables,
                        .timeout_ms = command.timeout_ms,
                        .cancelled = &cancelled};
  CommandAttempts done;
  while (true) {
    ++done.attempts;
    const Result<CommandEnd> end = env.run_command(attempt);
    done.duration_ns = env.monotonic_ns() - begin_ns;
    done.outcome = {};
    done.printed.clear();
    if (end.ok() && end->succeeded()) return done;
    const std::string number =
        command.retry_after_ms.empty() ? "" : fmt::format(" (attempt {})", done.attempts);
    done.outcome =
        end.ok() ? fail(ExitCode::checkpoint, "{} {}{}", command.key, sentence_of_end(*end, command), number)
                 : end.error();
    if (end.ok()) done.printed = line_of_output(end->output);
    const auto retries = static_cast<std::size_t>(done.attempts) - 1;
    if (retries >= command.retry_after_ms.size() ||
        !rest_before_retry(env, command.retry_after_ms[retries], cancelled))
      return done;
  }
}

}  // namespace holdfast::run
