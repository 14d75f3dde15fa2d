// Lineage: which states of a run directory belong to the run as it goes on. A run begins a new generation
// where its future changes: it goes back to an older state, or goes on with other settings that decide
// bits. States that the generation before had made beyond that point stay where they are (on disk, in RAM, on
// a host that is away), but are discarded: nothing resumes from them unless the user names one.
//
// RUN/lineage.json holds it: replaced by rename, by the holder of the run directory's lock, before the first
// step of a new generation. A directory without it has generation 0 alone.
//
// A writer that another has replaced, and that was stopped at any point of its write, puts no lineage in the place
// of the other's: its text lies beside the file before it looks whether it still is the writer (WriterCheck), and
// whoever claims the directory removes that (claim_run_directory()) before reading anything. What the old one then
// renames is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::checkpoint {

// DataJump leaves batches out: after step `at_step` the run goes on from another position in the data.
struct DataJump {
  std::uint64_t at_step = 0;
  std::uint64_t data_cursor = 0;  // global position of the next sample
  std::uint64_t times = 1;        // decisions to leave batches out that it stands for
  bool operator==(const DataJump&) const = default;

  static void visit_fields(auto& self, auto&& visit) {
    visit("at_step", self.at_step);
    visit("data_cursor", self.data_cursor);
    visit("times", self.times);
  }
};

struct Generation {
  std::uint64_t number = 0;
  // State that it began from. Where it is a roll-back: the newest one that counts, whether it was saved or not;
  // the generation goes on from any older one, and computes the steps in between once more.
  ParentCheckpoint parent = {};
  bool is_rollback = false;
  std::optional<DataJump> jump = {};  // of a roll-back: at parent.step
  std::string settings = {};          // digest of the numeric settings that it began with
  std::string reason = {};            // for people
  bool operator==(const Generation&) const = default;

  static void visit_fields(auto& self, auto&& visit) {
    visit("number", self.number);
    visit("parent", self.parent);
    visit("is_rollback", self.is_rollback);
    visit("jump", self.jump);
    visit("settings", self.settings);
    visit("reason", self.reason);
  }
};

// Adds a jump that was decided on later than `jumps`: those at its step or after it are of a future that was left,
// and their number counts in `times`.
void add_jump(std::vector<DataJump>& jumps, DataJump jump);

struct Lineage {
  std::string run_id = {};                   // Manifest::run_id; empty: there is no record
  std::vector<Generation> generations = {};  // ascending; the run goes on in the last one
  // Newest checkpoint that was published: where it is missing later, it was removed from outside.
  std::optional<ParentCheckpoint> newest_checkpoint = {};
  // No checkpoint of an earlier step was ever published; none_published: not one; none: it is not known, as of a run
  // whose checkpoints came from elsewhere.
  static constexpr std::uint64_t none_published = std::numeric_limits<std::uint64_t>::max();
  std::optional<std::uint64_t> first_step = {};
  bool operator==(const Lineage&) const = default;

  static void visit_fields(auto& self, auto&& visit) {
    visit("run_id", self.run_id);
    visit("generations", self.generations);
    visit("newest_checkpoint", self.newest_checkpoint);
    visit("first_step", self.first_step);
  }

  std::uint64_t current() const { return generations.empty() ? 0 : generations.back().number; }
  // Returns the generation, or null if it has no record, as the first one.
  const Generation* find(std::uint64_t number) const;
  // Returns the generations that the current one goes back to, itself first. Those without a record are left
  // out.
  std::vector<const Generation*> ancestry() const;
  // Returns whether a state is part of a future that the run has left. False for a state of a generation
  // beyond current(): its writer knew more.
  bool discards(const ParentCheckpoint& state) const;
  // Adds to the jumps that a state knows those of generations after its own.
  void add_jumps_after(const ParentCheckpoint& state, std::vector<DataJump>& jumps) const;
  // Returns whether the start of the run is a state to go back to, where nothing after `step` counts: nobody may lose a
  // checkpoint that was published.
  bool start_counts(std::uint64_t step) const {
    return step == 0 || (first_step.has_value() && *first_step > step);
  }
  // Returns whether the run may begin anew where no state is left that counts: the current generation rolled
  // back and has published nothing, and whatever it goes back to can be computed again from the start. A record of
  // before, which does not say when the first checkpoint was published, was made only where that is so.
  bool goes_back_to_start() const {
    return !generations.empty() && generations.back().is_rollback && !newest_checkpoint.has_value() &&
           (!first_step.has_value() || start_counts(generations.back().parent.step));
  }
  // Begins a generation that goes back: states of the current one count up to `parent` only.
  void roll_back(Generation generation);
};

std::string encode_lineage(const Lineage& lineage);
// Parses a lineage. `place` is the path for the error message. Errors: ExitCode::checkpoint.
Result<Lineage> decode_lineage(std::string_view text, const std::string& place);

// Reads the lineage; an empty one where the directory has no record.
Result<Lineage> read_lineage(Env& env, const std::string& run_directory);
// WriterCheck fails with ExitCode::communication once another writer has the run directory; empty: there is none.
using WriterCheck = std::function<Result<void>()>;
// Writes the lineage; durable when it returns. An empty one is as if there never was a record.
Result<void> write_lineage(Env& env, const std::string& run_directory, const Lineage& lineage,
                           const WriterCheck& check = {});
// Records that the run goes back (Lineage::roll_back); durable when it returns. Begins a record where there is
// none, or only one of another run.
Result<void> record_rollback(Env& env, const std::string& run_directory, const std::string& run_id,
                             const Generation& generation, const WriterCheck& check = {});
// Records that a checkpoint was published. Begins a record where there is none, or only one of another run.
Result<void> record_newest_checkpoint(Env& env, const std::string& run_directory, const Manifest& manifest,
                                      const WriterCheck& check = {});

}  // namespace holdfast::checkpoint
