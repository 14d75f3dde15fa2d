// Faults of a chaos campaign: their names, and what each of them is.
#pragma once

#include <cstdint>
#include <map>
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
  gpu_fault,           // a kernel of a rank traps, or reads what is not there: the GPU gives up the process
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
  sick_host,           // sensors of a machine say that it should be left; nothing ends it
  stopped_host,        // SIGSTOP of all processes of a machine, which continue later
  read_error,          // reads of training data fail with EIO: one of them, some, or all from then on
  write_error,         // the same of shards of checkpoints
  load_error,          // the job dies as with ram_lost, and reads of checkpoints fail when it begins again
  slow_storage,        // each call to the run directory, or to training data, takes seconds for a while
  // Wrong numbers (NumberPromise), each drawn only where it is asked for.
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
// Returns whether the fault comes at a named place of a step that the seed draws, so that no clock says when.
bool is_at_place(ChaosFault fault);
// Returns whether the watchdog has to notice the fault.
inline bool is_hang(ChaosFault fault) {
  return fault == ChaosFault::hang || fault == ChaosFault::livelock;
}

// Parses the faults of `--faults`: names, "numbers" for all that make numbers wrong, and "all" for all others,
// separated by commas. ExitCode::config: a word is none of them.
Result<std::vector<ChaosFault>> read_faults(std::string_view list);
// Returns the shortest list that read_faults() reads as these; empty: there are none.
std::string to_list(std::span<const ChaosFault> faults);

// Host faults are those that happen to hosts: which option of `holdfast chaos` makes each one, and which
// option ends it. Pure.
struct HostFault {
  ChaosFault fault;
  std::string_view begin;  // option, without dashes, whose command makes the fault
  std::string_view end;    // option whose command ends it; empty: none is needed
  std::string_view text;   // text after the name of the host
  bool renames = false;    // its end puts a host with another name into the hostfile
  bool of_pair = false;    // happens between the host and one other, whose name comes after the text
};
std::span<const HostFault> host_faults();
// Returns the host fault, or null for a fault that does not happen to hosts.
const HostFault* host_fault_of(ChaosFault fault);

// Returns all options of host_faults(), each once.
std::vector<std::string_view> host_fault_options();

// Shell commands by which the user makes host faults, by option, with {host} for the name and {peer} for that of the
// other host of a pair, or the names after them. A fault whose option is missing cannot be made.
using HostCommands = std::map<std::string, std::string, std::less<>>;

// Returns which option is missing; empty: the fault can be made and ended.
std::string missing_commands(const HostFault& fault, const HostCommands& commands);

// Number faults are those that make numbers of a run wrong: which fault point of the program makes each of
// them, and what must become of it. Pure.

// Says which bits the finished run must have.
enum class NumberPromise : std::uint8_t {
  healed,           // those of the undisturbed run: every update compares this, or no NaN is used
  healed_if_found,  // the same if a verdict found it: a wrong number that comes once may be where no check is
  same_as_twin,     // those of a run that reads the same spoiled sample, and that nothing else happens to
};
NumberPromise promise_of(ChaosFault fault);

// Place of a number fault in a run.
struct NumberPlace {
  std::uint64_t step = 1;             // of the run, counted from 1
  int rank = 0;                       // launched
  std::uint64_t lanes_of_rank = 1;    // lanes that a rank computes in a step
  std::uint64_t samples_of_step = 1;  // samples of a step of the whole run
  std::uint64_t moment_count = 2;     // moments that the optimizer keeps of a weight
  std::uint64_t draw = 0;             // number that all the rest is drawn from: memory, bit, lane, sample
};

// Returns the entry of HOLDFAST_FAULTS: "step.begin@12:1=flip:weights:22". If faults before it have taken
// passes of the point from the rank, it happens in another step.
std::string number_fault_point(ChaosFault fault, const NumberPlace& place);

// Returns the step that reads the sample of such an entry, of a bad_sample.
std::uint64_t step_of_sample(std::uint64_t sample, std::uint64_t samples_of_step);

}  // namespace holdfast::chaos
