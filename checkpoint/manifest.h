// Manifest: the file that makes a checkpoint directory a checkpoint. Written last; see FORMAT.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/core/shard_spec.h"

namespace holdfast::checkpoint {

// One shard file as its writer reported it.
struct ShardFile {
  std::string name;                // "shard-00002.hfs", inside the checkpoint directory
  std::uint64_t bytes = 0;         // exact length
  std::uint32_t index_crc32c = 0;  // of the file's index, which holds a checksum for every chunk
  std::uint32_t piece_count = 0;
  // Hosts that have the shard, where run.directory was another directory on each host; else empty.
  std::vector<std::string> hosts = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("name", self.name);
    visit("bytes", self.bytes);
    visit("index_crc32c", self.index_crc32c);
    visit("piece_count", self.piece_count);
    visit("hosts", self.hosts);
  }
};

// Identifies the checkpoint of the run that another one followed.
struct ParentCheckpoint {
  std::uint64_t generation = 0;
  std::uint64_t step = 0;
  bool operator==(const ParentCheckpoint&) const = default;

  static void visit_fields(auto& self, auto&& visit) {
    visit("generation", self.generation);
    visit("step", self.step);
  }
};

// Everything about a saved state that is not tensor bytes. Numbers that must keep their bits travel as
// integers or hex.
struct Manifest {
  static constexpr std::uint32_t format_version = 2;  // the only one that is read
  std::string run_id;                                 // 32 hex digits, made at the first start of a run
  std::uint64_t generation = 0;
  std::uint64_t step = 0;                     // steps completed
  std::uint64_t epoch = 0;                    // of the writer's claim (WriterFence); 0: not given
  std::optional<ParentCheckpoint> parent;     // newest one that was there before it
  std::string identity;                       // hash of the settings that define the run (config_identity)
  std::string config;                         // the resolved config as TOML
  std::map<std::string, std::string> values;  // training state in texts: data cursor, digests, program facts
  // Every tensor and kind once, whole (slice 0 of those in slices), in whatever layout they were written.
  std::vector<ShardSpec> tensors;
  std::vector<ShardFile> shards;
};

// Returns the text of Manifest::values with this key; empty where there is none.
inline std::string value_of(const Manifest& manifest, const std::string& key) {
  const auto found = manifest.values.find(key);
  return found == manifest.values.end() ? std::string() : found->second;
}

inline ParentCheckpoint state_of(const Manifest& manifest) {
  return {.generation = manifest.generation, .step = manifest.step};
}

std::string encode_manifest(const Manifest& manifest);
// Decodes a manifest; `place` is the path for the error message. ExitCode::checkpoint for a wrong checksum,
// another magic, another version.
Result<Manifest> decode_manifest(std::string_view text, const std::string& place);

}  // namespace holdfast::checkpoint
