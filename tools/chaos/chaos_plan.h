// A chaos plan says what a campaign does to a run: it is drawn from a seed, and depends on the seed and the
// limits alone, so one number repeats a plan. Pure.
//
// The moment at which a fault meets the run also depends on the machine; the plan fixes after which step, and
// how long after that step was seen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/chaos/chaos_fault.h"

namespace holdfast::chaos {

struct ChaosLayout {
  int ranks = 1;
  int pipeline = 1, tensor = 1;
  int spares = 0;

  int data() const { return (ranks - spares) / (pipeline * tensor); }
  int deaths_in_place() const { return ranks - pipeline * tensor; }  // until no copy of the model is left
};

struct ChaosInjection {
  ChaosFault fault = ChaosFault::kill;
  // Step after which the injection happens, `delay_us` later: this step or a later one has been made, and at
  // least one step since the previous injection, from which the delay counts then.
  std::uint64_t step = 1;
  std::int64_t delay_us = 0;
  // Index of the victim among the ranks that live then, in their order, modulo their number; with a point,
  // the launched rank.
  int victim = 0;
  int deaths = 1;  // number of ranks that die, one after the other
  int other = 0;   // offset of the next victim from the previous one
  // Pause before the next death; kill_in_recovery: counted from the start of the recovery. Of one that is timed: its
  // duration.
  std::int64_t pause_us = 0;
  std::int64_t call_ms = 0;  // of slow_storage: how long each call takes
  bool of_data = false;      // of slow_storage: calls to the training data, and not to the run directory
  std::uint64_t lasts = 0;   // steps until a full disk, a lost host or a link is restored
  int signal = 0;            // signal of a crash
  std::string point =
      {};  // for HOLDFAST_FAULTS: it happens by itself, in every start of the plan's first launch; of a
           // fault that ends the job in every start of the launch after it
  // Place of the damage: which file, and which byte of it. Of a number fault all that NumberPlace::draw says.
  std::uint64_t place = 0;
};

struct ChaosPlan {
  std::uint64_t seed = 0;
  ChaosLayout layout;
  std::string saving =
      {};  // what the run keeps in RAM: an override of `holdfast train`, or empty: as configured
  std::string audits = {};  // how often it audits lanes: another one, only where numbers become wrong
  std::vector<ChaosInjection> injections = {};  // by step
};

struct ChaosLimits {
  std::uint64_t steps = 1;                // number of steps of the run
  std::vector<ChaosLayout> layouts = {};  // at least one
  std::vector<ChaosFault> faults = {};    // faults that are possible; at least one
  std::int64_t lanes = 0;                 // number of lanes of the run; 0: one for each copy
  std::int64_t samples_of_step = 1;
  int moment_count = 2;                   // moments that the optimizer keeps of a weight
  std::vector<std::string> points = {};   // fault points that a rank of such a run passes
  std::vector<std::string> savings = {};  // at least one
  std::string audits = {};                // ChaosPlan::audits of runs with number faults
  int faults_max = 4;                     // maximum for a run
  // Time between one fault and the next; 0: at steps that the seed draws. Otherwise a run has exactly `faults_max` of them, of
  // all kinds at once and none at a named place, unless it ends before.
  std::int64_t every_us = 0;
  // True for as many deaths as a run of `steps` has room for: start after start until no copy of the model is
  // left, more than a third of them while the others recover. The layouts are used in turn, seed by seed.
  bool kills_only = false;
};

ChaosPlan plan_chaos(std::uint64_t seed, const ChaosLimits& limits);

// Which points of a plan a launch has armed.
struct ArmedPoints {
  bool only_of_data = false;  // of spoiled samples, which every start reads again
  const ChaosInjection* later =
      nullptr;  // injection that ended the launch before, if its point is armed then
};
// Returns the value of HOLDFAST_FAULTS.
std::string fault_points_of(const ChaosPlan& plan, const ArmedPoints& armed = {});
// Returns whether the injection ends the job, and its point is armed in the launch after that.
bool is_armed_later(const ChaosInjection& injection);
// Returns whether the injection has armed this action of a launched rank, or of all, at its `hit`-th pass of the point.
bool is_armed_by(const ChaosInjection& injection, std::string_view point, std::uint64_t hit, int rank,
                 std::string_view action);
std::string to_text(const ChaosLayout& layout);  // "4 ranks = 2 copies x 2 stages x 1"
// Returns "each call to the run directory takes 1 s".
std::string what_is_slow(const ChaosInjection& injection);
std::string to_text(const ChaosInjection& injection);  // "kill of rank ... behind step 12"
std::vector<std::string> to_lines(const ChaosPlan& plan);

// Returns every layout of at most `ranks_max` ranks, with at least two, and at most this many stages and
// ranks that share a layer; the caller checks whether the run can have it.
std::vector<ChaosLayout> layouts_up_to(int ranks_max, int pipeline_max, int tensor_max);
// Parses "2x3x1+4": copies x stages x ranks that share a layer, and spares. None: the text is not a layout.
std::optional<ChaosLayout> read_layout(std::string_view text);
std::string to_word(const ChaosLayout& layout);

}  // namespace holdfast::chaos
