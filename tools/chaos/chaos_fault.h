// Faults of a chaos campaign: their names, and what each of them is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::chaos {

enum class ChaosFault : std::uint8_t {
  kill,                // SIGKILL of a rank
  two_kills,           // SIGKILL of two ranks at once
  kill_in_recovery,    // SIGKILL of ranks, one after another, while the rest recover
  all_killed,          // SIGKILL of every rank at once
  kill_at_point,       // SIGKILL of a rank by itself, at a named fault point
  crash,               // SIGSEGV or SIGABRT
  hang,                // SIGSTOP: the process exists and does nothing
  livelock,            // a rank computes for ever without progress
  slow_rank,           // one rank is late for a few steps: nothing may happen
  mpirun_killed,       // SIGKILL
  job_killed,          // `holdfast launch` itself; the campaign launches the run again
  ram_lost,            // the same, and the RAM snapshots are gone, as after a power cut
  damaged_checkpoint,  // the same, and a byte of the newest checkpoint is another one, and there is no RAM
                       // snapshot
  full_disk,           // for a while nothing can be written to the run directory
  lost_host,           // loss of a machine with all its ranks
  cut_link,            // loss of the links between a machine and all others
  stalled_disk,        // no write to the run directory returns for a while, and none fails
  stalled_output,      // for a while the output of the launcher and its ranks is not read
  host_killed,         // SIGKILL of all ranks of a machine
  deaf_host,           // nothing that is sent to a machine reaches it
  mute_host,           // nothing that a machine sends arrives
  lossy_link,          // part of what a machine sends and receives is lost
  slow_link,           // everything that a machine sends and receives arrives late
  replaced_host,       // a machine is lost, and one with another name replaces it
  unfit_host,          // a machine lacks something that ranks need, and its ranks are killed
  cut_pair,            // loss of the link between a machine and one other
  stopped_host,        // SIGSTOP of all processes of a machine, which continue later
  read_error,          // reads of training data fail with EIO: one of them, some, or all from then on
  write_error,         // the same of shards of checkpoints
  load_error,          // the job dies as with ram_lost, and reads of checkpoints fail when it begins again
  slow_storage,        // each call to the run directory, or to training data, takes seconds for a while
  // Wrong numbers (number_fault.h), each drawn only where it is asked for.
  flip_weights,          // a bit of an owned weight
  flip_moments,          // a bit of an owned moment
  flip_parameters,       // a bit of what the model of a rank computes with
  flip_gradients,        // a bit of a gradient of a lane, before it leaves its rank
  flip_activations,      // a bit of an activation
  nan,                   // a NaN in one of these memories
  wrong_product,         // an error in one tile of one matrix product
  wrong_product_always,  // the same in every later product of that shape, too
  bad_sample,            // a sample that gives a NaN, or has only one token, whoever reads it
  wrong_rate,            // a learning rate of an update of one rank that is many times too high
  count
};
inline constexpr std::size_t chaos_fault_kinds = static_cast<std::size_t>(ChaosFault::count);

struct ChaosFaultFacts {
  std::string_view name;  // in tables and chaos.json
  std::string_view text;
  bool kills_rank = false;  // kills at least one; a run survives a limited number of them in place
  bool ends_job = false;    // the campaign launches the run again
  bool lasts = false;       // for some steps, or some time
  bool of_numbers = false;  // makes a number wrong, and ends nothing
};
const ChaosFaultFacts& facts_of(ChaosFault fault);
inline bool is_stall(ChaosFault fault) {
  return fault == ChaosFault::stalled_disk || fault == ChaosFault::stalled_output;
}
// Returns whether the fault ends by the clock, not by steps: the run may have made all of its steps meanwhile. A host
// is unfit for so long that new ranks are wanted there.
inline bool is_timed(ChaosFault fault) {
  return is_stall(fault) || fault == ChaosFault::unfit_host || fault == ChaosFault::slow_storage;
}
// Returns whether other faults meet the run while this one lasts.
inline bool lasts_beside_others(ChaosFault fault) {
  return fault == ChaosFault::slow_storage;
}
// Returns whether storage fails, on one rank or on all, until it is tried again often enough, or for good.
inline bool is_storage_error(ChaosFault fault) {
  return fault == ChaosFault::read_error || fault == ChaosFault::write_error ||
         fault == ChaosFault::load_error;
}
// Returns whether the watchdog has to notice the fault.
inline bool is_hang(ChaosFault fault) {
  return fault == ChaosFault::hang || fault == ChaosFault::livelock;
}

// Parses the faults of `--faults`: names, "numbers" for all that make numbers wrong, and "all" for all others,
// separated by commas. ExitCode::config: a word is none of them.
Result<std::vector<ChaosFault>> read_faults(std::string_view list);
// Returns the shortest list that read_faults() reads as these; empty: there are none.
std::string to_list(std::span<const ChaosFault> faults);

}  // namespace holdfast::chaos
