#include "runtime/run/preemption_notice.h"

#include <algorithm>
#include <utility>

#include "runtime/os/console.h"
#include "runtime/run/requests.h"

namespace holdfast::run {
namespace {

constexpr std::int64_t notice_look_ms = 50, ask_again_ms = 1'000;
constexpr std::int64_t notice_command_limit_ms = 10'000;

}  // namespace

PreemptionNotice::PreemptionNotice(Env& env, RunPaths paths, Settings settings)
    : env_(&env),
      paths_(std::move(paths)),
      settings_(std::move(settings)),
      has_launcher_(settings_.has_launcher) {
  const ElasticConfig& config = settings_.config;
  settings_.looks = settings_.looks && !(config.notice_file.empty() && config.notice_command.empty());
  if (settings_.looks) begin();
}

PreemptionNotice::~PreemptionNotice() {
  ended_ = true;
  thread_.reset();
}

void PreemptionNotice::launcher_does_not_see() {
  has_launcher_ = false;
  if (signalled_) stops_ = true;
}

// Without a thread nobody asks the launcher, so a notice stops the run.
void PreemptionNotice::begin() {
  if (thread_ != nullptr) return;
  Result<std::unique_ptr<Thread>> thread = env_->start_thread("preemption", [this] { work(); });
  if (thread.ok()) {
    thread_ = std::move(thread).value();
    return;
  }
  if (signalled_) stops_ = true;
  if (std::exchange(refused_, true)) return;
  print_message("host {}: whether it is about to be taken away is not looked at: {}", env_->host_name(),
                thread.error().message);
}

void PreemptionNotice::signalled() {
  signalled_ = true;
  if (!has_launcher_) stops_ = true;
  begin();
}

bool PreemptionNotice::rest(std::int64_t milliseconds) const {
  const std::int64_t until_ns = env_->monotonic_ns() + milliseconds * 1'000'000;
  while (!ended_ && !signalled_ && env_->monotonic_ns() < until_ns) env_->sleep_us(notice_look_ms * 1000);
  return !ended_;
}

bool PreemptionNotice::is_given() {
  if (signalled_) return true;
  const ElasticConfig& config = settings_.config;
  if (!config.notice_file.empty()) {
    const Result<FileStatus> file = env_->status(config.notice_file);
    if (file.ok() && file->exists) return true;
  }
  if (config.notice_command.empty()) return false;
  const Result<CommandEnd> end = env_->run_command(
      {.line = config.notice_command, .timeout_ms = notice_command_limit_ms, .cancelled = &ended_});
  return end.ok() && end->succeeded();
}

// True: it knows, or is about to leave the host already. What a person asked for may be refused; this may
// not.
bool PreemptionNotice::ask_launcher() {
  const std::string host = env_->host_name();
  for (const DrainRequest& known : read_drain_requests(*env_, paths_)) {
    const bool is_left =
        known.state == DrainRequest::State::begun || known.state == DrainRequest::State::drained;
    if (known.host == host && is_left) return true;
  }
  return write_drain_request(*env_, paths_, {.host = host, .state = DrainRequest::State::notice}).ok();
}

void PreemptionNotice::work() {
  while (!is_given()) {
    if (!rest(settings_.config.notice_every_ms)) return;
  }
  print_message("host {} is about to be taken away: the run {}", env_->host_name(),
                has_launcher_ ? "leaves it" : "saves and stops");
  while (!ended_ && has_launcher_ && !ask_launcher()) env_->sleep_us(ask_again_ms * 1000);
  if (!has_launcher_) stops_ = true;
}

}  // namespace holdfast::run
