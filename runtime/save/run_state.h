// RunState is the state of a run apart from tensor bytes. It is equal on all ranks after every step, except
// for what its members say is of one rank. The manifest carries it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "checkpoint/manifest.h"
#include "runtime/core/digest.h"
#include "runtime/core/result.h"
#include "runtime/data/sample_order.h"
#include "runtime/integrity/numbers_history.h"

namespace holdfast::save {

struct RunState {
  std::string run_id;             // 32 hex digits, made at the first start; part of all that is saved
  std::uint64_t generation = 0;   // generation in the run's lineage (checkpoint/lineage.h)
  std::uint64_t step = 0;         // steps completed
  std::uint64_t data_cursor = 0;  // global position of the next sample
  Digest data_digest = {};        // chain over the digests of all steps' samples and tokens
  Digest loss_digest = {};        // chain over (step, bits of the loss)
  Digest data_fingerprint = {};   // fingerprint of the data files, to detect changes
  std::string shm_run_id = {};    // names the run's shared memory (run_directory.h); not saved
  NumbersHistory numbers = {};    // numbers that the next steps are compared with, and the skipped steps
  // Batches that were left out, in ascending order. Those at a later step are still to come: the state is older
  // than the step that a verdict took the run back to.
  std::vector<DataJump> jumps = {};
  // Positions of the data below data_cursor that jumps have left out, ascending. States that were saved before they were
  // kept have none.
  std::vector<PositionRange> left_out = {};
  // Newest step at which all replicas had taken part in a lane audit that agreed, by what this rank knows; 0:
  // none. Not the same in other layouts.
  std::uint64_t audited_step = 0;
  // Holds what concerns this rank alone, and is not saved: the step that its worker began with, and
  // Worker::verified_step() where the worker is given no other place for it.
  std::optional<std::uint64_t> first_step = {}, verified_step = {};
};

// Goes on in the data where the jump at the state's step says, and notes what that leaves out. Returns whether there is
// one: a loader that has begun reads on from the wrong place.
bool take_jump(RunState& state);

// Returns the samples that the steps of the state have used: those below its cursor that were not left out.
std::uint64_t used_samples(const RunState& state);

// Returns how many roll-backs left out batches before step `step`, by what the state knows.
std::uint64_t rollbacks_before(const RunState& state, std::uint64_t step);

// Keys of a manifest's values.
inline constexpr const char *numbers_key = "numbers", *jumps_key = "data_jumps",
                            *left_out_key = "data_left_out", *audited_step_key = "audited_step";
// Key of step lines that manifests of older programs hold, and that nothing reads.
inline constexpr const char* unused_steps_key = "recent_steps";

// Fills the manifest's run_id, generation, step and values.
void put_state(const RunState& state, Manifest& manifest);
Result<RunState> take_state(const Manifest& manifest, const std::string& place);

}  // namespace holdfast::save
