#include "runtime/elastic/joint_search.h"

#include <algorithm>
#include <optional>

#include "parallel/comm/agreement.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"

namespace holdfast::elastic {
namespace {

// Searches run.directory, which all ranks share, for the newest whole checkpoint. Rank 0 looks, and asks all ranks
// to verify a checkpoint together, each its own share of the shards: a rank of many would take as many times longer,
// and all others would wait.
class JointSearch {
 public:
  JointSearch(const TrainInputs& inputs, const Waiter& waiter)
      : inputs_(inputs), communicator_(inputs.communicator), waiter_(while_one_reads(waiter)) {}

  // On rank 0. The others learn at its end that there is nothing more to verify.
  Result<OwnStates> lead(const std::string& run_directory) {
    begin_reading();
    Result<OwnStates> states = retry_storage(inputs_.env, [&] {
      return states_of_directory(inputs_.env, run_directory,
                                 [this](Checkpoint& checkpoint) { return verify(checkpoint); });
    });
    reading_.reset();
    if (lost_.has_value()) return *lost_;
    HF_TRY_VOID(outcome_of(ask("")));
    // A start with more hosts may have the rest of a checkpoint.
    if (states.ok() && !states->newest.ok() && states->newest.error().reach == Reach::peers)
      states->newest = with_code(ExitCode::communication, states->newest.error());
    return states;
  }

  // On all other ranks.
  Result<void> follow() {
    while (true) {
      HF_TRY(const std::string directory, ask(""));
      if (directory.empty()) return {};
      const Result<void> agreed = verify_together(directory);
      if (ends_search(agreed)) return agreed;
    }
  }

 private:
  void begin_reading() { reading_.emplace(inputs_.watch, "the checkpoints"); }

  // Returns the directory that rank 0 asks about; empty: none.
  Result<std::string> ask(const std::string& directory) {
    HF_TRY(std::vector<std::string> asked, all_gather_text(communicator_, waiter_, directory));
    renew_limits(inputs_.watch);
    return std::move(asked.front());
  }

  Result<void> verify(Checkpoint& checkpoint) {
    if (lost_.has_value()) return *lost_;
    reading_.reset();
    Result<void> agreed = outcome_of(ask(checkpoint.directory()));
    if (agreed.ok()) agreed = verify_together(checkpoint.directory());
    begin_reading();
    if (ends_search(agreed)) lost_ = agreed.error();
    if (!agreed.ok()) return agreed;
    return checkpoint.check_complete();
  }

  // Returns whether the ranks go on without a peer, or without some that cannot read: there is another search.
  bool ends_search(const Result<void>& agreed) const {
    return communicator_.abandoned() ||
           (!agreed.ok() && (agreed.error().reach == Reach::host || agreed.error().reach == Reach::peers));
  }

  // Verifies this rank's share, and agrees. A shard that a rank finds damaged is so for all. One that some ranks cannot
  // read another one reads: if it can, they are unfit, and else the checkpoint.
  Result<void> verify_together(const std::string& directory) {
    const int rank = communicator_.rank();
    const Result<void> mine = verify_share(directory, rank);
    const bool cannot_read = !mine.ok() && mine.error().reach != Reach::run;
    HF_TRY(const std::vector<std::string> unread,
           all_gather_text(communicator_, waiter_, cannot_read ? "unread" : ""));
    const auto reader = std::ranges::find(unread, "") - unread.begin();
    const bool some_can = reader < std::ssize(unread);
    Result<void> read = cannot_read && some_can ? Result<void>() : mine;
    for (int other = 0; read.ok() && rank == reader && other < communicator_.size(); ++other)
      if (!unread[static_cast<std::size_t>(other)].empty()) read = verify_share(directory, other);
    renew_limits(inputs_.watch);
    Result<void> agreed = agree_on_outcome(communicator_, waiter_, read, inputs_.env.host_name());
    if (agreed.ok())
      agreed = agree_on_fitness(communicator_, waiter_, mine, inputs_.env.host_name(), Examined::own);
    renew_limits(inputs_.watch);
    return agreed;
  }

  Result<void> verify_share(const std::string& directory, int of_rank) {
    const StorageWait storage(inputs_.watch, "the checkpoint");
    HF_TRY(const Manifest manifest,
           retry_storage(inputs_.env, [&] { return read_manifest(inputs_.env, directory); }));
    const int threads = std::max(1, inputs_.env.processor_count() / std::max(1, inputs_.ranks_on_host));
    const auto ranks = static_cast<std::size_t>(communicator_.size());
    for (auto i = static_cast<std::size_t>(of_rank); i < manifest.shards.size(); i += ranks) {
      const auto verify = [&]() -> Result<void> {
        HF_FAILING_FAULT_POINT(inputs_.faults, load_point);
        return verify_shard(inputs_.env, directory, manifest.shards[i], state_of(manifest), manifest.run_id,
                            threads, [&](std::uint64_t bytes) { storage.progress(bytes); });
      };
      HF_TRY_VOID(retry_storage(inputs_.env, verify));
    }
    return {};
  }

  const TrainInputs& inputs_;
  Communicator& communicator_;
  Waiter waiter_;
  std::optional<StorageWait> reading_ = {};
  std::optional<Error> lost_ = {};  // error that ends the search
};

}  // namespace

Result<OwnStates> join_search(const TrainInputs& inputs, const Waiter& waiter,
                              const std::string& run_directory) {
  JointSearch search(inputs, waiter);
  if (inputs.communicator.rank() == 0) return search.lead(run_directory);
  HF_TRY_VOID(search.follow());
  return OwnStates{};
}

}  // namespace holdfast::elastic
