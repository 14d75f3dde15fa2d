#include "runtime/elastic/spare_proof.h"

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "parallel/comm/agreement.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"
#include "runtime/save/save_failure.h"

namespace holdfast::elastic {
namespace {

// Returns whether this rank can do what active ranks could not.
Result<void> prove(const TrainInputs& world, const RunSetup& setup, ExitCode failed) {
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
      return fail(failed, "no rank can prove that it can do this");
  }
}

}  // namespace

Error fault_or_unfit(const Group& group, const RunSetup& setup, const Error& fault) {
  const TrainInputs& world = group.world();
  const Waiter patient = group.waiter().with_timeout(group.waiter().timeout_ms() + storage_patience_ms);
  Result<void> mine;
  {
    const StorageWait storage(world.watch, "a proof that a rank is fit");
    mine = retry_storage(world.env, [&] { return prove(world, setup, fault.code); });
  }
  if (!mine.ok() && group.epoch()->is_active()) mine = fault;
  if (!mine.ok() && mine.error().reach == Reach::run) mine = with_reach(Reach::host, mine.error());
  const Result<std::vector<std::string>> all =
      all_gather_text(world.communicator, patient, mine.ok() ? world.env.host_id() : std::string());
  if (!all.ok()) return fault;
  // It was the fault of one, in what it did for all, or it is over.
  const auto is_fit = [&](int rank) { return !(*all)[static_cast<std::size_t>(rank)].empty(); };
  if (std::ranges::any_of(group.assignment().active_ranks, is_fit)) return fault;
  std::vector<std::string> fit = *all;
  std::erase(fit, "");
  if (fit.empty() || !assign_ranks(setup.request, fit).ok()) return fault;
  const Result<void> agreed =
      agree_on_fitness(world.communicator, patient, mine, world.env.host_name(), Examined::own);
  return agreed.ok() ? fault : agreed.error();
}

}  // namespace holdfast::elastic
