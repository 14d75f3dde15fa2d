#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"
#include "checkpoint/shard_file.h"
#include "checkpoint/shard_format.h"
#include "checkpoint/shard_stream.h"
#include "runtime/core/digest.h"

namespace holdfast::checkpoint {
namespace {

using namespace shard_format;

// The chunks that the constant pieces of a state may share, in an older checkpoint or in a file
// that was written for them; the writer of a shard compares its chunks with them.
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

std::uint64_t first_byte_of(const ShardSpec& spec, std::uint64_t chunk) {
  return spec.first_element() * bytes_of(spec.dtype) + chunk * chunk_bytes;
}

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
    for (std::uint64_t done = 0; done < piece.bytes.size(); done += chunk_bytes) {
      const auto found = slice->second.find(first_byte_of(piece.spec, done / chunk_bytes));
      const std::uint64_t bytes = std::min<std::uint64_t>(chunk_bytes, piece.bytes.size() - done);
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

// The files that the new one refers to: linked, unless they are here, when the first of their chunks is met.
class BaseLinks {
 public:
  BaseLinks(Env& env, const std::string& directory, const ParentChunks& parent)
      : env_(&env), directory_(directory), parent_(&parent), numbers_(parent.files().size()) {}

  // Returns the file's number in the new file's index; 0 where it cannot be linked (the file system has no
  // links, or the parent was removed meanwhile): then the chunk is written like any other.
  std::uint32_t number_of(std::size_t file, std::vector<BaseFile>& bases) {
    std::optional<std::uint32_t>& number = numbers_[file];
    if (number.has_value()) return *number;
    number = 0;
    const ParentChunks::ParentFile& base = parent_->files()[file];
    if (!is_linked(base)) return 0;
    bases.push_back({.name = base.link_name, .bytes = base.bytes});
    number = static_cast<std::uint32_t>(bases.size());
    return *number;
  }

 private:
  // Another rank may have linked the same file: its name says which one it is.
  bool is_linked(const ParentChunks::ParentFile& base) {
    const std::string target = directory_ + "/" + base.link_name;
    if (base.path == target) return true;
    if (env_->link(base.path, target).ok()) return true;
    const Result<FileStatus> status = env_->status(target);
    return status.ok() && status.value().exists && status.value().bytes == base.bytes;
  }

  Env* env_;
  std::string directory_;
  const ParentChunks* parent_;
  std::vector<std::optional<std::uint32_t>> numbers_;  // by file of the parent; empty = not tried
};

// Everything that one file needs while it is written.
class ShardWriter {
 public:
  ShardWriter(Env& env, const std::string& directory, const ParentChunks& parent,
              const ShardWriteOptions& options)
      : env_(&env),
        options_(&options),
        parent_(&parent),
        links_(env, directory, parent),
        choice_(options.compression) {}

  Result<void> begin(File& file, std::uint64_t expected_bytes);
  Result<void> write_header(std::uint64_t step, const std::string& run_id);
  Result<void> write_piece(const StatePiece& piece, const ReadState& read);
  // Index and trailer. The description of the file, without its name.
  Result<ShardFile> finish(std::uint64_t step);

 private:
  Result<StoredChunk> write_chunk(const StatePiece& piece, std::uint64_t number,
                                  std::span<const std::byte> raw, bool stays);
  bool refer(const ShardSpec& spec, std::uint64_t number, StoredChunk& chunk);
  Result<void> store(const ShardSpec& spec, std::span<const std::byte> raw, bool stays, StoredChunk& chunk);

  Env* env_;
  const ShardWriteOptions* options_;
  const ParentChunks* parent_;
  BaseLinks links_;
  ChunkCoder coder_;
  CompressionChoice choice_;
  std::unique_ptr<ShardStream> stream_;
  ShardIndex index_;
};

Result<void> ShardWriter::begin(File& file, std::uint64_t expected_bytes) {
  HF_TRY(stream_, ShardStream::make(*env_, file, options_->io, expected_bytes,
                                    [this](std::uint64_t bytes, std::int64_t duration_ns) {
                                      choice_.saw_write(bytes, duration_ns);
                                    }));
  return {};
}

Result<void> ShardWriter::write_header(std::uint64_t step, const std::string& run_id) {
  const Digest run = digest_of(run_id);
  Header header = {.magic = header_magic,
                   .version = version,
                   .header_bytes = sizeof(Header),
                   .step = step,
                   .run_digest_high = run.high,
                   .run_digest_low = run.low,
                   .chunk_bytes = chunk_bytes,
                   .alignment_bytes = alignment_bytes,
                   .zero = {},
                   .crc32c = 0};
  header.crc32c = checksum_of(header);
  return stream_->append(std::as_bytes(std::span(&header, 1)));
}

Result<void> ShardWriter::write_piece(const StatePiece& piece, const ReadState& read) {
  IndexedPiece indexed{.spec = piece.spec, .chunks = {}};
  indexed.chunks.reserve(chunk_count(piece.bytes.size()));
  for (std::uint64_t done = 0; done < piece.bytes.size(); done += chunk_bytes) {
    const auto part =
        piece.bytes.subspan(done, std::min<std::uint64_t>(chunk_bytes, piece.bytes.size() - done));
    // The memory from `read` is valid until its next call; the piece itself stays until the file is written.
    HF_TRY(const StoredChunk chunk,
           write_chunk(piece, done / chunk_bytes, read ? read(part) : part, /*stays=*/!read));
    indexed.chunks.push_back(chunk);
    if (options_->pace) options_->pace(part.size());
    if (options_->cancelled && options_->cancelled()) {
      return fail(ExitCode::checkpoint, "the shard was given up on the way");
    }
  }
  index_.pieces.push_back(std::move(indexed));
  return {};
}

// The checksum is taken before anything is done with the chunk: what goes wrong after that is found.
Result<StoredChunk> ShardWriter::write_chunk(const StatePiece& piece, std::uint64_t number,
                                             std::span<const std::byte> raw, bool stays) {
  StoredChunk chunk{.raw_bytes = static_cast<std::uint32_t>(raw.size()),
                    .raw_crc32c = piece.chunk_crc32c.empty() ? crc32c(raw) : piece.chunk_crc32c[number]};
  if (options_->is_constant && options_->is_constant(piece.spec)) {
    chunk.digest = digest_of(raw);
    if (refer(piece.spec, number, chunk)) return chunk;
  }
  HF_TRY_VOID(store(piece.spec, raw, stays, chunk));
  return chunk;
}

bool ShardWriter::refer(const ShardSpec& spec, std::uint64_t number, StoredChunk& chunk) {
  const ParentChunks::Known* const known =
      parent_->find(spec, number, chunk.raw_bytes, chunk.raw_crc32c, chunk.digest);
  if (known == nullptr) return false;
  const std::uint32_t file = links_.number_of(known->file, index_.bases);
  if (file == 0) return false;
  chunk = known->chunk;
  chunk.file = file;
  return true;
}

Result<void> ShardWriter::store(const ShardSpec& spec, std::span<const std::byte> raw, bool stays,
                                StoredChunk& chunk) {
  const PlaneSet tried = choice_.planes_for(spec.kind, spec.dtype);
  chunk.offset_bytes = stream_->offset();
  if (tried == 0 && stays && ShardStream::can_lend(raw)) {
    chunk.stored_bytes = chunk.raw_bytes;
    chunk.stored_crc32c = chunk.raw_crc32c;
    return stream_->lend(raw);
  }
  HF_TRY(const std::span<std::byte> target, stream_->room(raw.size()));
  const std::int64_t begin_ns = tried == 0 ? 0 : env_->monotonic_ns();
  const EncodedChunk encoded = coder_.encode(raw, bytes_of(spec.dtype), tried, target);
  if (tried != 0)
    choice_.saw_chunk(spec.kind, spec.dtype, raw.size(), tried, encoded, env_->monotonic_ns() - begin_ns);
  chunk.codec = encoded.codec;
  chunk.stored_bytes = static_cast<std::uint32_t>(encoded.stored_bytes);
  const std::span<const std::byte> stored = stream_->commit(encoded.stored_bytes);
  // The copy of a chunk that is stored as it is must be what the checksum was taken of, so it is not asked
  // for its own.
  chunk.stored_crc32c = encoded.codec == ChunkCodec::raw
                            ? crc32c(stored.subspan(raw.size()), chunk.raw_crc32c)
                            : crc32c(stored);
  return {};
}

// Index, zeros and trailer together: the trailer is the last bytes of the file, whose length is a multiple of
// the alignment.
Result<ShardFile> ShardWriter::finish(std::uint64_t step) {
  std::vector<std::byte> bytes = encode_shard_index(index_);
  Trailer trailer = {.index_offset = stream_->offset(),
                     .index_bytes = bytes.size(),
                     .file_bytes = stream_->offset() + aligned(bytes.size() + sizeof(Trailer)),
                     .step = step,
                     .piece_count = static_cast<std::uint32_t>(index_.pieces.size()),
                     .index_crc32c = crc32c(bytes),
                     .base_count = static_cast<std::uint32_t>(index_.bases.size()),
                     .zero = 0,
                     .magic = trailer_magic,
                     .version = version,
                     .crc32c = 0};
  trailer.crc32c = checksum_of(trailer);
  bytes.resize(aligned(bytes.size() + sizeof(Trailer)));
  std::memcpy(bytes.data() + bytes.size() - sizeof(Trailer), &trailer, sizeof(Trailer));
  HF_TRY_VOID(stream_->append(bytes));
  HF_TRY_VOID(stream_->finish());
  return ShardFile{.name = {},
                   .bytes = trailer.file_bytes,
                   .index_crc32c = trailer.index_crc32c,
                   .piece_count = trailer.piece_count};
}

// Returns the length of the file if nothing can be compressed, and all constant chunks are in another file.
std::uint64_t expected_file_bytes(std::span<const StatePiece> pieces, const ParentChunks& parent,
                                  const ShardWriteOptions& options) {
  std::uint64_t bytes = sizeof(Header);
  std::uint64_t index_bytes = 0;
  for (const StatePiece& piece : pieces) {
    HF_CHECK(piece.bytes.size() == piece.spec.byte_count(),
             "'{}' ({}) has {} bytes in memory, its spec says {}", piece.spec.tensor, piece.spec.kind,
             piece.bytes.size(), piece.spec.byte_count());
    const bool is_elsewhere = !parent.files().empty() && options.is_constant(piece.spec);
    if (!is_elsewhere)
      bytes += aligned(piece.bytes.size());  // chunks but the last are multiples of the alignment
    index_bytes += piece_record_bytes(piece.spec);
  }
  for (const ParentChunks::ParentFile& file : parent.files())
    index_bytes += base_record_bytes(file.link_name);
  return bytes + aligned(index_bytes + sizeof(Trailer));
}

// ShardContent is what all files of one shard have in common.
struct ShardContent {
  const std::string& directory;
  std::uint64_t step;
  const std::string& run_id;
  const ReadState& read;
  const ShardWriteOptions& options;
};

Result<ShardFile> write_content(Env& env, File& file, const ShardContent& content,
                                std::span<const StatePiece> pieces, const ParentChunks& parent) {
  const std::uint64_t reserved = expected_file_bytes(pieces, parent, content.options);
  HF_TRY_VOID(file.allocate(reserved));
  ShardWriter writer(env, content.directory, parent, content.options);
  HF_TRY_VOID(writer.begin(file, reserved));
  HF_TRY_VOID(writer.write_header(content.step, content.run_id));
  for (const StatePiece& piece : pieces) HF_TRY_VOID(writer.write_piece(piece, content.read));
  HF_TRY(ShardFile written, writer.finish(content.step));
  if (written.bytes != reserved) HF_TRY_VOID(file.truncate(written.bytes));
  HF_TRY_VOID(file.sync());
  HF_TRY_VOID(env.sync_directory(content.directory));
  return written;
}

Result<ShardFile> write_file(Env& env, const std::string& name, const ShardContent& content,
                             std::span<const StatePiece> pieces, const ParentChunks& parent) {
  const std::string path = content.directory + "/" + name;
  Result<std::unique_ptr<File>> file = env.open(path, OpenMode::create_direct);
  if (!file.ok()) return file.error();
  Result<ShardFile> written = write_content(env, **file, content, pieces, parent);
  if (!written.ok()) {
    // This only tidies up: the error that matters is the one above, and the next writer removes the directory
    // anyway.
    static_cast<void>(env.remove(path).ok());
    return written;
  }
  written->name = name;
  return written;
}

// Writes the constant pieces to a file of their own, under the name that later checkpoints link it by.
Result<ParentChunks> write_base(Env& env, const std::string& name, const ShardContent& content,
                                std::span<const StatePiece> constant) {
  HF_TRY(ShardFile base, write_file(env, "constant-" + name, content, constant, {}));
  const std::string from = content.directory + "/" + base.name;
  base.name = checkpoint_names::base_name(name, content.step, base.index_crc32c);
  HF_TRY_VOID(env.rename(from, content.directory + "/" + base.name));
  return ParentChunks::open(env, content.directory, base, content.step, content.run_id, constant);
}

// Returns the chunks of the constant pieces: the parent's, or those of a new file. A parent that cannot be
// read is no reason not to save.
Result<ParentChunks> constant_chunks(Env& env, const std::string& name, const ShardContent& content,
                                     std::span<const StatePiece> pieces) {
  if (!content.options.is_constant) return ParentChunks();
  std::vector<StatePiece> constant;
  for (const StatePiece& piece : pieces) {
    if (!piece.bytes.empty() && content.options.is_constant(piece.spec)) constant.push_back(piece);
  }
  if (constant.empty()) return ParentChunks();
  if (const std::string& directory = content.options.parent_directory; !directory.empty()) {
    Result<ParentChunks> parent = ParentChunks::open(env, directory, constant);
    if (parent.ok() && parent->covers(constant)) return parent;
  }
  return write_base(env, name, content, constant);
}

}  // namespace

Result<ShardFile> write_shard_file(Env& env, const std::string& directory, const std::string& name,
                                   std::uint64_t step, const std::string& run_id,
                                   std::span<const StatePiece> pieces, const ReadState& read,
                                   const ShardWriteOptions& options) {
  const ShardContent content{
      .directory = directory, .step = step, .run_id = run_id, .read = read, .options = options};
  HF_TRY(const ParentChunks constant, constant_chunks(env, name, content, pieces));
  return write_file(env, name, content, pieces, constant);
}

}  // namespace holdfast::checkpoint
