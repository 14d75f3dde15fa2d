#include "tools/chaos/lasting_fault.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "runtime/core/check.h"
#include "runtime/core/text.h"

namespace holdfast::chaos {
namespace {

constexpr std::uint64_t steps_at_end = 2;  // a disk that is full when the last one is saved ends the run
constexpr std::int64_t disk_limit_ms = 5'000;
constexpr std::int64_t host_limit_ms = 60'000;  // too few hosts are left, and the launcher waits for more
constexpr std::int64_t fault_command_limit_ms = 60'000;

// Name of a host, for its mark in a command.
struct MarkedName {
  std::string_view mark;
  std::string name;
};

// Returns the command with names, each as one word of a shell, in the places of their marks, or after it where it has
// none. A name may look like a mark itself.
std::string with_names(std::string_view words, std::span<const MarkedName> names) {
  std::string marked(words), line;
  for (const MarkedName& each : names)
    if (words.find(each.mark) == std::string_view::npos) marked += fmt::format(" {}", each.mark);
  for (std::size_t at = 0; at < marked.size();) {
    const auto here = std::ranges::find_if(
        names, [&](const MarkedName& each) { return marked.compare(at, each.mark.size(), each.mark) == 0; });
    line += here == names.end() ? std::string(1, marked[at]) : shell_word(here->name);
    at += here == names.end() ? 1 : here->mark.size();
  }
  return line;
}

}  // namespace

LastingFault::LastingFault(Env& env, const ChaosSetup& setup, const RunGround& ground,
                           const ChaosInjection& injection)
    : env_(&env),
      setup_(&setup),
      ground_(ground),
      injection_(&injection),
      of_host_(host_fault_of(injection.fault)) {
  if (of_host_ == nullptr) return;
  host_ = setup.other_hosts[static_cast<std::size_t>(injection.victim) % setup.other_hosts.size()];
  if (!of_host_->of_pair) return;
  std::vector<std::string> peers;
  for (const LaunchHost& host : setup.hosts)
    if (host.name != host_) peers.push_back(host.name);
  HF_CHECK(!peers.empty());
  peer_ = peers[static_cast<std::size_t>(injection.other) % peers.size()];
}

std::string LastingFault::what() const {
  std::string what(is_stall(injection_->fault) ? facts_of(injection_->fault).text : "the disk is full");
  if (injection_->fault == ChaosFault::slow_storage) what = what_is_slow(*injection_);
  if (of_host_ != nullptr) what = fmt::format("host {} {}", host_, of_host_->text);
  if (!peer_.empty()) what += " " + peer_;
  if (is_timed(injection_->fault))
    return fmt::format("{} for {:.1f} s", what, static_cast<double>(injection_->pause_us) / 1e6);
  return injection_->lasts == 0 ? what : fmt::format("{} for {} steps", what, injection_->lasts);
}

void LastingFault::since(std::uint64_t step) {
  const std::uint64_t last = setup_->steps > steps_at_end ? setup_->steps - steps_at_end : 0;
  last_step_ = std::min(step + injection_->lasts, last);
}

Result<void> LastingFault::begin() {
  const bool disk = injection_->fault == ChaosFault::full_disk;
  until_ns_ = env_->monotonic_ns() + (is_timed(injection_->fault) ? injection_->pause_us * 1'000
                                      : disk                      ? disk_limit_ms * 1'000'000
                                                                  : host_limit_ms * 1'000'000);
  if (disk) return ground_.small_disk->fill();
  if (injection_->fault == ChaosFault::stalled_disk) return ground_.stalling_disk->stall();
  if (injection_->fault == ChaosFault::slow_storage) {
    ground_.slow_storage->slow_down(injection_->of_data, injection_->call_ms);
    return {};
  }
  if (injection_->fault == ChaosFault::stalled_output) return ground_.output->fill();
  return command(of_host_->begin);
}

Result<void> LastingFault::end() {
  if (injection_->fault == ChaosFault::full_disk) return ground_.small_disk->empty();
  if (injection_->fault == ChaosFault::stalled_disk) return ground_.stalling_disk->resume();
  if (injection_->fault == ChaosFault::slow_storage) {
    ground_.slow_storage->resume();
    return {};
  }
  if (injection_->fault == ChaosFault::stalled_output) return {};  // it is read again when this is over
  return of_host_->end.empty() ? Result<void>() : command(of_host_->end);
}

bool LastingFault::is_over(std::uint64_t step) const {
  return (!is_timed(injection_->fault) && step >= last_step_) || env_->monotonic_ns() >= until_ns_;
}

Result<void> LastingFault::command(std::string_view option) const {
  const auto reported = setup_->host_commands.find(option);
  HF_CHECK(reported != setup_->host_commands.end());
  const std::array names = {MarkedName{"{host}", host_}, MarkedName{"{peer}", peer_}};
  const std::string line = with_names(reported->second, std::span(names).first(peer_.empty() ? 1 : 2));
  HF_TRY(const CommandEnd end, env_->run_command({.line = line, .timeout_ms = fault_command_limit_ms}));
  if (end.succeeded()) return {};
  const char* how = end.how == CommandEnd::How::exited   ? "ended with exit code"
                    : end.how == CommandEnd::How::killed ? "was killed by signal"
                                                         : "took longer than a minute:";
  return fail(ExitCode::config, "chaos: the command \"{}\" {} {}{}{}", line, how, end.code,
              end.output.empty() ? "" : ": ", end.output);
}

}  // namespace holdfast::chaos
