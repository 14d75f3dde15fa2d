// Lineage: which states of a run directory belong to the run as it goes on. A run begins a new generation
// where its future changes: it goes back to an older checkpoint, or goes on with other settings that decide
// bits. States that the generation before had made beyond that point stay where they are (on disk, in RAM, on
// a host that is away), but are discarded: nothing resumes from them unless the user names one.
//
// RUN/lineage.json holds it: replaced by rename, by the holder of the run directory's lock, before the first
// step of a new generation. A directory without it has generation 0 alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline checkpoint {

struct Generation {
  std::uint64_t number = 0;
  ParentCheckpoint parent = {};  // state that it began from
  std::string settings = {};     // digest of the numeric settings that it began with
  std::string reason = {};       // for people
  bool operator==(const Generation&) const = default;

  static void visit_fields(auto& self, auto&& visit) {
    visit("number", self.number);
    visit("parent", self.parent);
    visit("settings", self.settings);
    visit("reason", self.reason);
  }
};

struct Lineage {
  std::string run_id = {};                   // Manifest::run_id; empty: there is no record
  std::vector<Generation> generations = {};  // ascending; the run goes on in the last one
  // Newest checkpoint that was published: where it is missing later, it was removed from outside.
  std::optional<ParentCheckpoint> newest_checkpoint = {};
  bool operator==(const Lineage&) const = default;

  static void visit_fields(auto& self, auto&& visit) {
    visit("run_id", self.run_id);
    visit("generations", self.generations);
    visit("newest_checkpoint", self.newest_checkpoint);
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
};

std::string encode_lineage(const Lineage& lineage);
// Parses a lineage. `place` is the path for the error message. Errors: ExitCode::checkpoint.
Result<Lineage> decode_lineage(std::string_view text, const std::string& place);

// Reads the lineage; an empty one where the directory has no record.
Result<Lineage> read_lineage(Env& env, const std::string& run_directory);
// Writes the lineage; durable when it returns.
Result<void> write_lineage(Env& env, const std::string& run_directory, const Lineage& lineage);
// Removes the record, as if there never was one; durable when it returns.
Result<void> remove_lineage(Env& env, const std::string& run_directory);
// Records that a checkpoint was published. Begins a record where there is none, or only one of another run.
Result<void> record_newest_checkpoint(Env& env, const std::string& run_directory, const Manifest& manifest);

}  // namespace holdfast::inline checkpoint
