// A shard file: as it is, with checksums of header, index and trailer that fit, and with those of the chunks.
#include <cstring>

#include "checkpoint/shard_file.h"
#include "checkpoint/shard_format.h"
#include "checkpoint/shard_index.h"
#include "runtime/core/digest.h"
#include "tests/fuzz/fuzz_env.h"

namespace holdfast::fuzz {
namespace {

using namespace shard_format;

constexpr const char* run_id = "0123456789abcdef0123456789abcdef";
constexpr const char* name = "shard-00000.hfs";

// Returns what an input's manifest would say of it: what its own trailer does.
ShardFile expected_of(std::span<const std::byte> file) {
  ShardFile expected{.name = name, .bytes = file.size()};
  Trailer trailer{};
  if (file.size() < sizeof(Header) + sizeof(Trailer)) return expected;
  std::memcpy(&trailer, file.last(sizeof(trailer)).data(), sizeof(trailer));
  expected.index_crc32c = trailer.index_crc32c;
  expected.piece_count = trailer.piece_count;
  return expected;
}

std::uint64_t step_of(std::span<const std::byte> file) {
  Header header{};
  std::memcpy(&header, file.data(), sizeof(header));
  return header.step;
}

// Makes the numbers of the trailer fit: they count only if the index lies inside.
void seal_trailer(std::span<std::byte> file, std::uint64_t step) {
  Trailer trailer{};
  const std::span<std::byte> place = file.last(sizeof(trailer));
  std::memcpy(&trailer, place.data(), sizeof(trailer));
  trailer.magic = trailer_magic;
  trailer.version = version;
  trailer.file_bytes = file.size();
  trailer.step = step;
  const std::uint64_t begin = std::min<std::uint64_t>(trailer.index_offset, file.size());
  const std::uint64_t bytes = std::min<std::uint64_t>(trailer.index_bytes, file.size() - begin);
  trailer.index_crc32c = crc32c(file.subspan(begin, bytes));
  trailer.crc32c = checksum_of(trailer);
  std::memcpy(place.data(), &trailer, sizeof(trailer));
}

std::vector<std::byte> sealed_shard(Input input) {
  std::vector<std::byte> file(input.begin(), input.end());
  if (file.size() < sizeof(Header) + sizeof(Trailer)) return file;
  Header header{};
  std::memcpy(&header, file.data(), sizeof(header));
  const Digest run = digest_of(std::string_view(run_id));
  header.magic = header_magic;
  header.version = version;
  header.header_bytes = sizeof(Header);
  header.chunk_bytes = chunk_bytes;
  header.alignment_bytes = alignment_bytes;
  header.run_digest_high = run.high;
  header.run_digest_low = run.low;
  header.crc32c = checksum_of(header);
  std::memcpy(file.data(), &header, sizeof(header));
  seal_trailer(file, header.step);
  return file;
}

// Makes the checksums of stored chunks fit what is stored.
std::vector<std::byte> with_sealed_chunks(std::span<const std::byte> file, ShardIndex index) {
  std::vector<std::byte> forged(file.begin(), file.end());
  for (IndexedPiece& piece : index.pieces) {
    for (StoredChunk& chunk : piece.chunks) {
      if (chunk.file != 0) continue;
      const auto stored = file.subspan(chunk.offset_bytes, aligned(chunk.stored_bytes));
      if (chunk.codec == ChunkCodec::raw) {
        std::memset(forged.data() + chunk.offset_bytes + chunk.stored_bytes, 0,
                    stored.size() - chunk.stored_bytes);
        chunk.raw_crc32c = crc32c(stored.first(chunk.stored_bytes));
      }
      chunk.stored_crc32c =
          crc32c(std::span<const std::byte>(forged).subspan(chunk.offset_bytes, stored.size()));
    }
  }
  const std::vector<std::byte> bytes = encode_shard_index(index);
  Trailer trailer{};
  std::memcpy(&trailer, file.last(sizeof(trailer)).data(), sizeof(trailer));
  std::memcpy(forged.data() + trailer.index_offset, bytes.data(), bytes.size());
  return sealed_shard(forged);
}

// Whether all of the shard can be read; `index` gets what it describes.
bool read_shard(std::span<const std::byte> file, ShardIndex& index) {
  FuzzEnv env;
  env.put(std::string("/d/") + name, file);
  const ShardFile expected = expected_of(file);
  const std::uint64_t step = file.size() < sizeof(Header) ? 0 : step_of(file);
  const Result<ShardReader> reader = ShardReader::open(env, "/d", expected, step, run_id);
  if (!reader.ok()) {
    require_sentence(reader.error(), {ExitCode::checkpoint, ExitCode::data});
    return false;
  }
  index = {.pieces = reader->pieces(), .bases = reader->bases()};
  bool whole = true;
  ChunkScratch scratch;
  for (std::size_t piece = 0; piece < index.pieces.size(); ++piece) {
    for (std::size_t chunk = 0; chunk < index.pieces[piece].chunks.size(); ++chunk) {
      const auto bytes = reader->read_chunk(piece, chunk, scratch);
      if (bytes.ok()) {
        require(bytes->size() == index.pieces[piece].chunks[chunk].raw_bytes, "a chunk has another length");
        continue;
      }
      require_sentence(bytes.error(), {ExitCode::checkpoint});
      whole = false;
    }
  }
  return whole;
}

bool run_shard(Input input) {
  ShardIndex index;
  const bool accepted = read_shard(input, index);
  const std::vector<std::byte> file = sealed_shard(input);
  index = {};
  static_cast<void>(read_shard(file, index));
  if (index.pieces.empty()) return accepted;
  Trailer trailer{};
  std::memcpy(&trailer, std::span(file).last(sizeof(trailer)).data(), sizeof(trailer));
  const std::vector<std::byte> written = encode_shard_index(index);
  require(std::ranges::equal(written, std::span(file).subspan(trailer.index_offset, trailer.index_bytes)),
          "the index is written as other bytes than those that were read");
  ShardIndex again;
  static_cast<void>(read_shard(with_sealed_chunks(file, index), again));
  require(again.pieces.size() == index.pieces.size(), "an index with other checksums is refused");
  return accepted;
}

std::vector<std::byte> shard_of(Compression compression) {
  FuzzEnv env;
  require(env.make_directories("/d").ok(), "no directory");
  std::vector<std::byte> small(24), flat(10'000, std::byte{7});
  for (std::size_t i = 0; i < small.size(); ++i) small[i] = static_cast<std::byte>(i);
  const std::vector<StatePiece> pieces = {
      {.spec = {.tensor = "a", .kind = "weight", .global_shape = {2, 3}, .block_count = 1}, .bytes = small},
      {.spec = {.tensor = "b",
                .kind = "moment1",
                .dtype = DType::bf16,
                .global_shape = {10'000},
                .slice = 1,
                .slices = 2,
                .first_block = 0,
                .block_count = 2},
       .bytes = flat}};
  const Result<ShardFile> written =
      write_shard_file(env, "/d", name, 42, run_id, pieces, {}, {.compression = compression});
  require(written.ok(), "the shard cannot be written");
  return env.content(std::string("/d/") + name);
}

std::vector<Seed> shard_seeds() {
  return {{"raw", shard_of(Compression::none)}, {"compressed", shard_of(Compression::always)}};
}

}  // namespace

extern const Target shard_target;
const Target shard_target{
    .name = "shard", .run = run_shard, .seeds = shard_seeds, .memory_per_byte = 32, .memory_beside = 8 << 20};

}  // namespace holdfast::fuzz
