#include "watchdog/guard_writer.h"

#include <deque>
#include <mutex>
#include <utility>

#include "runtime/os/thread.h"

namespace holdfast::watchdog {

class GuardWriter::State {
 public:
  explicit State(Env& env) : env_(&env), changed_(env.make_condition()) {}

  static void add(const std::shared_ptr<State>& state, Kind kind, std::function<void()> work) {
    if (state->thread_ == nullptr) {
      Result<std::unique_ptr<Thread>> thread =
          state->env_->start_thread("guard writer", [state] { state->write(); });
      if (!thread.ok()) return work();
      state->thread_ = std::move(thread).value();
    }
    {
      const std::lock_guard guard(state->mutex_);
      (kind == Kind::report ? state->reports_ : state->records_).push_back(std::move(work));
    }
    state->changed_->notify();
  }

  std::size_t left() {
    const std::lock_guard guard(mutex_);
    return count();
  }

  bool wait_until_done(std::int64_t timeout_ms) {
    std::unique_lock guard(mutex_);
    return changed_->wait_at_most(guard, timeout_ms, [this] { return count() == 0; });
  }

  void end() {
    if (thread_ == nullptr) return;
    bool writes = false;
    {
      const std::lock_guard guard(mutex_);
      stops_ = true;
      writes = writes_;
    }
    changed_->notify();
    if (writes) {
      thread_->leave();
    } else {
      thread_->wait();
    }
    thread_.reset();  // it holds this object
  }

 private:
  std::size_t count() const { return reports_.size() + records_.size() + (writes_ ? 1 : 0); }

  void write() {
    std::unique_lock guard(mutex_);
    while (true) {
      changed_->wait(guard, [this] { return stops_ || !reports_.empty() || !records_.empty(); });
      if (stops_) return;
      std::deque<std::function<void()>>& next = reports_.empty() ? records_ : reports_;
      const std::function<void()> work = std::move(next.front());
      next.pop_front();
      writes_ = true;
      guard.unlock();
      work();
      guard.lock();
      writes_ = false;
      changed_->notify();
    }
  }

  Env* env_;
  std::unique_ptr<Thread> thread_;  // null before the first work
  std::mutex mutex_;                // guards what follows
  const std::unique_ptr<Condition> changed_;
  std::deque<std::function<void()>> reports_, records_;  // that have not begun
  bool writes_ = false, stops_ = false;
};

GuardWriter::GuardWriter(Env& env) : state_(std::make_shared<State>(env)) {}

GuardWriter::~GuardWriter() {
  state_->end();
}

void GuardWriter::add(Kind kind, std::function<void()> work) {
  State::add(state_, kind, std::move(work));
}

std::size_t GuardWriter::left() const {
  return state_->left();
}

bool GuardWriter::wait_until_done(std::int64_t timeout_ms) {
  return state_->wait_until_done(timeout_ms);
}

}  // namespace holdfast::watchdog
