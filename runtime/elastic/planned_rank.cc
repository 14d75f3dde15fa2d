#include "runtime/elastic/planned_rank.h"

#include "kernels/visit_op.h"
#include "runtime/train/worker.h"

namespace holdfast::elastic {

void PlannedDevice::begin_planning() {
  planning_ = true;
  if (options_.kernels != nullptr) options_.kernels->begin_planning();
}

Result<void> PlannedDevice::end_planning() {
  planning_ = false;
  return options_.kernels == nullptr ? Result<void>{} : options_.kernels->end_planning();
}

std::uint64_t PlannedDevice::workspace_bytes() const {
  return options_.kernels == nullptr ? 0 : options_.kernels->workspace_bytes();
}

const KernelTable& PlannedDevice::kernels() const {
  return no_kernels_;
}

void PlannedDevice::submit(OpId id, const void* arguments, std::size_t) {
  ++launched_;
  if (!planning_) {
    if (observer_) observer_(id, arguments);
  } else if (options_.kernels != nullptr) {
    options_.kernels->scope() = scope();  // by which it chooses them
    visit_op(id, arguments, [this](const auto& op) { options_.kernels->launch(op); });
  }
}

PlannedWorker::PlannedWorker(int rank, int ranks, const PlannedDeviceOptions& device)
    : peers_(rank, ranks), device_(device) {}
PlannedWorker::~PlannedWorker() = default;

Result<std::unique_ptr<PlannedWorker>> PlannedWorker::make(Env& env, const Config& config, const Mesh& mesh,
                                                           int rank, const PlannedWorkerOptions& options) {
  std::unique_ptr<PlannedWorker> planned(new PlannedWorker(rank, mesh.shape().ranks(), options.device));
  HF_TRY(planned->worker_,
         Worker::plan({.rank = {{.env = env, .faults = planned->faults_, .communicator = planned->peers_},
                                planned->device_,
                                config,
                                mesh},
                       .buddies = options.buddies,
                       .data = nullptr},
                      options.with_nccl));
  return planned;
}

Result<void> PlannedWorker::run_step(PlannedDevice::Observer observer) {
  device_.observe(std::move(observer));
  const auto launch = [this]() -> Result<void> {
    LaneOutcome lanes;
    worker_->reduction().begin_step();
    HF_TRY_VOID(worker_->lane_runner().run(lanes));
    worker_->reduction().finish_step();
    worker_->optimizer().launch_update(device_, {});
    HF_TRY_VOID(worker_->parameter_gather().begin(ParameterGather::Which::trained));
    return worker_->parameter_gather().finish();
  };
  const Result<void> launched = launch();
  device_.observe({});
  return launched;
}

}  // namespace holdfast::elastic
