// The manifest: what makes a checkpoint directory a checkpoint. Written last; see FORMAT.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/core/shard_spec.h"

namespace holdfast::inline checkpoint {

// One shard file as its writer reported it.
struct ShardFile {
  std::string name;                // "shard-00002.hfs", inside the checkpoint directory
  std::uint64_t bytes = 0;         // exact length
  std::uint32_t index_crc32c = 0;  // of the file's index, which holds a checksum for every chunk
  std::uint32_t piece_count = 0;
  // Hosts that have it, where run.directory was another directory on each host; else empty.
  std::vector<std::string> hosts = {};
};

// Which other checkpoint of the run this one followed.
struct ParentCheckpoint {
  std::uint64_t generation = 0;
  std::uint64_t step = 0;
  bool operator==(const ParentCheckpoint&) const = default;
};

// Everything about a saved state that is not tensor bytes. Numbers that must keep their bits travel as
// integers or hex.
struct Manifest {
  static constexpr std::uint32_t format_version = 2;  // that is written; 1 is read, too
  std::string run_id;                                 // 32 hex digits, made at the first start of a run
  std::uint64_t generation = 0;
  std::uint64_t step = 0;                     // steps completed
  std::uint64_t epoch = 0;                    // of the writer's claim of the run (WriterFence); 0: not said
  std::optional<ParentCheckpoint> parent;     // the newest one before it that was there; version 1 has none
  std::string identity;                       // hash of what makes it the same run (config_identity)
  std::string config;                         // the resolved config as TOML
  std::map<std::string, std::string> values;  // training state in texts: data cursor, digests, program facts
  // Every tensor and kind once, whole (slice 0 of those in slices), whatever layout wrote them; empty in
  // version 1.
  std::vector<ShardSpec> tensors;
  std::vector<ShardFile> shards;
};

inline ParentCheckpoint state_of(const Manifest& manifest) {
  return {.generation = manifest.generation, .step = manifest.step};
}

std::string encode_manifest(const Manifest& manifest);
// ExitCode::checkpoint; `place` is the path for the sentence. Refuses a wrong checksum, another magic, a
// later version.
Result<Manifest> decode_manifest(std::string_view text, const std::string& place);

}  // namespace holdfast::inline checkpoint
