// Lineage: which states of a run directory belong to the run as it goes on. A run begins a new generation
// where its future changes: it goes back to an older checkpoint, or goes on with other settings that decide
// bits. What the generation before had made beyond that point stays where it is (on disk, in RAM, on a host
// that is away), but is discarded: nothing resumes from it unless the user names it.
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
  ParentCheckpoint parent = {};  // the state that it began from
  std::string settings = {};     // digest of the numeric settings that it began with
  std::string reason = {};       // for people
  bool operator==(const Generation&) const = default;
};

struct Lineage {
  std::string run_id = {};                   // Manifest::run_id; empty: there is no record
  std::vector<Generation> generations = {};  // ascending; the run goes on in the last one
  // The newest checkpoint that was published: where it is missing later, somebody has removed it.
  std::optional<ParentCheckpoint> newest_checkpoint = {};
  bool operator==(const Lineage&) const = default;

  std::uint64_t current() const { return generations.empty() ? 0 : generations.back().number; }
  // Null: it has no record, as the first one.
  const Generation* find(std::uint64_t number) const;
  // The generations that the current one goes back to, itself first. Those without a record are left out.
  std::vector<const Generation*> ancestry() const;
  // Whether a state is part of a future that the run has left. One of a generation beyond current() is not:
  // whoever wrote it knew more.
  bool discards(const ParentCheckpoint& state) const;
};

std::string encode_lineage(const Lineage& lineage);
// ExitCode::checkpoint; `place` is the path for the sentence.
Result<Lineage> decode_lineage(std::string_view text, const std::string& place);

// An empty one where the directory has no record.
Result<Lineage> read_lineage(Env& env, const std::string& run_directory);
// Durable when it returns.
Result<void> write_lineage(Env& env, const std::string& run_directory, const Lineage& lineage);
// Removes the record, as if there never was one; durable when it returns.
Result<void> remove_lineage(Env& env, const std::string& run_directory);
// After a checkpoint was published. Begins a record where there is none, or one of another run.
Result<void> record_newest_checkpoint(Env& env, const std::string& run_directory, const Manifest& manifest);

}  // namespace holdfast::inline checkpoint
