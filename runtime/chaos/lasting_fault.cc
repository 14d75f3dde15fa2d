#include "runtime/chaos/lasting_fault.h"

#include <fmt/core.h>

#include <algorithm>

namespace holdfast {
namespace {

constexpr std::uint64_t steps_at_end = 2;  // a disk that is full when the last one is saved ends the run
constexpr std::int64_t disk_limit_ms = 5'000;
constexpr std::int64_t host_limit_ms = 60'000;  // too few hosts are left, and the launcher waits for more
constexpr std::int64_t fault_command_limit_ms = 60'000;

bool is_of_host(ChaosFault fault) {
  return fault == ChaosFault::lost_host || fault == ChaosFault::cut_link;
}

}  // namespace

LastingFault::LastingFault(Env& env, const ChaosSetup& setup, const RunGround& ground,
                           const ChaosInjection& injection)
    : env_(&env), setup_(&setup), ground_(ground), injection_(&injection) {
  if (!is_of_host(injection.fault)) return;
  host_ = setup.other_hosts[static_cast<std::size_t>(injection.victim) % setup.other_hosts.size()];
}

std::string LastingFault::what() const {
  if (is_stall(injection_->fault))
    return fmt::format("{} for {:.1f} s", facts_of(injection_->fault).text,
                       static_cast<double>(injection_->pause_us) / 1e6);
  const std::string duration = fmt::format("for {} steps", injection_->lasts);
  if (injection_->fault == ChaosFault::full_disk) return "the disk is full " + duration;
  return fmt::format("host {} is {} {}", host_,
                     injection_->fault == ChaosFault::lost_host ? "lost" : "cut off", duration);
}

void LastingFault::since(std::uint64_t step) {
  const std::uint64_t last = setup_->steps > steps_at_end ? setup_->steps - steps_at_end : 0;
  last_step_ = std::min(step + injection_->lasts, last);
}

Result<void> LastingFault::begin() {
  const bool disk = injection_->fault == ChaosFault::full_disk;
  until_ns_ = env_->monotonic_ns() + (is_stall(injection_->fault) ? injection_->pause_us * 1'000
                                      : disk                      ? disk_limit_ms * 1'000'000
                                                                  : host_limit_ms * 1'000'000);
  if (disk) return ground_.small_disk->fill();
  if (injection_->fault == ChaosFault::stalled_disk) return ground_.stalling_disk->stall();
  if (injection_->fault == ChaosFault::stalled_output) return ground_.output->fill();
  const HostCommands& commands = setup_->host_commands;
  return command(injection_->fault == ChaosFault::lost_host ? commands.lose : commands.cut);
}

Result<void> LastingFault::end() {
  if (injection_->fault == ChaosFault::full_disk) return ground_.small_disk->empty();
  if (injection_->fault == ChaosFault::stalled_disk) return ground_.stalling_disk->resume();
  if (injection_->fault == ChaosFault::stalled_output) return {};  // it is read again when this is over
  const HostCommands& commands = setup_->host_commands;
  return command(injection_->fault == ChaosFault::lost_host ? commands.give_back : commands.mend);
}

bool LastingFault::is_over(std::uint64_t step) const {
  return (!is_stall(injection_->fault) && step >= last_step_) || env_->monotonic_ns() >= until_ns_;
}

Result<void> LastingFault::command(const std::string& words) const {
  constexpr std::string_view mark = "{host}";
  std::string line = words.find(mark) == std::string::npos ? fmt::format("{} {}", words, mark) : words;
  for (std::size_t at = line.find(mark); at != std::string::npos; at = line.find(mark, at + host_.size()))
    line.replace(at, mark.size(), host_);
  HF_TRY(const CommandEnd end, env_->run_command({.line = line, .timeout_ms = fault_command_limit_ms}));
  if (end.succeeded()) return {};
  const char* how = end.how == CommandEnd::How::exited   ? "ended with exit code"
                    : end.how == CommandEnd::How::killed ? "was killed by signal"
                                                         : "took longer than a minute:";
  return fail(ExitCode::config, "chaos: the command \"{}\" {} {}{}{}", line, how, end.code,
              end.output.empty() ? "" : ": ", end.output);
}

}  // namespace holdfast
