// What a campaign does to a run: drawn from a seed, and nothing but the seed and the limits decide it, so one
// number repeats a plan. Pure.
//
// The moment at which a fault meets the run also depends on the machine; the plan fixes behind which step and
// how long after it was seen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::inline chaos {

enum class ChaosFault : std::uint8_t {
  kill,                // SIGKILL of a rank
  two_kills,           // of two at once
  kill_in_recovery,    // of others, one after another, while those that are left recover
  all_killed,          // of every rank at once
  kill_at_point,       // of a rank by itself, at a named place in the program
  crash,               // SIGSEGV or SIGABRT
  hang,                // SIGSTOP: it lives and does nothing
  livelock,            // it computes for ever and gets nowhere
  slow_rank,           // one rank is late for a few steps: nothing may happen
  mpirun_killed,       // SIGKILL
  job_killed,          // `holdfast launch` itself; the campaign launches the run again
  ram_lost,            // the same, and the RAM snapshots are gone, as after a power cut
  damaged_checkpoint,  // the same, and a byte of the newest checkpoint is another one, and there is no RAM
                       // snapshot
  full_disk,           // for a while nothing can be written to the run directory
  lost_host,           // a machine with all its ranks
  cut_link,            // of a machine to all others
  stalled_disk,        // no write to the run directory returns for a while, and none fails
  stalled_output,      // nobody reads what the launcher and its ranks print, for a while
  host_killed,         // SIGKILL of all ranks of a machine
  deaf_host,           // nothing that is sent to a machine reaches it
  mute_host,           // nothing that a machine sends reaches anybody
  lossy_link,          // some of what a machine sends and gets is lost
  slow_link,           // all of it comes late
  replaced_host,       // a machine is gone, and one with another name takes its place
  count
};
inline constexpr std::size_t chaos_fault_kinds = static_cast<std::size_t>(ChaosFault::count);

struct ChaosFaultFacts {
  std::string_view name;  // in tables and chaos.json
  std::string_view text;
  bool kills_rank = false;  // one at least: a run heals so many of them in place
  bool ends_job = false;    // the campaign launches the run again
  bool lasts = false;       // for some steps, or some time
};
const ChaosFaultFacts& facts_of(ChaosFault fault);
// Ends by the clock, not by steps: the run may have made all of its steps meanwhile.
inline bool is_stall(ChaosFault fault) {
  return fault == ChaosFault::stalled_disk || fault == ChaosFault::stalled_output;
}
// For the watchdog to notice.
inline bool is_hang(ChaosFault fault) {
  return fault == ChaosFault::hang || fault == ChaosFault::livelock;
}

struct ChaosLayout {
  int ranks = 1;
  int pipeline = 1, tensor = 1;
  int spares = 0;

  int data() const { return (ranks - spares) / (pipeline * tensor); }
  int deaths_in_place() const { return ranks - pipeline * tensor; }  // until no copy of the model is left
};

struct ChaosInjection {
  ChaosFault fault = ChaosFault::kill;
  // When this step, or a later one, has been made, and one since the injection before; then so much later.
  std::uint64_t step = 1;
  std::int64_t delay_us = 0;
  // Of the ranks that live then, in their order, counted in a circle; with a point the launched rank.
  int victim = 0;
  int deaths = 1;  // ranks, one after the other
  int other = 0;   // the next one, counted from the one before
  // Before the next; kill_in_recovery: since the others recover. A stall: how long it lasts.
  std::int64_t pause_us = 0;
  std::uint64_t lasts = 0;  // steps, until a full disk, a lost host or a link is as it was before
  int signal = 0;           // of a crash
  std::string point =
      {};  // for HOLDFAST_FAULTS: it happens by itself, in every start of the plan's first launch
  std::uint64_t place = 0;  // of the damage: which file and which byte of it
};

struct ChaosPlan {
  std::uint64_t seed = 0;
  ChaosLayout layout;
  std::string saving =
      {};  // what the run keeps in RAM: an override of `holdfast train`, or empty: as configured
  std::vector<ChaosInjection> injections = {};  // by step
};

struct ChaosLimits {
  std::uint64_t steps = 1;                // of the run
  std::vector<ChaosLayout> layouts = {};  // at least one
  std::vector<ChaosFault> faults = {};    // that can be made; at least one
  std::int64_t lanes = 0;                 // of the run; 0: one for each copy
  std::vector<std::string> points = {};   // named places that a rank of such a run passes
  std::vector<std::string> savings = {};  // at least one
  int faults_max = 4;                     // of a run
  // As many deaths as a run of `steps` has room for: start after start until no copy of the model is left,
  // more than a third of them while the others recover. The layouts come in turn, seed by seed.
  bool kills_only = false;
};

ChaosPlan plan_chaos(std::uint64_t seed, const ChaosLimits& limits);

// The value of HOLDFAST_FAULTS.
std::string fault_points_of(const ChaosPlan& plan);
// Whether the injection has armed this: the action of a launched rank when it passes the point that often.
bool is_armed_by(const ChaosInjection& injection, std::string_view point, std::uint64_t hit, int rank,
                 std::string_view action);
std::string to_text(const ChaosLayout& layout);        // "4 ranks = 2 copies x 2 stages x 1"
std::string to_text(const ChaosInjection& injection);  // "kill of rank ... behind step 12"
std::vector<std::string> to_lines(const ChaosPlan& plan);

// Every layout of at most `ranks_max` ranks, with at least two, and at most this many stages and ranks that
// share a layer; whether the run can have it is for the caller to ask.
std::vector<ChaosLayout> layouts_up_to(int ranks_max, int pipeline_max, int tensor_max);
// "2x3x1+4": copies x stages x ranks that share a layer, and spares. None: it is no such text.
std::optional<ChaosLayout> read_layout(std::string_view text);
std::string to_word(const ChaosLayout& layout);

}  // namespace holdfast::inline chaos
