#include "runtime/metrics/notifier.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <tuple>
#include <utility>

#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/user_command.h"

namespace holdfast::metrics {
namespace {

constexpr std::int64_t look_ms = 300;

struct Told {
  std::optional<std::uint64_t> bytes = {};
  std::uint64_t left_out = 0;
  std::string run = {};
};

Told read_told(Env& env, const RunPaths& paths) {
  const Json state = Json::parse_any(text_within_or_empty(env, paths.notified(), text_limits::status));
  if (!state.is_object() || !state.contains("bytes")) return {};
  return {.bytes = count_of(state, "bytes"),
          .left_out = count_of(state, "left_out"),
          .run = text_of(state, "run")};
}

}  // namespace

// State is what the thread works with.
class Notifier::State {
 public:
  State(Env& env, Settings settings, Told told)
      : env_(&env),
        settings_(std::move(settings)),
        log_(env, settings_.paths, told.bytes.has_value() ? *told.bytes : log_bytes(env, settings_.paths)),
        mind_(settings_.mind, told.left_out, told.run),
        remembered_(log_.bytes(), told.left_out, told.run),
        changed_(env.make_condition()) {}

  void work();
  // Asks the thread to end. Returns whether it has, in this time.
  bool end(std::optional<News> news, std::int64_t patience_ms) {
    std::unique_lock lock(mutex_);
    ends_ = true;
    end_ms_ = patience_ms;
    end_ = std::move(news);
    changed_->notify();
    return changed_->wait_at_most(lock, patience_ms, [this] { return has_ended_; });
  }
  // Kills the command that runs, but for that of the end.
  bool cancel(std::int64_t patience_ms) {
    cancelled_ = true;
    std::unique_lock lock(mutex_);
    return changed_->wait_at_most(lock, patience_ms, [this] { return has_ended_; });
  }
  // Lets the thread neither tell nor write anything more: its owner does not wait, and another one may go on.
  void leave() { is_left_ = true; }

 private:
  void look();
  void tell(const Notification& notice);
  void remember();

  Env* env_;
  Settings settings_;
  LogFollower log_;
  NotifyMind mind_;
  std::tuple<std::uint64_t, std::uint64_t, std::string> remembered_;  // bytes, left_out and run of the file
  bool fails_ = false;  // the newest command has failed, which has been said
  std::atomic<bool> cancelled_ = false, is_left_ = false;
  const std::atomic<bool> never_ = false;
  std::atomic<std::int64_t> end_ms_ = end_patience_ms;  // for the end itself
  std::mutex mutex_;                                    // guards the next three
  bool ends_ = false, has_ended_ = false;
  std::optional<News> end_ = {};
  std::unique_ptr<Condition> changed_;
};

Notifier::Notifier(Env& env, Settings settings) {
  const Told told = read_told(env, settings.paths);
  state_ = std::make_shared<State>(env, std::move(settings), told);
  Result<std::unique_ptr<Thread>> thread = env.start_thread("notifier", [state = state_] { state->work(); });
  if (thread.ok()) {
    thread_ = std::move(thread).value();
  } else {
    print_message("notify.command is not run: {}", thread.error().message);
  }
}

Notifier::~Notifier() {
  finish({});
}

void Notifier::finish(std::optional<News> end, std::int64_t patience_ms) {
  if (thread_ == nullptr) return;
  constexpr std::int64_t kill_ms = 1'000;
  const bool has_ended = state_->end(std::move(end), patience_ms) || state_->cancel(patience_ms + kill_ms);
  if (has_ended) {
    thread_->wait();
  } else {
    state_->leave();
    thread_->leave();
  }
  thread_.reset();
}

void Notifier::State::work() {
  while (true) {
    bool ends = false;
    {
      std::unique_lock lock(mutex_);
      ends = changed_->wait_at_most(lock, look_ms, [this] { return ends_; });
    }
    if (!ends || end_ms_ > 0) look();
    if (!ends) continue;
    std::optional<News> end;
    {
      const std::lock_guard lock(mutex_);
      end = std::move(end_);
    }
    if (end.has_value()) tell(mind_.tell_end(*std::move(end)));
    remember();
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    changed_->notify();
    return;
  }
}

// Tells what the log has more. A log that cannot be read is read the next time.
void Notifier::State::look() {
  const auto take = [this](const Json& event) {
    const std::optional<Notification> notice = mind_.take(event, env_->monotonic_ns());
    if (notice.has_value()) tell(*notice);
  };
  static_cast<void>(log_.read_new([&](std::string_view lines) { for_each_event(lines, take); }).ok());
  if (const auto beat = mind_.beat(env_->monotonic_ns(), env_->wall_time_us()); beat.has_value()) tell(*beat);
  remember();
}

// Runs the command. When the owner ends, there is time for the end of the run alone.
void Notifier::State::tell(const Notification& notice) {
  const bool is_end = !notice.news.state.empty();
  if (is_left_) return;
  if (cancelled_ && !is_end) return mind_.leave_out(notice);
  const UserCommand command{
      .key = "notify.command",
      .line = settings_.command,
      .timeout_key = "notify.timeout",
      .timeout_ms = is_end ? std::min(settings_.timeout_ms, end_ms_.load()) : settings_.timeout_ms};
  const CommandAttempts done =
      run_user_command(*env_, command, variables_of(notice, mind_.run(), settings_.paths.directory),
                       is_end ? never_ : cancelled_);
  const bool fails = !done.outcome.ok();
  if (fails && cancelled_ && !is_end) mind_.leave_out(notice);
  if (fails && !fails_) {
    print_message("{} (event {}). The run goes on, and the next notice is another try",
                  with_printed(done.outcome.error().message, done.printed), notice.news.kind);
  } else if (!fails && fails_) {
    print_message("notify.command works again");
  }
  fails_ = fails;
}

void Notifier::State::remember() {
  const std::tuple now(log_.bytes(), mind_.left_out(), mind_.run());
  if (is_left_ || std::exchange(remembered_, now) == now) return;
  Json state = Json::object();
  state["bytes"] = log_.bytes();
  state["left_out"] = mind_.left_out();
  state["run"] = mind_.run();
  static_cast<void>(env_->replace_text(settings_.paths.notified(), state.dump_any() + "\n").ok());
}

}  // namespace holdfast::metrics
