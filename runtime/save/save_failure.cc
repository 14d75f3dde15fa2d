#include "runtime/save/save_failure.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "runtime/os/errno_reason.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"
#include "runtime/save/checkpoint_parts.h"

namespace holdfast::save {
namespace {

bool is_full_for_all(const DiskTier& tier, const Error& error) {
  return is_full_disk(error.reason) && !tier.in_parts();
}

// FitnessProof says what a rank knows of itself after something that failed.
struct FitnessProof {
  bool failed = false;  // in its part of it, for a reason that may be its own
  bool works = false;   // it can do that now

  static void visit_fields(auto& self, auto&& visit) {
    visit("failed", self.failed);
    visit("works", self.works);
  }
  bool is_unfit() const { return failed && !works; }
};

// Writes where the shards of the save are.
Result<void> try_to_write(const StateView& view, const std::string& directory) {
  const StorageWait storage(view.rank.watch, "a checkpoint");
  HF_FAILING_FAULT_POINT(view.rank.faults, write_point);
  return prove_writing(view.rank.env, directory, view.rank.communicator.rank());
}

// Returns the ranks that are unfit; none if it is not proven that all others can write.
std::vector<int> unfit_ranks(const std::vector<FitnessProof>& proofs) {
  std::vector<int> unfit;
  for (std::size_t rank = 0; rank < proofs.size(); ++rank) {
    if (!proofs[rank].failed && !proofs[rank].works) return {};
    if (proofs[rank].is_unfit()) unfit.push_back(static_cast<int>(rank));
  }
  return unfit;
}

}  // namespace

Result<ShardFile> write_shard_repeatedly(Env& env, const DiskTier& tier,
                                         const std::function<Result<ShardFile>()>& write,
                                         const std::function<bool()>& gives_up) {
  bool is_full = false;
  const auto attempt = [&] {
    Result<ShardFile> shard = write();
    is_full = !shard.ok() && is_full_for_all(tier, shard.error());
    return shard;
  };
  return retry_storage(env, attempt, [&] { return is_full || gives_up(); });
}

Result<void> prove_writing(Env& env, const std::string& directory, int rank) {
  HF_TRY_VOID(env.make_directories(directory));
  const std::string path = fmt::format("{}/proof-{:05}", directory, rank);
  HF_TRY_VOID(env.replace_text(path, path));
  return env.remove(path);
}

Result<void> agree_on_written(const StateView& view, const DiskTier& tier, const CheckpointStore& store,
                              std::uint64_t step, const Result<void>& mine) {
  Communicator& communicator = view.rank.communicator;
  const Waiter waiter = patient_waiter(view);
  const std::string host = view.rank.env.host_name();
  const Result<void> outcome = agree_on_outcome(communicator, waiter, mine, host);
  if (outcome.ok() || outcome.error().code == ExitCode::communication || communicator.size() == 1)
    return outcome;
  const FitnessProof proof{
      .failed = !mine.ok() && mine.error().reach != Reach::run && !is_full_for_all(tier, mine.error()),
      .works = try_to_write(view, store.pending_directory(step)).ok()};
  HF_TRY(const std::vector<FitnessProof> proofs, gather(communicator, waiter, proof));
  if (!view.rank.can_spare(unfit_ranks(proofs))) return outcome;
  return agree_on_fitness(communicator, waiter, proof.is_unfit() ? mine : Result<void>(), host,
                          Examined::own);
}

Result<void> agree_on_trial(const RankInputs& inputs, const Waiter& patient, const Result<void>& agreed,
                            const Result<void>& mine, const std::function<Result<void>()>& try_it) {
  Communicator& communicator = inputs.communicator;
  if (agreed.ok() || communicator.abandoned() || agreed.error().reach == Reach::run) return agreed;
  FitnessProof proof{.failed = !mine.ok(), .works = false};
  {
    const StorageWait storage(inputs.watch, "the run directory");
    proof.works = retry_storage(inputs.env, try_it).ok();
  }
  HF_TRY(const std::vector<FitnessProof> proofs, gather(communicator, patient, proof));
  const bool is_proven = std::ranges::any_of(proofs, &FitnessProof::works) &&
                         std::ranges::any_of(proofs, &FitnessProof::is_unfit);
  if (!is_proven) return agreed;
  return agree_on_fitness(communicator, patient, proof.is_unfit() ? mine : Result<void>(),
                          inputs.env.host_name(), Examined::own);
}

bool is_of_unfit_ranks(const Error& error) {
  return error.reach == Reach::host || error.reach == Reach::peers;
}

}  // namespace holdfast::save
