// SourceFinder finds the state that a run goes on from: at a start, and after a death. All ranks that look together call
// its functions together, and all get the same answer, or the same error. It gathers what exists (checkpoints in
// run.directory, or parts of them in those of all hosts, and the RAM snapshots of all hosts); rank 0 chooses
// (choose_start(), resume.h), and plan_snapshot() (recovery_plan.h) looks for a newer snapshot. The caller loads what was
// found, and asks for the next one where that is damaged.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/ram_tier.h"
#include "parallel/comm/collectives.h"
#include "runtime/config/config.h"
#include "runtime/elastic/resume.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/run/claim.h"
#include "runtime/save/storage_domains.h"

namespace holdfast::elastic {

struct SourceTerms {
  const TrainInputs&
      inputs;  // of the ranks that look: all of them, because any host may hold parts of a snapshot
  Waiter waiter;
  Config config;
  bool in_place = false;  // the run has not ended
  std::optional<StorageDomains> domains =
      {};                 // if run.directory is local to each host; at_start() finds them
  ClaimCheck check = {};  // checks this rank's claim
};

// Tries what the claim of a run directory takes of this host: its lock, and writing beside it.
Result<void> try_to_write_run(const RankInputs& inputs, const std::string& run_directory);

class SourceFinder {
 public:
  // A recovery in place of a run that was started afresh continues from what the run has saved since.
  explicit SourceFinder(SourceTerms terms);
  const SourceTerms& terms() const { return terms_; }

  // Claims the run directory on rank 0, which logs where it does no direct I/O, and returns the checkpoint to start from.
  // If the directory is local to each host, the first rank of each host claims that of its host, and all of them
  // choose together (part_start.h).
  Result<StartPoint> at_start(std::unique_ptr<Claim>& claim);
  // Chooses again when a checkpoint has come from elsewhere. `start`: the choice before.
  Result<StartPoint> after_download(const StartPoint& start);
  // Returns a snapshot that is not older than the newest checkpoint; else the state that a start would find on
  // the disk, with every byte verified. `lost_some`: ranks were lost that may have decided on a roll-back, and the
  // spare that writes now was not asked, so that the record of it is made first, as at a start.
  Result<StartPoint> at_recovery(const std::string& shm_run_id, bool lost_some);

  // Looks for a snapshot in the shared memory of all hosts that is newer than `start`, and adds it to `start`. It has
  // been found, but not read yet.
  Result<void> add_snapshot(StartPoint& start) const;
  // Skips the snapshot of `start`, which is damaged, and finds the next state. In place that may be the newest
  // checkpoint that verifies, or a snapshot newer than that.
  Result<void> skip_snapshot(StartPoint& start, const std::string& shm_run_id);
  // Gathers the identities of the sealed snapshots of the run on all hosts, by rank.
  Result<std::vector<std::vector<SnapshotIdentity>>> snapshots(const Digest& run) const;

 private:
  Result<void> record_kept_rollbacks() const;
  bool leads() const { return terms_.inputs.communicator.rank() == 0; }
  Waiter patient() const;  // for what waits for a rank that may read the disk
  Result<void> agree(const Result<void>& mine) const;
  Result<void> agree_on_claim(const Result<void>& mine) const;
  Result<void> claim_domain(std::unique_ptr<Claim>& claim);
  Result<OwnStates> states() const;
  Result<StartPoint> choose(const OwnStates& own, const StartPoint& known) const;
  Result<StartPoint> share(const Result<StartPoint>& chosen) const;
  Result<StartPoint> verified(const StartPoint& known) const;
  Result<StartPoint> newest_by_manifest(const std::string& shm_run_id) const;
  Result<bool> describe_snapshot(const Digest& run, StartPoint& start) const;

  SourceTerms terms_;
};

}  // namespace holdfast::elastic
