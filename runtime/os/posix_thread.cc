#include "runtime/os/posix_thread.h"

#include <fmt/core.h>
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <system_error>
#include <thread>

#include "runtime/os/errno_reason.h"

namespace holdfast::os {
namespace {

class PosixThread final : public Thread {
 public:
  PosixThread(const std::string& name, std::function<void()> work)
      : thread_([name, work = std::move(work)] {
          pthread_setname_np(pthread_self(), name.c_str());
          work();
        }) {}
  ~PosixThread() override { wait(); }
  void wait() override {
    if (thread_.joinable()) thread_.join();
  }
  void leave() override { thread_.detach(); }

 private:
  std::thread thread_;
};

class PosixCondition final : public Condition {
 public:
  void notify() override { changed_.notify_all(); }
  void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done) override {
    changed_.wait(lock, done);
  }
  bool wait_at_most(std::unique_lock<std::mutex>& lock, std::int64_t timeout_ms,
                    const std::function<bool()>& done) override {
    return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), done);
  }

 private:
  std::condition_variable changed_;
};

}  // namespace

Result<std::unique_ptr<Thread>> start_posix_thread(const std::string& name, std::function<void()> work) {
  HF_CHECK(name.size() <= Thread::name_bytes_max, "{}", name);
  try {
    return std::unique_ptr<Thread>(std::make_unique<PosixThread>(name, std::move(work)));
  } catch (const std::system_error& error) {
    Error refused =
        fail(ExitCode::does_not_fit,
             "the system refuses the thread \"{}\": {}; raise the limit of processes and threads (ulimit -u, "
             "or pids.max of the control group)",
             name, error.code().message());
    refused.reason = error.code().value();
    return with_reach(reach_of_reason(refused.reason), std::move(refused));
  }
}

std::unique_ptr<Condition> make_posix_condition() {
  return std::make_unique<PosixCondition>();
}

}  // namespace holdfast::os
