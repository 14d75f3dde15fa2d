#include "tools/bench_native/timed_steps.h"

#include "parallel/local/local_communicator.h"
#include "runtime/rank/kernel_choice.h"
#include "runtime/run/run_layout.h"
#include "runtime/save/save.h"
#include "runtime/train/step.h"

namespace holdfast::bench {

TimedSteps::TimedSteps(Env& env, BenchRun run, const MeasuredDevice& bench)
    : env_(env),
      run_(std::move(run)),
      bench_(bench),
      timer_(env),
      communicators_(make_local_communicators(1)) {}

Result<void> TimedSteps::prepare() {
  HF_TRY(const KernelRequest kernels, kernel_request(env_, run_.config.kernels));
  HF_TRY(device_, bench_.make(kernels, &timer_));
  HF_TRY(worker_, Worker::create({.rank = {{.env = env_,
                                            .faults = faults_,
                                            .communicator = *communicators_.front(),
                                            .ranks_on_host = 1},
                                           *device_,
                                           run_.config,
                                           mesh_of(run_.config, 1)},
                                  .data = run_.data}));
  HF_TRY_VOID(initialize_weights(worker_->state_view()));
  HF_TRY_VOID(worker_->start_loader());
  return {};
}

Result<void> TimedSteps::warm_up(std::int64_t steps) {
  for (std::int64_t step = 0; step < steps; ++step) HF_TRY_VOID(outcome_of(run_step(*worker_, {})));
  return {};
}

// Each step ends with its own update here; in a run a GPU's update is queued while the next step begins.
Result<void> TimedSteps::measure(std::int64_t steps) {
  for (std::int64_t step = 0; step < steps; ++step) {
    device_->synchronize();
    timer_.clear();
    const std::int64_t begin_ns = env_.monotonic_ns();
    HF_TRY_VOID(outcome_of(run_step(*worker_, {})));
    device_->synchronize();
    seconds_.push_back(static_cast<double>(env_.monotonic_ns() - begin_ns) * 1e-9);
    HF_TRY_VOID(device_->status());
    timer_.fetch_tables(worker_->rank().host_access);
    records_.push_back(timer_.records());
  }
  return {};
}

}  // namespace holdfast::bench
