#include "runtime/launch/stop_request.h"

#include <algorithm>
#include <csignal>

namespace holdfast::launch {
namespace {

constexpr std::int64_t one_request_ns = 1'000'000'000;

// Returns the part of the notice that is reserved for killing all processes.
std::int64_t time_to_kill_ms(std::int64_t notice_ms) {
  return std::min<std::int64_t>(2'000, notice_ms / 5);
}

}  // namespace

Result<std::unique_ptr<SignalWatcher>> StopRequest::watch() {
  return SignalWatcher::watch({SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2});
}

void StopRequest::poll() {
  while (const int signal = signals_->poll()) {
    if (signal == SIGUSR1) {
      if (save_) save_();
      continue;
    }
    const bool is_second = requested() && env_->monotonic_ns() - requested_ns_ > one_request_ns;
    if (is_second && (signal == SIGTERM || signal == SIGINT)) said_twice_ = true;
    request();
  }
}

void StopRequest::request() {
  if (!requested()) requested_ns_ = env_->monotonic_ns();
}

bool StopRequest::is_over() const {
  return requested() && left_ms() == 0;
}

std::int64_t StopRequest::left_ms() const {
  const std::int64_t patience_ms = notice_ms_ - time_to_kill_ms(notice_ms_);
  const std::int64_t waited_ms = (env_->monotonic_ns() - requested_ns_) / 1'000'000;
  return said_twice_ ? 0 : std::max<std::int64_t>(0, patience_ms - waited_ms);
}

std::int64_t StopRequest::left_to_end_ms() const {
  const std::int64_t waited_ms = (env_->monotonic_ns() - requested_ns_) / 1'000'000;
  return std::max<std::int64_t>(0, notice_ms_ - waited_ms);
}

}  // namespace holdfast::launch
