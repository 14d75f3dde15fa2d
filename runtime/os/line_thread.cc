#include "runtime/os/line_thread.h"

#include <fmt/core.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/units.h"
#include "runtime/os/console.h"
#include "runtime/os/thread.h"

namespace holdfast::os {

namespace {

constexpr std::int64_t reported_after_ns = 10'000'000'000;

}  // namespace

class LineThread::State {
 public:
  State(Env& env, std::unique_ptr<LineSink> sink, std::string path, Memory memory)
      : env_(&env),
        sink_(std::move(sink)),
        path_(std::move(path)),
        memory_(memory),
        changed_(env.make_condition()) {
    constexpr std::size_t usual_bytes = 64 << 10;
    coming_.lines.reserve(usual_bytes);
    taken_.lines.reserve(usual_bytes);
  }

  static void start(const std::shared_ptr<State>& state) {
    Result<std::unique_ptr<Thread>> thread = state->env_->start_thread("lines", [state] { state->work(); });
    state->refused_ = outcome_of(thread);
    if (thread.ok()) state->thread_ = std::move(thread).value();
  }

  Result<void> append(std::string_view line) {
    HF_TRY_VOID(refused_);
    bool pauses_for_resize = false;
    {
      const std::lock_guard guard(mutex_);
      HF_TRY_VOID(trouble_);
      if (coming_.lines.size() + line.size() >= memory_.bytes) HF_TRY_VOID(make_room(line.size()));
      coming_.lines += line;
      coming_.lines += '\n';
      ++coming_.count;
      const bool late = !path_.empty() && busy_ && env_->monotonic_ns() - moved_ns_ > reported_after_ns;
      pauses_for_resize = late && !std::exchange(reported_, true);
    }
    changed_->notify();
    if (pauses_for_resize) {
      print_message(
          "{} does not respond, without an error. The run goes on: lines wait in memory, up to {} of them",
          path_, format_bytes(memory_.bytes));
    }
    return {};
  }

  Result<void> insist(std::string_view line) {
    HF_TRY_VOID(refused_);
    std::unique_lock guard(mutex_);
    coming_.insists.emplace(line);
    if (const auto outcome = wait_for_outcome(guard, patience_ms); outcome.has_value()) return *outcome;
    if (coming_.insists.has_value()) {  // later lines come after it
      coming_.lines += *std::exchange(coming_.insists, std::nullopt) + '\n';
      ++coming_.count;
    }
    return {};
  }

  Result<void> flush(std::int64_t limit_ms) {
    HF_TRY_VOID(refused_);
    std::unique_lock guard(mutex_);
    if (const Result<void> trouble = std::exchange(trouble_, {}); !trouble.ok()) return trouble;
    coming_.flushes = true;
    if (const auto outcome = wait_for_outcome(guard, limit_ms); outcome.has_value()) return *outcome;
    const std::uint64_t left = coming_.count + in_hand_;
    return with_reach(Reach::minute,
                      fail(ExitCode::checkpoint, "{}: {} for a disk that does not respond, for {:.1f} s now",
                           path_, left == 1 ? "1 line of it waits" : fmt::format("{} lines of it wait", left),
                           static_cast<double>(limit_ms) / 1e3));
  }

  bool wait_until_written(std::int64_t limit_ms) {
    std::unique_lock guard(mutex_);
    if (busy_ && env_->monotonic_ns() - moved_ns_ > limit_ms * 1'000'000) return false;
    const auto written = [this] { return coming_.is_empty() && !busy_; };
    // A busy machine may not run the thread for a while, which says nothing about the sink.
    if (!changed_->wait_at_most(guard, short_patience_ms, [&] { return busy_ || written(); })) return false;
    return changed_->wait_at_most(guard, limit_ms, written);
  }

  void others_have_written() {
    const std::lock_guard guard(mutex_);
    coming_.behind_others = true;
  }

  void post(std::function<void(LineSink&)> work) {
    {
      const std::lock_guard guard(mutex_);
      coming_.works.push_back({.at = coming_.lines.size(), .run = std::move(work)});
    }
    changed_->notify();
  }

  void end() {
    if (thread_ == nullptr) return;
    bool idle = false;
    {
      std::unique_lock guard(mutex_);
      stopping_ = true;
      changed_->notify();
      idle = wait_while_it_moves(guard, short_patience_ms, [this] { return ended_; });
    }
    if (idle) {
      thread_->wait();
    } else {
      thread_->leave();
    }
  }

 private:
  struct Work {
    std::size_t at = 0;  // bytes of the lines before it
    std::function<void(LineSink&)> run;
  };
  // Work that the thread takes at once, in the order in which it does it.
  struct Batch {
    bool behind_others = false;
    std::uint64_t lost = 0;  // lines before these
    std::string lines = {};  // each with its newline
    std::uint64_t count = 0;
    std::vector<Work> works = {};  // between the lines
    std::optional<std::string> insists = {};
    bool flushes = false;
    std::uint64_t ticket = 0;  // of the call that waits for the outcome

    bool is_empty() const {
      return lines.empty() && lost == 0 && works.empty() && !insists.has_value() && !flushes;
    }
    void clear() {  // and keep the memory for lines
      lines.clear();
      works.clear();
      insists.reset();
      behind_others = flushes = false;
      lost = count = 0;
    }
  };

  // Drops a few more than necessary, so that it is not done for every line.
  Result<void> make_room(std::size_t bytes) {
    if (!memory_.drops_oldest) {
      return with_reach(Reach::minute,
                        fail(ExitCode::checkpoint,
                             "memory is full with {} lines that wait for a disk that does not respond",
                             coming_.count + in_hand_));
    }
    std::string& lines = coming_.lines;
    const std::size_t least = std::min<std::size_t>(lines.size(), bytes + memory_.bytes / 8);
    const std::size_t end = least == 0 ? 0 : lines.find('\n', least - 1) + 1;
    const auto gone = static_cast<std::uint64_t>(
        std::count(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    lines.erase(0, end);
    for (Work& work : coming_.works) work.at -= std::min(end, work.at);
    coming_.count -= gone;
    coming_.lost += gone;
    return {};
  }

  // Returns none when the time limit has passed without any progress.
  std::optional<Result<void>> wait_for_outcome(std::unique_lock<std::mutex>& guard, std::int64_t limit_ms) {
    outcome_.reset();
    coming_.ticket = ++tickets_;
    changed_->notify();
    if (!wait_while_it_moves(guard, limit_ms, [this] { return outcome_.has_value(); })) return std::nullopt;
    return std::exchange(outcome_, std::nullopt);
  }

  template <typename Outcome>
  bool wait_while_it_moves(std::unique_lock<std::mutex>& guard, std::int64_t limit_ms, Outcome there) {
    while (!there()) {
      const std::uint64_t before = moved_;
      const auto moved = [&] { return there() || moved_ != before; };
      if (!changed_->wait_at_most(guard, limit_ms, moved)) return false;
    }
    return true;
  }

  void work() {
    std::unique_lock guard(mutex_);
    while (true) {
      changed_->wait(guard, [this] { return stopping_ || !coming_.is_empty(); });
      if (coming_.is_empty()) break;
      std::swap(coming_, taken_);
      in_hand_ = taken_.count;
      busy_ = true;
      moved_ns_ = env_->monotonic_ns();
      changed_->notify();
      guard.unlock();
      write_lines();
      std::optional<Result<void>> outcome;
      if (taken_.insists.has_value()) outcome = sink_->insist(*taken_.insists);
      if (taken_.flushes) outcome = sink_->flush();
      const std::uint64_t ticket = taken_.ticket;
      taken_.clear();
      guard.lock();
      const bool moves_again = std::exchange(reported_, false);
      busy_ = false;
      if (moves_again) {
        guard.unlock();
        print_message("{} is written again", path_);
        guard.lock();
      }
      if (outcome.has_value() && ticket == tickets_) outcome_ = std::move(outcome);
      changed_->notify();
    }
    guard.unlock();
    sink_.reset();  // one more try
    guard.lock();
    ended_ = true;
    changed_->notify();
  }

  void write_lines() {
    if (taken_.behind_others) sink_->others_have_written();
    if (taken_.lost > 0) sink_->lost(taken_.lost);
    auto next = taken_.works.begin();
    const auto work = [&](std::size_t bytes_left) {
      for (; next != taken_.works.end() && taken_.lines.size() - bytes_left >= next->at; ++next)
        next->run(*sink_);
    };
    for (std::string_view rest = taken_.lines; !rest.empty();) {
      work(rest.size());
      const std::size_t end = rest.find('\n');
      Result<void> written = sink_->append(rest.substr(0, end));
      rest.remove_prefix(end + 1);
      const std::lock_guard guard(mutex_);
      ++moved_, --in_hand_;
      moved_ns_ = env_->monotonic_ns();
      if (!written.ok() && trouble_.ok()) trouble_ = std::move(written);
    }
    work(0);
  }

  Env* env_;
  std::unique_ptr<LineSink> sink_;
  const std::string path_;
  const Memory memory_;
  Result<void> refused_;            // error: there is no thread
  std::unique_ptr<Thread> thread_;  // null only then
  std::mutex mutex_;
  const std::unique_ptr<Condition> changed_;
  Batch coming_;
  Batch taken_;                // of the thread
  std::uint64_t in_hand_ = 0;  // lines of it that are not written
  std::uint64_t moved_ = 0;
  std::int64_t moved_ns_ = 0;  // when, of a thread that is busy
  bool busy_ = false, reported_ = false;
  std::uint64_t tickets_ = 0;
  std::optional<Result<void>> outcome_;  // of the newest insist() or flush()
  Result<void> trouble_;                 // the sink's first error that was not reported yet
  bool stopping_ = false, ended_ = false;
};

LineThread::LineThread(Env& env, std::unique_ptr<LineSink> sink, std::string path, Memory memory)
    : state_(std::make_shared<State>(env, std::move(sink), std::move(path), memory)) {
  State::start(state_);
}

LineThread::~LineThread() {
  state_->end();
}

Result<void> LineThread::append(std::string_view line) {
  return state_->append(line);
}
Result<void> LineThread::insist(std::string_view line) {
  return state_->insist(line);
}
Result<void> LineThread::flush(std::int64_t limit_ms) {
  return state_->flush(limit_ms);
}
bool LineThread::wait_until_written(std::int64_t limit_ms) {
  return state_->wait_until_written(limit_ms);
}
void LineThread::others_have_written() {
  state_->others_have_written();
}
void LineThread::post(std::function<void(LineSink&)> work) {
  state_->post(std::move(work));
}

}  // namespace holdfast::os
