#include "checkpoint/parent_chunks.h"

#include <algorithm>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"
#include "checkpoint/shard_format.h"

namespace holdfast::checkpoint {
namespace {

std::uint64_t first_byte_of(const ShardSpec& spec, std::uint64_t chunk) {
  return spec.first_element() * bytes_of(spec.dtype) + chunk * shard_format::chunk_bytes;
}

}  // namespace

ParentChunks::ParentChunks(std::span<const StatePiece> pieces) {
  for (const StatePiece& piece : pieces) chunks_[slice_of(piece.spec)];
}

ParentChunks::Slice ParentChunks::slice_of(const ShardSpec& spec) {
  return {spec.tensor, spec.kind, spec.slice, spec.dtype};
}

Result<ParentChunks> ParentChunks::open(Env& env, const std::string& directory,
                                        std::span<const StatePiece> pieces) {
  ParentChunks parent(pieces);
  HF_TRY(const Manifest manifest, read_manifest(env, directory));
  for (const ShardFile& shard : manifest.shards) {
    HF_TRY(const ShardReader reader,
           ShardReader::open(env, directory, shard, manifest.step, manifest.run_id));
    parent.add_shard(directory, shard, manifest.step, reader);
  }
  return parent;
}

Result<ParentChunks> ParentChunks::open(Env& env, const std::string& directory, const ShardFile& shard,
                                        std::uint64_t step, const std::string& run_id,
                                        std::span<const StatePiece> pieces) {
  ParentChunks parent(pieces);
  HF_TRY(const ShardReader reader, ShardReader::open(env, directory, shard, step, run_id));
  parent.add_shard(directory, shard, step, reader);
  return parent;
}

bool ParentChunks::covers(std::span<const StatePiece> pieces) const {
  const auto has_chunks = [this](const StatePiece& piece) {
    const auto slice = chunks_.find(slice_of(piece.spec));
    if (slice == chunks_.end()) return false;
    for (std::uint64_t done = 0; done < piece.bytes.size(); done += shard_format::chunk_bytes) {
      const auto found = slice->second.find(first_byte_of(piece.spec, done / shard_format::chunk_bytes));
      const std::uint64_t bytes =
          std::min<std::uint64_t>(shard_format::chunk_bytes, piece.bytes.size() - done);
      if (found == slice->second.end() || found->second.chunk.raw_bytes != bytes) return false;
    }
    return true;
  };
  return std::ranges::all_of(pieces, has_chunks);
}

void ParentChunks::add_shard(const std::string& directory, const ShardFile& shard, std::uint64_t step,
                             const ShardReader& reader) {
  const std::size_t own = files_.size();
  files_.push_back({.path = directory + "/" + shard.name,
                    .link_name = checkpoint_names::base_name(shard.name, step, shard.index_crc32c),
                    .bytes = shard.bytes});
  for (const BaseFile& base : reader.bases())
    files_.push_back({.path = directory + "/" + base.name, .link_name = base.name, .bytes = base.bytes});
  for (const IndexedPiece& piece : reader.pieces()) {
    const auto wanted = chunks_.find(slice_of(piece.spec));
    if (wanted == chunks_.end()) continue;
    for (std::size_t i = 0; i < piece.chunks.size(); ++i) {
      const StoredChunk& chunk = piece.chunks[i];
      if (chunk.digest == Digest{}) continue;
      wanted->second.emplace(first_byte_of(piece.spec, i), Known{.file = own + chunk.file, .chunk = chunk});
    }
  }
}

const ParentChunks::Known* ParentChunks::find(const ShardSpec& spec, std::uint64_t chunk,
                                              std::uint64_t raw_bytes, std::uint32_t raw_crc32c,
                                              const Digest& digest) const {
  const auto slice = chunks_.find(slice_of(spec));
  if (slice == chunks_.end()) return nullptr;
  const auto found = slice->second.find(first_byte_of(spec, chunk));
  if (found == slice->second.end()) return nullptr;
  const StoredChunk& known = found->second.chunk;
  const bool same = known.raw_bytes == raw_bytes && known.raw_crc32c == raw_crc32c && known.digest == digest;
  return same ? &found->second : nullptr;
}

}  // namespace holdfast::checkpoint
