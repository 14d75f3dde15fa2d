#include <fmt/core.h>

#include "checkpoint/shard_file.h"
#include "checkpoint/shard_format.h"

namespace holdfast::checkpoint {
namespace {

using namespace shard_format;

// A file that the manifest or an index names.
Result<std::unique_ptr<File>> open_named(Env& env, const std::string& path, std::string_view naming) {
  Result<std::unique_ptr<File>> file = env.open(path, OpenMode::read_direct);
  if (file.ok()) return file;
  return fail_because(file.error(), ExitCode::checkpoint,
                      "{}; {} names this file; use another checkpoint or a copy of this file",
                      file.error().message, naming);
}

Result<void> check_size(File& file, std::uint64_t expected_bytes, const std::string& naming) {
  Result<std::uint64_t> size = file.size();
  if (!size.ok()) return with_code(ExitCode::checkpoint, size.error());
  if (*size == expected_bytes) return {};
  return damaged_shard(file.path(),
                       fmt::format("it is {} bytes long, {} says {}", *size, naming, expected_bytes));
}

}  // namespace

Result<ShardReader> ShardReader::open(Env& env, const std::string& directory, const ShardFile& expected,
                                      std::uint64_t step, const std::string& run_id) {
  ShardReader reader;
  HF_TRY(std::unique_ptr<File> shard,
         open_named(env, directory + "/" + expected.name, "the manifest beside it"));
  HF_TRY(reader.index_, read_shard_index(*shard, expected, step, run_id));
  reader.files_.push_back(std::move(shard));
  for (const BaseFile& base : reader.index_.bases) {
    const std::string naming = fmt::format("{} beside it", expected.name);
    HF_TRY(std::unique_ptr<File> file, open_named(env, directory + "/" + base.name, naming));
    HF_TRY_VOID(check_size(*file, base.bytes, naming));
    reader.files_.push_back(std::move(file));
  }
  return reader;
}

Error ShardReader::damaged_chunk(std::size_t piece, const StoredChunk& chunk, std::string_view what) const {
  const ShardSpec& spec = index_.pieces[piece].spec;
  return damaged_shard(files_[chunk.file]->path(),
                       fmt::format("tensor '{}' ({}), the {} bytes at offset {} {}", spec.tensor, spec.kind,
                                   chunk.stored_bytes, chunk.offset_bytes, what));
}

Result<std::span<const std::byte>> ShardReader::read_chunk(std::size_t piece, std::size_t number,
                                                           ChunkScratch& scratch) const {
  const StoredChunk& chunk = index_.pieces[piece].chunks[number];
  // The size is at most a chunk and its alignment, whatever the index says: it was checked when it was read.
  scratch.stored.resize(aligned(chunk.stored_bytes));
  HF_TRY_VOID(read_shard_bytes(file_of(chunk), chunk.offset_bytes, scratch.stored));
  return check_chunk(piece, number, scratch.stored, scratch);
}

Result<std::span<const std::byte>> ShardReader::check_chunk(std::size_t piece, std::size_t number,
                                                            std::span<const std::byte> stored,
                                                            ChunkScratch& scratch) const {
  const StoredChunk& chunk = index_.pieces[piece].chunks[number];
  if (stored.size() != aligned(chunk.stored_bytes))
    return damaged_chunk(piece, chunk, "are not all there");  // the file has become shorter
  if (crc32c(stored) != chunk.stored_crc32c) return damaged_chunk(piece, chunk, "have a wrong checksum");
  const std::span<const std::byte> content = stored.first(chunk.stored_bytes);
  if (chunk.codec == ChunkCodec::raw) return content;
  scratch.raw.resize(chunk.raw_bytes);
  if (!scratch.coder.decode(chunk.codec, content, bytes_of(index_.pieces[piece].spec.dtype), scratch.raw) ||
      crc32c(scratch.raw) != chunk.raw_crc32c) {
    return damaged_chunk(piece, chunk, "do not unpack to what was saved");
  }
  return std::span<const std::byte>(scratch.raw);
}

}  // namespace holdfast::checkpoint
