#include "runtime/elastic/spare_proof.h"

#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "parallel/comm/agreement.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"
#include "runtime/save/save_failure.h"

namespace holdfast::elastic {
namespace {

// Returns whether a spare can do what active ranks could not.
Result<void> prove_as_spare(const TrainInputs& world, const RunSetup& setup, ExitCode failed) {
  const std::string& directory = setup.config.run.directory;
  switch (failed) {
    case ExitCode::data:
      return setup.data->try_sources(setup.config.model.vocabulary);
    case ExitCode::checkpoint:
      HF_TRY_VOID(outcome_of(read_lineage(world.env, directory)));
      return prove_writing(world.env, directory, world.communicator.rank());
    case ExitCode::config:
      return setup.device->status();
    default:
      return fail(failed, "a spare cannot prove that it can do this");
  }
}

}  // namespace

Error fault_or_unfit(const Group& group, const RunSetup& setup, const Error& fault) {
  const TrainInputs& world = group.world();
  const Waiter patient = group.waiter().with_timeout(group.waiter().timeout_ms() + storage_patience_ms);
  Result<void> mine = fault;
  if (!group.epoch()->is_active()) {
    const StorageWait storage(world.watch, "a proof that a spare is fit");
    mine = retry_storage(world.env, [&] { return prove_as_spare(world, setup, fault.code); });
    if (!mine.ok() && mine.error().reach == Reach::run) mine = with_reach(Reach::host, mine.error());
  }
  const Result<std::vector<std::string>> all =
      all_gather_text(world.communicator, patient, mine.ok() ? world.env.host_id() : std::string());
  if (!all.ok()) return fault;
  std::vector<std::string> fit = *all;
  std::erase(fit, "");
  if (fit.empty() || !assign_ranks(setup.request, fit).ok()) return fault;
  const Result<void> agreed =
      agree_on_fitness(world.communicator, patient, mine, world.env.host_name(), Examined::own);
  return agreed.ok() ? fault : agreed.error();
}

}  // namespace holdfast::elastic
