// ParentChunks: the chunks that the constant pieces of a state may share, in an older checkpoint or in a file
// that was written for them; the writer of a shard compares its chunks with them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/shard_file.h"

namespace holdfast::checkpoint {

class ParentChunks {
 public:
  struct ParentFile {
    std::string path;
    std::string link_name;  // its name in a directory that refers to it
    std::uint64_t bytes = 0;
  };
  struct Known {
    std::size_t file = 0;  // index in files()
    StoredChunk chunk;
  };

  // Makes an empty one, which finds nothing.
  ParentChunks() = default;
  // Finds the chunks of `directory` with a digest that are of the same tensors, kinds and slices as `pieces`.
  // Reads manifest and indices, not the chunks.
  static Result<ParentChunks> open(Env& env, const std::string& directory,
                                   std::span<const StatePiece> pieces);

  // Finds the chunks of one shard file in `directory`, likewise.
  static Result<ParentChunks> open(Env& env, const std::string& directory, const ShardFile& shard,
                                   std::uint64_t step, const std::string& run_id,
                                   std::span<const StatePiece> pieces);

  // Returns whether there is a chunk at the place of each chunk of `pieces`; their bytes are not compared.
  bool covers(std::span<const StatePiece> pieces) const;
  // Returns the parent's chunk at the same offset of the same slice with the same bytes, as far as length,
  // CRC32C and XXH3-128 tell; nullptr when there is none.
  const Known* find(const ShardSpec& spec, std::uint64_t chunk, std::uint64_t raw_bytes,
                    std::uint32_t raw_crc32c, const Digest& digest) const;
  const std::vector<ParentFile>& files() const { return files_; }

 private:
  using Slice = std::tuple<std::string, std::string, std::uint32_t, DType>;  // tensor, kind, slice
  explicit ParentChunks(std::span<const StatePiece> pieces);                 // with a place for their chunks
  static Slice slice_of(const ShardSpec& spec);
  void add_shard(const std::string& directory, const ShardFile& shard, std::uint64_t step,
                 const ShardReader& reader);
  std::vector<ParentFile> files_;
  std::map<Slice, std::map<std::uint64_t, Known>> chunks_;  // by the first byte in the slice
};

}  // namespace holdfast::checkpoint
