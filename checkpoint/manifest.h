// The manifest: what makes a checkpoint directory a checkpoint. Written last; see FORMAT.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/core/shard_spec.h"

namespace holdfast {

// One shard file as its writer reported it.
struct ShardFile {
  std::string name;                // "shard-00002.hfs", inside the checkpoint directory
  std::uint64_t bytes = 0;         // exact length
  std::uint32_t index_crc32c = 0;  // of the file's index, which holds a checksum for every chunk
  std::uint32_t piece_count = 0;
};

// Everything about a saved state that is not tensor bytes. Numbers that must keep their bits travel as
// integers or hex.
struct Manifest {
  static constexpr std::uint32_t format_version = 1;
  std::string run_id;  // 32 hex digits, made at the first start of a run
  std::uint64_t generation = 0;
  std::uint64_t step = 0;                     // steps completed
  std::string identity;                       // hash of what makes it the same run (config_identity)
  std::string config;                         // the resolved config as TOML
  std::map<std::string, std::string> values;  // training state in texts: data cursor, digests, program facts
  std::vector<ShardFile> shards;
};

std::string encode_manifest(const Manifest& manifest);
// ExitCode::checkpoint; `place` is the path for the sentence. Refuses a wrong checksum, another magic, a
// later version.
Result<Manifest> decode_manifest(std::string_view text, const std::string& place);

}  // namespace holdfast
