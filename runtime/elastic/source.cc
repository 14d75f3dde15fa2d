#include "runtime/elastic/source.h"

#include <algorithm>
#include <utility>

#include "checkpoint/candidates.h"
#include "checkpoint/kept_rollback.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "runtime/elastic/part_start.h"
#include "runtime/elastic/recovery_plan.h"
#include "runtime/os/console.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/disk_tier.h"
#include "runtime/save/save_failure.h"

namespace holdfast::elastic {
namespace {

// Agrees on what rank 0 has read in run.directory: where it cannot, all ranks try.
Result<void> agree_on_read(const TrainInputs& inputs, const Waiter& patient, const Result<void>& read,
                           const std::function<Result<void>()>& try_it) {
  const Result<void> agreed = agree_on_outcome(inputs.communicator, patient, read, inputs.env.host_name());
  return agree_on_trial(inputs, patient, agreed, read, try_it);
}

// Searches run.directory, which all ranks share, for the newest whole checkpoint. Rank 0 looks, and asks all ranks
// to verify a checkpoint together, each its own share of the shards: a rank of many would take as many times longer,
// and all others would wait.
class JointSearch {
 public:
  JointSearch(const TrainInputs& inputs, const Waiter& patient)
      : inputs_(inputs), communicator_(inputs.communicator), waiter_(patient) {}

  // Returns the states of run.directory on rank 0, and nothing on the others. Errors: of reading the directory;
  // Reach::host on a rank that alone cannot read, and Reach::peers on the others.
  Result<OwnStates> run(const std::string& run_directory) {
    Result<OwnStates> states = OwnStates{};
    if (communicator_.rank() == 0) {
      states = lead(run_directory);
    } else {
      follow();
    }
    if (lost_.has_value()) return *lost_;
    const auto looks = [&] {  // and verifies nothing
      return outcome_of(
          states_of_directory(inputs_.env, run_directory, [](Checkpoint&) { return Result<void>(); }));
    };
    HF_TRY_VOID(agree_on_read(inputs_, waiter_, outcome_of(states), looks));
    return states;
  }

 private:
  // Runs on rank 0. The others learn at its end that there is nothing more to verify.
  Result<OwnStates> lead(const std::string& run_directory) {
    begin_reading();
    Result<OwnStates> states = retry_storage(inputs_.env, [&] {
      return states_of_directory(inputs_.env, run_directory,
                                 [this](Checkpoint& checkpoint) { return verify(checkpoint); });
    });
    reading_.reset();
    if (lost_.has_value()) return *lost_;
    if (const Result<std::string> told = ask(""); !told.ok()) lost_ = told.error();
    // A start with more hosts may have the rest of a checkpoint.
    if (states.ok() && !states->newest.ok() && states->newest.error().reach == Reach::peers)
      states->newest = with_code(ExitCode::communication, states->newest.error());
    return states;
  }

  // Runs on all other ranks.
  void follow() {
    while (!lost_.has_value()) {
      const Result<std::string> directory = ask("");
      if (!directory.ok()) lost_ = directory.error();
      if (!directory.ok() || directory->empty()) return;
      const Result<void> agreed = verify_together(*directory);
      if (ends_search(agreed)) lost_ = agreed.error();
    }
  }

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

// A snapshot on the host of a rank: SnapshotIdentity without what all of them have in common.
struct OfferedSnapshot {
  SnapshotStep of = {};
  std::uint32_t rank = 0, ranks = 0;

  static void visit_fields(auto& self, auto&& visit) {
    visit("of", self.of);
    visit("rank", self.rank);
    visit("ranks", self.ranks);
  }
};

std::vector<OfferedSnapshot> offers_of(const std::vector<FoundSnapshot>& found) {
  std::vector<OfferedSnapshot> offers;
  for (const FoundSnapshot& each : found)
    offers.push_back(
        {.of = step_of(each.identity), .rank = each.identity.rank, .ranks = each.identity.ranks});
  return offers;
}

std::vector<SnapshotIdentity> identities_of(const std::vector<OfferedSnapshot>& offers) {
  std::vector<SnapshotIdentity> found;
  for (const OfferedSnapshot& each : offers) {
    found.push_back({.run = {},
                     .host = {},
                     .writer = each.of.writer,
                     .generation = each.of.generation,
                     .step = each.of.step,
                     .rank = each.rank,
                     .ranks = each.ranks});
  }
  return found;
}

// The config that a snapshot was made with, as TOML, and the device with its plan.
struct SnapshotOrigin {
  std::string config = {}, device = {}, device_plan = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("config", self.config);
    visit("device", self.device);
    visit("device_plan", self.device_plan);
  }
};

// Nothing is held where it fails: the next attempt, perhaps of this rank, would wait for that.
Result<void> claim_directory(Env& env, const Config& config, std::unique_ptr<Claim>& claim) {
  HF_TRY(std::unique_ptr<Claim> taken, claim_run_directory(env, {config.run.directory}));
  HF_TRY(const std::string io_note, check_direct_io(env, config.run.directory));
  if (!io_note.empty()) print_message("{}", io_note);
  claim = std::move(taken);
  return {};
}

// Claims the run directory where this rank `claims`; storage may fail for a moment.
Result<void> try_to_claim(const TrainInputs& inputs, const Config& config, bool claims,
                          std::unique_ptr<Claim>& claim) {
  if (!claims) return {};
  const StorageWait storage(inputs.watch, "the lock of the run directory");
  return retry_storage(inputs.env, [&] { return claim_directory(inputs.env, config, claim); });
}

// Refuses a command that would treat a part of a checkpoint as if it were all of it.
Result<void> check_fits_parts(const Config& config) {
  if (config.checkpoint.upload_command.empty()) return {};
  return fail(ExitCode::config,
              "run.directory {} is local to each host, so each has a part of every checkpoint, and "
              "checkpoint.upload_command would upload one part as if it were all: give "
              "checkpoint.upload_shard_command in place of it, which each rank runs for its own shard",
              config.run.directory);
}

// Returns the id that names the run's objects in shared memory, on all ranks; empty where no rank knows one.
Result<std::string> id_of_run(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                              bool holds_claim) {
  Result<RunIdentity> known = RunIdentity{};
  if (holds_claim) {
    const StorageWait storage(inputs.watch, "the run directory");
    known = retry_storage(inputs.env, [&] { return identify_run(inputs.env, {config.run.directory}); });
  }
  HF_TRY_VOID(agree_on_outcome(inputs.communicator, waiter, outcome_of(known), inputs.env.host_name()));
  HF_TRY(const std::vector<std::string> ids, all_gather_text(inputs.communicator, waiter, known->id));
  const auto first = std::ranges::find_if(ids, [](const std::string& id) { return !id.empty(); });
  return first == ids.end() ? std::string() : *first;
}

Result<std::vector<DecidedRollback>> gather_kept(const TrainInputs& inputs, const Waiter& waiter,
                                                 const Digest& run) {
  std::vector<DecidedRollback> mine;
  for (KeptRollback& kept : kept_rollbacks(inputs.env, run)) mine.push_back(std::move(kept.decided));
  HF_TRY(const std::vector<std::vector<DecidedRollback>> all, gather(inputs.communicator, waiter, mine));
  std::vector<DecidedRollback> decided;
  for (const std::vector<DecidedRollback>& each : all)
    decided.insert(decided.end(), each.begin(), each.end());
  return decided;
}

}  // namespace

Result<void> try_to_write_run(const RankInputs& inputs, const std::string& run_directory) {
  HF_TRY_VOID(try_run_lock(inputs.env, {run_directory}));
  return prove_writing(inputs.env, run_directory, inputs.communicator.rank());
}

SourceFinder::SourceFinder(SourceTerms terms) : terms_(std::move(terms)) {
  if (terms_.in_place && terms_.config.run.resume == "never") terms_.config.run.resume = "auto";
}

Waiter SourceFinder::patient() const {
  return terms_.waiter.with_timeout(terms_.waiter.timeout_ms() + verify_timeout_ms);
}

Result<void> SourceFinder::agree(const Result<void>& mine) const {
  return agree_on_outcome(terms_.inputs.communicator, patient(), mine, terms_.inputs.env.host_name());
}

Result<StartPoint> SourceFinder::at_start(std::unique_ptr<Claim>& claim) {
  const Config& config = terms_.config;
  HF_TRY_VOID(agree_on_claim(try_to_claim(terms_.inputs, config, leads(), claim)));
  HF_TRY(terms_.domains, find_storage_domains(terms_.inputs, terms_.waiter, config.run.directory));
  if (terms_.domains.has_value()) HF_TRY_VOID(claim_domain(claim));
  if (claim != nullptr) terms_.check = claim->fence();
  HF_TRY_VOID(record_kept_rollbacks());
  HF_TRY(const OwnStates own, states());
  if (terms_.domains.has_value() && leads()) {
    print_message(
        "run.directory {} is local to each host: each of {} hosts keeps its part of every checkpoint there{}",
        config.run.directory, terms_.domains->count(),
        config.checkpoint.replicas == "off" ? "" : ", and a copy of another's");
  }
  const bool follows_own = config.run.resume == "auto" || config.run.resume == "must";
  // Whole checkpoints that are elsewhere replace no damaged ones of a directory that all hosts share.
  const bool may_come =
      !own.shm_run_id.empty() || (terms_.domains.has_value() && !config.checkpoint.download_command.empty());
  if (!own.newest.ok() && follows_own && may_come) {
    const Error& error = own.newest.error();
    return share(StartPoint{.shm_run_id = own.shm_run_id,
                            .lineage = own.lineage,
                            .unusable = error.message,
                            .unusable_code = error.code,
                            .unusable_reach = error.reach,
                            .writer = leads() ? terms_.inputs.env.random_u64() : 0});
  }
  return choose(own, {});
}

// Claims the directory of each other host by its first rank.
Result<void> SourceFinder::claim_domain(std::unique_ptr<Claim>& claim) {
  HF_TRY_VOID(check_fits_parts(terms_.config));
  const bool claims = terms_.domains->leads(terms_.inputs.communicator.rank()) && !leads();
  return agree_on_claim(try_to_claim(terms_.inputs, terms_.config, claims, claim));
}

// Agrees on the claims that some ranks have made for all. Where one cannot make its own, all try what that takes.
Result<void> SourceFinder::agree_on_claim(const Result<void>& mine) const {
  const TrainInputs& inputs = terms_.inputs;
  return agree_on_trial(inputs, patient(), agree(mine), mine,
                        [&] { return try_to_write_run(inputs, terms_.config.run.directory); });
}

// Returns what the run directory has, or what those of all hosts have together. Each host remembers its name at a start,
// unless the states are of no use.
Result<OwnStates> SourceFinder::states() const {
  const TrainInputs& inputs = terms_.inputs;
  const std::string& directory = terms_.config.run.directory;
  if (!terms_.domains.has_value()) return JointSearch(inputs, patient()).run(directory);
  HF_TRY(OwnStates own, join_parts(inputs, terms_.waiter, directory, *terms_.domains, terms_.check));
  if (terms_.in_place) return own;
  Result<void> named;
  const int rank = inputs.communicator.rank();
  if (own.newest.ok() && terms_.domains->leads(rank))
    named = remember_domain_name(inputs.env, directory, terms_.domains->of(rank));
  HF_TRY_VOID(agree(named));
  return own;
}

// Chooses on rank 0, and sends the choice to all. `known`: what is known of the start already.
Result<StartPoint> SourceFinder::choose(const OwnStates& own, const StartPoint& known) const {
  Env& env = terms_.inputs.env;
  Result<StartPoint> chosen = StartPoint{};
  if (leads()) {
    const StorageWait storage(terms_.inputs.watch, "the checkpoint");
    const auto choose_once = [&] {
      return choose_start(env, terms_.config, own, terms_.in_place,
                          [&](std::uint64_t bytes) { storage.progress(bytes); });
    };
    // A directory's own states have been waited for.
    chosen = own.newest.ok() ? retry_storage(env, choose_once) : choose_once();
    // The disk of a host without ranks may have what is missing: another start asks it, and the place elsewhere.
    if (!chosen.ok() && terms_.in_place && terms_.domains.has_value() && !own.newest.ok())
      chosen = with_code(ExitCode::communication, chosen.error());
    if (chosen.ok()) {
      if (!known.shm_run_id.empty()) chosen->shm_run_id = known.shm_run_id;
      chosen->writer = known.writer != 0 ? known.writer : env.random_u64();
      chosen->passed_over = known.passed_over;
    }
  }
  return share(chosen);
}

// Sends the choice of rank 0, or its error, to all; the argument of other ranks is ignored.
Result<StartPoint> SourceFinder::share(const Result<StartPoint>& chosen) const {
  HF_TRY_VOID(agree(outcome_of(chosen)));
  HF_TRY(std::vector<StartPoint> starts, gather(terms_.inputs.communicator, patient(), *chosen));
  renew_limits(terms_.inputs.watch);
  return std::move(starts.front());
}

// Records the roll-back that a verdict has decided on, and that no rank could record before it ended
// (checkpoint/kept_rollback.h). Gathers what the hosts have kept, and has it in the lineage of each run directory before
// any state is chosen. Where the disk does not take the record this start fails as on any storage, and what was kept
// stays.
Result<void> SourceFinder::record_kept_rollbacks() const {
  const TrainInputs& inputs = terms_.inputs;
  const Config& config = terms_.config;
  const ClaimCheck& claim = terms_.check;
  if (config.run.resume == "never") return {};
  const Waiter patient = terms_.waiter.with_timeout(terms_.waiter.timeout_ms() + storage_patience_ms);
  HF_TRY(const std::string id, id_of_run(inputs, patient, config, claim != nullptr));
  if (id.empty()) return {};
  const Digest run = digest_of(id);
  HF_TRY(const std::vector<DecidedRollback> decided, gather_kept(inputs, terms_.waiter, run));
  if (decided.empty()) return {};
  Result<std::optional<DecidedRollback>> recorded = std::optional<DecidedRollback>();
  if (claim != nullptr) {
    const StorageWait storage(inputs.watch, "the record of a roll-back");
    recorded = retry_storage(
        inputs.env, [&] { return record_unrecorded(inputs.env, config.run.directory, decided, claim); });
  }
  HF_TRY_VOID(agree_on_outcome(inputs.communicator, patient, outcome_of(recorded), inputs.env.host_name()));
  if (recorded->has_value() && inputs.communicator.rank() == 0) {
    const Generation& generation = (*recorded)->generation;
    print_message("the run goes back to step {} or before, as a verdict has decided: {}",
                  generation.parent.step, generation.reason);
  }
  static_cast<void>(remove_kept_rollbacks(inputs.env, run).ok());  // what stays is known to be recorded
  return {};
}

Result<StartPoint> SourceFinder::after_download(const StartPoint& start) {
  HF_TRY(const OwnStates own, states());
  return choose(own, {.writer = start.writer});
}

Result<StartPoint> SourceFinder::at_recovery(const std::string& shm_run_id, bool lost_some) {
  if (lost_some) HF_TRY_VOID(record_kept_rollbacks());
  const Result<StartPoint> newest = leads() ? newest_by_manifest(shm_run_id) : StartPoint{};
  HF_TRY_VOID(agree_on_read(terms_.inputs, patient(), outcome_of(newest), [&] {
    return outcome_of(read_lineage(terms_.inputs.env, terms_.config.run.directory));
  }));
  HF_TRY(StartPoint start, share(newest));
  HF_TRY_VOID(add_snapshot(start));
  if (start.snapshot.has_value()) return start;
  return verified({.shm_run_id = start.shm_run_id, .passed_over = std::move(start.passed_over)});
}

// Returns the checkpoint that is newest by the manifests alone. A snapshot of the same step is as good, and at hand.
Result<StartPoint> SourceFinder::newest_by_manifest(const std::string& shm_run_id) const {
  Env& env = terms_.inputs.env;
  const std::string& directory = terms_.config.run.directory;
  const StorageWait storage(terms_.inputs.watch, "the checkpoints");
  StartPoint start{.shm_run_id = shm_run_id};
  HF_TRY(start.lineage, retry_storage(env, [&] { return read_lineage(env, directory); }));
  if (const Result<std::vector<CheckpointCandidate>> candidates = list_candidates(env, directory);
      candidates.ok()) {
    const auto newest = std::ranges::find_if(
        *candidates, [](const CheckpointCandidate& each) { return each.manifest.ok() && !each.discarded; });
    if (newest != candidates->end()) {
      start.generation = newest->manifest->generation;
      start.step = newest->step - (newest->step > 0 ? 1 : 0);
    }
  }
  const Result<RunIdentity> known = identify_run(env, {directory});
  if (shm_run_id.empty() && known.ok()) start.shm_run_id = known->id;
  start.writer = env.random_u64();
  return start;
}

// Looks for a snapshot again: if the newest checkpoint is damaged, a snapshot between it and the newest whole
// one is newer than the state that is left on the disk.
Result<StartPoint> SourceFinder::verified(const StartPoint& known) const {
  HF_TRY(const OwnStates own, states());
  HF_TRY(StartPoint start, choose(own, known));
  HF_TRY_VOID(add_snapshot(start));
  return start;
}

Result<void> SourceFinder::skip_snapshot(StartPoint& start, const std::string& shm_run_id) {
  start.passed_over.push_back(*std::exchange(start.snapshot, std::nullopt));
  HF_TRY_VOID(add_snapshot(start));
  if (!terms_.in_place || start.snapshot.has_value()) return {};
  HF_TRY(start, verified({.shm_run_id = shm_run_id, .passed_over = start.passed_over}));
  return {};
}

Result<std::vector<std::vector<SnapshotIdentity>>> SourceFinder::snapshots(const Digest& run) const {
  HF_TRY(
      const std::vector<std::vector<OfferedSnapshot>> all,
      gather(terms_.inputs.communicator, terms_.waiter, offers_of(list_snapshots(terms_.inputs.env, run))));
  std::vector<std::vector<SnapshotIdentity>> offers;
  for (const std::vector<OfferedSnapshot>& each : all) offers.push_back(identities_of(each));
  return offers;
}

Result<void> SourceFinder::add_snapshot(StartPoint& start) const {
  if (start.shm_run_id.empty() || terms_.config.run.resume == "never") return {};
  const Digest run = digest_of(start.shm_run_id);
  HF_TRY(const std::vector<std::vector<SnapshotIdentity>> offers, snapshots(run));
  const auto steps = static_cast<std::uint64_t>(terms_.config.training.steps);
  while ((start.snapshot = plan_snapshot(offers, start, steps)).has_value()) {
    HF_TRY(const bool described, describe_snapshot(run, start));
    if (described) break;
    start.passed_over.push_back(*start.snapshot);
  }
  return {};
}

// Takes config and device of the snapshot from the first rank whose host has a sound slot of it, because the
// host of rank 0 may have none. False: no rank has one, and start.notes has the reason.
Result<bool> SourceFinder::describe_snapshot(const Digest& run, StartPoint& start) const {
  const TrainInputs& inputs = terms_.inputs;
  const SnapshotSet set = SnapshotSet::open(inputs.env, run, *start.snapshot);
  const std::string trouble = set.empty() ? set.why_empty(inputs.env, *start.snapshot).message : "";
  HF_TRY(const std::vector<std::string> troubles,
         all_gather_text(inputs.communicator, terms_.waiter, trouble));
  const auto first = std::ranges::find(troubles, "");
  if (first == troubles.end()) {
    start.notes.push_back(troubles.front());
    return false;
  }
  const int reporter = static_cast<int>(first - troubles.begin());
  SnapshotOrigin mine;
  if (reporter == inputs.communicator.rank())
    mine = {.config = set.manifest().config,
            .device = set.manifest().values.at("device"),
            .device_plan = value_of(set.manifest(), "device_plan")};
  HF_TRY(const std::vector<SnapshotOrigin> reported, gather(inputs.communicator, terms_.waiter, mine));
  start.config = reported[static_cast<std::size_t>(reporter)].config;
  start.device = reported[static_cast<std::size_t>(reporter)].device;
  start.device_plan = reported[static_cast<std::size_t>(reporter)].device_plan;
  return true;
}

}  // namespace holdfast::elastic
