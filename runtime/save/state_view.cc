#include "runtime/save/state_view.h"

#include "parallel/comm/device_wait.h"
#include "runtime/rank/device_loss.h"

namespace holdfast::save {

Result<void> StateView::publish_parameters(bool has_digests) const {
  if (has_digests) {
    optimizer.launch_copies(rank.device);
  } else {
    optimizer.launch_publish(rank.device);
  }
  wait_for_device(rank.device, rank.communicator);
  HF_TRY_VOID(parameter_gather.begin(ParameterGather::Which::all));
  return parameter_gather.finish();
}

Result<void> StateView::device_outcome() const {
  Result<void> outcome = rank.device.status();
  if (rank.device.lost()) {
    end_without_device({rank.env, rank.communicator, rank.config.run.directory, state.step}, outcome.error());
  }
  return outcome;
}

}  // namespace holdfast::save
