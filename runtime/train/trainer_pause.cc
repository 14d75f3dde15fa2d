// Trainer's part for leaving the steps before the last one: the state is sealed where the resized run, or the next
// start, finds it.
#include <utility>

#include "parallel/comm/agreement.h"
#include "runtime/save/save_failure.h"
#include "runtime/train/trainer.h"

namespace holdfast::train {

// Saves the state and leaves the steps, so that the run can be resized. An evaluation that is due is made up
// for when the run goes on. Nothing is computed again: where there is no RAM tier the disk has the state. The
// replicas on other hosts are waited for, because the next epoch removes older snapshots before it confirms one.
Result<void> Trainer::pause_for_resize(bool to_disk) {
  if (saver_ && saver_->has_ram_tier()) {
    HF_TRY_VOID(seal_in_memory(to_disk));
    HF_TRY_VOID(parts_.survives_host ? saver_->finish_with_replicas() : saver_->finish());
    report_saves();
  } else {
    HF_TRY_VOID(save());
  }
  return leave_steps();
}

// Seals the state where the next start finds it. Returns false where a host is to be left and the state would
// not survive without it; the run goes on, and the next step is another try.
Result<bool> Trainer::end_for_another_start(bool to_disk, int hosts_leaving) {
  if (hosts_leaving == 0) {
    HF_TRY_VOID(pause_for_resize(to_disk));
  } else {
    HF_TRY(const bool sealed, seal_elsewhere(to_disk, hosts_leaving));
    if (!sealed) {
      if (!std::exchange(reported_unsealed_, true))
        parts_.progress.say(
            "the state is not safe without the hosts that are to be left: they are left when it is");
      return false;
    }
    HF_TRY_VOID(leave_steps());
  }
  return true;
}

Result<void> Trainer::seal_in_memory(bool to_disk) {
  HF_TRY_VOID(check_state(/*update_follows=*/false));
  HF_TRY_VOID(saver_->finish_with_replicas());
  HF_TRY(const bool begun, saver_->begin(to_disk));
  if (!begun) HF_TRY_VOID(outcome_of(saver_->begin(/*to_disk=*/true)));
  if (to_disk || !begun) answer_requests();
  return {};
}

// Seals the state so that it survives the loss of the hosts that leave, and returns whether this succeeded.
// Where one host leaves and all of the state has replicas on other hosts, a confirmed snapshot is enough;
// else the state goes to the disk, which is not lost with the hosts unless each host has its own.
Result<bool> Trainer::seal_elsewhere(bool to_disk, int hosts_leaving) {
  const std::uint64_t step = parts_.worker.state().step;
  if (hosts_leaving == 1 && parts_.survives_host && saver_ && saver_->has_replicas()) {
    HF_TRY_VOID(seal_in_memory(to_disk));
    HF_TRY_VOID(saver_->finish_with_replicas());
    report_saves();
    if (saver_->confirmed_step() == step) return true;
  }
  const bool in_parts = parts_.tier.has_value() && parts_.tier->in_parts();
  if (in_parts && (hosts_leaving > 1 || parts_.tier->copies() == nullptr)) return false;
  const Result<void> saved = save();
  if (saved.ok()) return true;
  if (saved.error().code == ExitCode::communication || is_of_unfit_ranks(saved.error())) return saved.error();
  save_failed({.step = step, .outcome = saved});
  return false;
}

// Ends what is still under way in parallel with the steps.
Result<void> Trainer::leave_steps() {
  Worker& worker = parts_.worker;
  HF_TRY_VOID(worker.parameter_gather().finish());
  trace_.finish();
  uploads_.cancel();
  return agree_on_outcome(worker.rank().communicator, worker.rank().waiter, trouble_,
                          worker.rank().env.host_name());
}

}  // namespace holdfast::train
