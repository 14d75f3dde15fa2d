// One training step, a transaction: forward and backward of this rank's lanes, lane reduction, one vote of
// all ranks, then the update. A step that is not voted for changes nothing. When it returns, updated
// parameters may still be on their way to and from other ranks (Worker::parameter_gather).
#pragma once

#include <cstdint>

#include "runtime/core/exact_sum.h"
#include "runtime/core/result.h"
#include "runtime/run/save_requests.h"
#include "runtime/save/save_records.h"
#include "runtime/train/worker.h"

namespace holdfast::inline save {
class StateSaver;
class Uploads;
}  // namespace holdfast::inline save

namespace holdfast::inline train {

// 64-bit words that the vote of a step adds up over all ranks: loss, squared gradient norm, digest of the
// data, how many ask to stop, failed, and targets count, whether the run grows, what is due to be saved, and
// how the saves stand.
inline constexpr std::size_t ballot_words =
    2 * ExactSum::word_count + 9 + std::tuple_size_v<SaveVotes::Words>;

struct StepRequest {
  bool stop = false;          // this rank was asked to save and stop; the vote carries it to all
  bool grow = false;          // of rank 0: the run pauses for a resize after this step, for new ranks to come
  bool starts_ranks = false;  // of rank 0: it starts new ranks between this step and the next
  RestartRequest restart = {};  // of the leader: the run ends after this step, for another start
  Result<void> trouble;  // something failed on this rank since the last step: the vote carries that too
  StateSaver* saver = nullptr;  // its copy is whole before the update; the vote carries its votes
  Uploads* uploads = nullptr;   // the vote carries its votes, too
  // By this rank's count. The vote carries that of rank 0, so that clocks that differ never part the ranks,
  // and whether somebody asked any of them.
  SaveDue due = {};
};

// Equal on all ranks, but for `gathers`.
struct StepOutcome {
  std::uint64_t step = 0;  // the step just made, counted from 1
  double loss = 0.0;       // mean over the tokens of the global batch
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  bool stop = false;            // some rank asked for it
  bool grow = false;            // rank 0 asked for it
  bool starts_ranks = false;    // rank 0 said so
  RestartRequest restart = {};  // the leader said so; no more than two hosts are counted
  SaveDue due = {};             // after this step
  SaveVotes saves = {};         // of all ranks
  // Whether the updated parameters are on their way. Where they are not a peer is gone, and this rank must
  // leave; the step is made all the same.
  Result<void> gathers = {};
};

// Errors: trouble or a loader error of some rank (agreed: all ranks return it, the update was not made),
// numerics (loss or gradient not finite; the update was not made), communication (a peer is gone: this rank
// must leave).
Result<StepOutcome> run_step(Worker& worker, const StepRequest& request);

}  // namespace holdfast::inline train
