#include "runtime/bench/timed_steps.h"

#include "parallel/local/local_communicator.h"
#include "runtime/train/save.h"
#include "runtime/train/step.h"

namespace holdfast {

TimedSteps::TimedSteps(Env& env, BenchRun run)
    : env_(env), run_(std::move(run)), timer_(env), communicators_(make_local_communicators(1)) {}

Result<void> TimedSteps::prepare() {
  CpuDeviceOptions options{.threads = threads_of(env_, run_.config)};
  timer_.attach(options);
  device_ = make_cpu_device(options);
  HF_TRY(worker_, Worker::create({.env = env_,
                                  .faults = faults_,
                                  .communicator = *communicators_.front(),
                                  .device = *device_,
                                  .config = run_.config,
                                  .data = run_.data,
                                  .ranks_on_host = 1}));
  HF_TRY_VOID(initialize_weights(*worker_));
  worker_->start_loader();
  return {};
}

Result<void> TimedSteps::warm_up(std::int64_t steps) {
  for (std::int64_t step = 0; step < steps; ++step) HF_TRY_VOID(outcome_of(run_step(*worker_, {})));
  return {};
}

Result<void> TimedSteps::measure(std::int64_t steps) {
  for (std::int64_t step = 0; step < steps; ++step) {
    timer_.clear();
    const std::int64_t begin_ns = env_.monotonic_ns();
    HF_TRY_VOID(outcome_of(run_step(*worker_, {})));
    seconds_.push_back(static_cast<double>(env_.monotonic_ns() - begin_ns) * 1e-9);
    records_.push_back(timer_.records());
  }
  return {};
}

}  // namespace holdfast
