#include "checkpoint/shard_index.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/names.h"
#include "checkpoint/shard_format.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::checkpoint {
namespace {

using namespace shard_format;

constexpr const char* advice = "use another checkpoint or a copy of this file";

class IndexBytes {
 public:
  template <typename T>
  void add(const T& value) {
    add(std::as_bytes(std::span(&value, 1)));
  }
  void add(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void add(const std::string& text) { add(std::as_bytes(std::span(text.data(), text.size()))); }
  void pad() { bytes_.resize(round_up(bytes_.size(), 8)); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Takes values off the front of the index; every step is checked against what is left.
class IndexCursor {
 public:
  explicit IndexCursor(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool take(std::uint64_t bytes, std::span<const std::byte>& taken) {
    if (bytes > rest_.size()) return false;
    taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return true;
  }
  template <typename T>
  bool take_value(T& value) {
    std::span<const std::byte> taken;
    if (!take(sizeof(T), taken)) return false;
    std::memcpy(&value, taken.data(), sizeof(T));
    return true;
  }
  bool take_text(std::uint64_t bytes, std::string& text) {
    std::span<const std::byte> taken;
    if (!take(bytes, taken)) return false;
    text.assign(reinterpret_cast<const char*>(taken.data()), taken.size());
    return true;
  }
  template <typename T>
  bool take_array(std::uint64_t count, std::vector<T>& values) {
    std::span<const std::byte> taken;
    if (count > rest_.size() / sizeof(T) || !take(count * sizeof(T), taken)) return false;
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), taken.data(), taken.size());
    return true;
  }
  bool take_padding(std::uint64_t bytes) {
    std::span<const std::byte> taken;
    return take(bytes, taken) && std::ranges::all_of(taken, [](std::byte b) { return b == std::byte{0}; });
  }
  std::uint64_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

// Values of the trailer.
struct Place {
  std::uint64_t trailer_offset = 0;
  std::uint64_t index_offset = 0;
  std::uint64_t index_bytes = 0;
  std::uint32_t index_crc32c = 0;
  std::uint32_t piece_count = 0;
  std::uint32_t base_count = 0;
};

template <typename Struct>
Result<Struct> read_struct(File& file, std::uint64_t offset) {
  Struct value;
  HF_TRY_VOID(read_shard_bytes(file, offset, std::as_writable_bytes(std::span(&value, 1))));
  return value;
}

Result<void> check_header(const std::string& path, const Header& header, std::uint64_t step,
                          const std::string& run_id) {
  if (header.magic != header_magic) {
    return fail(ExitCode::checkpoint, "{} is not a Holdfast shard file (its first bytes are not HFSHARD); {}",
                path, advice);
  }
  if (header.crc32c != checksum_of(header)) return damaged_shard(path, "the checksum of its header is wrong");
  if (header.version != version) {
    return fail(ExitCode::checkpoint,
                "{} has shard format version {}, this program reads version {}; use the program that "
                "wrote it",
                path, header.version, version);
  }
  if (header.header_bytes != sizeof(Header) || header.chunk_bytes != chunk_bytes ||
      header.alignment_bytes != alignment_bytes) {
    return damaged_shard(path, "its header has impossible sizes");
  }
  const Digest run = digest_of(run_id);
  if (header.run_digest_high != run.high || header.run_digest_low != run.low) {
    return fail(ExitCode::checkpoint, "{} belongs to another run than the manifest beside it; {}", path,
                advice);
  }
  if (header.step != step) {
    return fail(ExitCode::checkpoint, "{} was written at step {}, the manifest beside it is of step {}; {}",
                path, header.step, step, advice);
  }
  return {};
}

Result<Place> read_trailer(File& file, const ShardFile& expected, std::uint64_t step) {
  const std::string& path = file.path();
  if (expected.bytes < sizeof(Header) + sizeof(Trailer))
    return damaged_shard(path, fmt::format("its {} bytes are too few for a shard file", expected.bytes));
  Place place{.trailer_offset = expected.bytes - sizeof(Trailer)};
  HF_TRY(const Trailer trailer, read_struct<Trailer>(file, place.trailer_offset));
  if (trailer.magic != trailer_magic || trailer.crc32c != checksum_of(trailer)) {
    return damaged_shard(path, fmt::format("the trailer in its last {} bytes is wrong", sizeof(Trailer)));
  }
  if (trailer.version != version || trailer.file_bytes != expected.bytes || trailer.step != step ||
      trailer.piece_count != expected.piece_count || trailer.index_crc32c != expected.index_crc32c) {
    return damaged_shard(path, "its trailer is not the one that the manifest beside it describes");
  }
  if (trailer.zero != 0) return damaged_shard(path, "its trailer has impossible numbers");
  place.index_offset = trailer.index_offset;
  place.index_bytes = trailer.index_bytes;
  place.index_crc32c = trailer.index_crc32c;
  place.piece_count = trailer.piece_count;
  place.base_count = trailer.base_count;
  // The index begins at the last multiple of the alignment that leaves room for it and the trailer.
  const std::uint64_t room = place.trailer_offset - sizeof(Header);
  const bool fits = place.index_bytes <= room && place.index_offset >= sizeof(Header) &&
                    place.index_offset <= place.trailer_offset - place.index_bytes &&
                    place.index_offset % alignment_bytes == 0;
  if (!fits || aligned(place.index_offset + place.index_bytes + sizeof(Trailer)) != expected.bytes) {
    return damaged_shard(path, fmt::format("its index is said to be at {}, {} bytes long, which cannot be",
                                           trailer.index_offset, trailer.index_bytes));
  }
  return place;
}

// Takes a record without its chunks, which follow in the cursor.
bool take_spec(IndexCursor& cursor, PieceRecord& record, ShardSpec& spec) {
  if (!cursor.take_value(record) || record.dtype > static_cast<std::uint32_t>(DType::fp64)) return false;
  spec.slice = record.slice;
  spec.slices = std::uint32_t{record.other_slices} + 1;
  spec.dtype = static_cast<DType>(record.dtype);
  spec.first_block = record.first_block;
  spec.block_count = record.block_count;
  const std::uint64_t name_bytes = std::uint64_t{record.tensor_name_bytes} + record.kind_bytes;
  return cursor.take_array(record.dimension_count, spec.global_shape) &&
         cursor.take_text(record.tensor_name_bytes, spec.tensor) &&
         cursor.take_text(record.kind_bytes, spec.kind) && cursor.take_padding(padding_to_8(name_bytes)) &&
         printable(spec.tensor) == spec.tensor && printable(spec.kind) == spec.kind;
}

// The record's numbers against each other, in an order that cannot overflow.
bool is_consistent(const PieceRecord& record, const ShardSpec& spec) {
  if (spec.slice >= spec.slices || spec.tensor_elements() % spec.slices != 0) return false;
  const std::uint64_t blocks = spec.slice_blocks();
  if (spec.first_block > blocks || spec.block_count > blocks - spec.first_block) return false;
  const std::uint64_t max_bytes = std::uint64_t{record.chunk_count} * chunk_bytes;
  if (spec.element_count() > max_bytes || spec.byte_count() != record.byte_count) return false;
  return record.chunk_count == chunk_count(record.byte_count);
}

std::uint64_t raw_bytes_of(const PieceRecord& record, std::uint32_t chunk) {
  return std::min(chunk_bytes, record.byte_count - chunk * chunk_bytes);
}

// Returns the stored checksum of a chunk that is stored as it is: its own checksum, continued over the zeros
// that follow it.
std::uint32_t stored_crc32c_of_raw(std::uint32_t raw_crc32c, std::uint64_t raw_bytes) {
  static constexpr std::array<std::byte, alignment_bytes> zeros{};
  return crc32c(std::span(zeros).first(aligned(raw_bytes) - raw_bytes), raw_crc32c);
}

// `next`: where the next chunk of this file must lie; no byte is between them.
bool take_chunk(IndexCursor& cursor, std::uint64_t raw_bytes, std::uint32_t base_count,
                std::uint64_t index_offset, std::uint64_t& next, StoredChunk& chunk) {
  ChunkRecord record{};
  if (!cursor.take_value(record) || record.raw_bytes != raw_bytes || record.stored_bytes == 0) return false;
  const bool is_raw = record.codec == static_cast<std::uint32_t>(ChunkCodec::raw);
  const bool is_planes = record.codec == static_cast<std::uint32_t>(ChunkCodec::planes);
  const bool raw_fits = is_raw && record.stored_bytes == raw_bytes &&
                        record.stored_crc32c == stored_crc32c_of_raw(record.raw_crc32c, raw_bytes);
  if (!raw_fits && !(is_planes && record.stored_bytes < raw_bytes)) return false;
  if (record.file > base_count || record.offset_bytes % alignment_bytes != 0) return false;
  if (record.file == 0) {
    if (record.offset_bytes != next || aligned(record.stored_bytes) > index_offset - next) return false;
    next += aligned(record.stored_bytes);
  }
  chunk = {.file = record.file,
           .codec = static_cast<ChunkCodec>(record.codec),
           .offset_bytes = record.offset_bytes,
           .stored_bytes = record.stored_bytes,
           .raw_bytes = record.raw_bytes,
           .raw_crc32c = record.raw_crc32c,
           .stored_crc32c = record.stored_crc32c,
           .digest = {.high = record.digest_high, .low = record.digest_low}};
  return true;
}

bool take_piece(IndexCursor& cursor, const Place& place, std::uint64_t& next, IndexedPiece& piece) {
  PieceRecord record{};
  if (!take_spec(cursor, record, piece.spec) || !is_consistent(record, piece.spec)) return false;
  if (record.chunk_count > cursor.left() / sizeof(ChunkRecord)) return false;
  piece.chunks.resize(record.chunk_count);
  for (std::uint32_t i = 0; i < record.chunk_count; ++i) {
    if (!take_chunk(cursor, raw_bytes_of(record, i), place.base_count, place.index_offset, next,
                    piece.chunks[i])) {
      return false;
    }
  }
  return true;
}

bool take_base(IndexCursor& cursor, BaseFile& base) {
  BaseRecord record{};
  if (!cursor.take_value(record) || record.zero != 0 || !cursor.take_text(record.name_bytes, base.name) ||
      !cursor.take_padding(padding_to_8(record.name_bytes))) {
    return false;
  }
  base.bytes = record.file_bytes;
  return checkpoint_names::is_file_name(base.name);
}

Result<ShardIndex> parse_index(const std::string& path, std::span<const std::byte> bytes,
                               const Place& place) {
  ShardIndex index;
  IndexCursor cursor(bytes);
  std::uint64_t next = sizeof(Header);
  for (std::uint32_t i = 0; i < place.piece_count; ++i) {
    IndexedPiece piece;
    if (!take_piece(cursor, place, next, piece))
      return damaged_shard(path, fmt::format("entry {} of its index contradicts itself", i));
    index.pieces.push_back(std::move(piece));
  }
  for (std::uint32_t i = 0; i < place.base_count; ++i) {
    BaseFile base;
    if (!take_base(cursor, base))
      return damaged_shard(path, fmt::format("entry {} of its base files contradicts itself", i));
    index.bases.push_back(std::move(base));
  }
  for (const IndexedPiece& piece : index.pieces) {
    for (const StoredChunk& chunk : piece.chunks) {
      if (chunk.file == 0) continue;
      const BaseFile& base = index.bases[chunk.file - 1];
      if (base.bytes < chunk.offset_bytes || base.bytes - chunk.offset_bytes < aligned(chunk.stored_bytes))
        return damaged_shard(path, fmt::format("a chunk is said to lie beyond the end of {}", base.name));
    }
  }
  if (cursor.left() != 0 || next != place.index_offset)
    return damaged_shard(path, "its index does not describe the whole file");
  return index;
}

void add_chunk(IndexBytes& bytes, const StoredChunk& chunk) {
  bytes.add(ChunkRecord{.offset_bytes = chunk.offset_bytes,
                        .stored_bytes = chunk.stored_bytes,
                        .raw_bytes = chunk.raw_bytes,
                        .file = chunk.file,
                        .codec = static_cast<std::uint32_t>(chunk.codec),
                        .raw_crc32c = chunk.raw_crc32c,
                        .stored_crc32c = chunk.stored_crc32c,
                        .digest_high = chunk.digest.high,
                        .digest_low = chunk.digest.low});
}

void add_piece(IndexBytes& bytes, const IndexedPiece& piece) {
  const ShardSpec& spec = piece.spec;
  bytes.add(PieceRecord{.byte_count = spec.byte_count(),
                        .first_block = spec.first_block,
                        .block_count = spec.block_count,
                        .dtype = static_cast<std::uint32_t>(spec.dtype),
                        .dimension_count = static_cast<std::uint32_t>(spec.global_shape.size()),
                        .tensor_name_bytes = static_cast<std::uint32_t>(spec.tensor.size()),
                        .kind_bytes = static_cast<std::uint32_t>(spec.kind.size()),
                        .chunk_count = static_cast<std::uint32_t>(piece.chunks.size()),
                        .slice = static_cast<std::uint16_t>(spec.slice),
                        .other_slices = static_cast<std::uint16_t>(spec.slices - 1)});
  bytes.add(std::as_bytes(std::span(spec.global_shape)));
  bytes.add(spec.tensor);
  bytes.add(spec.kind);
  bytes.pad();
  for (const StoredChunk& chunk : piece.chunks) add_chunk(bytes, chunk);
}

}  // namespace

Error damaged_shard(const std::string& path, std::string_view what) {
  return fail(ExitCode::checkpoint, "{} is damaged: {}; {}", path, what, advice);
}

Result<void> read_shard_bytes(File& file, std::uint64_t offset, std::span<std::byte> target) {
  Result<void> result = file.read_at(offset, target);
  if (!result.ok()) return with_code(ExitCode::checkpoint, result.error());
  return {};
}

std::uint64_t piece_record_bytes(const ShardSpec& spec) {
  const std::uint64_t names = spec.tensor.size() + spec.kind.size();
  return sizeof(PieceRecord) + 8 * spec.global_shape.size() + round_up(names, 8) +
         sizeof(ChunkRecord) * chunk_count(spec.byte_count());
}

std::uint64_t base_record_bytes(const std::string& name) {
  return sizeof(BaseRecord) + round_up(name.size(), 8);
}

std::vector<std::byte> encode_shard_index(const ShardIndex& index) {
  IndexBytes bytes;
  for (const IndexedPiece& piece : index.pieces) add_piece(bytes, piece);
  for (const BaseFile& base : index.bases) {
    bytes.add(BaseRecord{
        .file_bytes = base.bytes, .name_bytes = static_cast<std::uint32_t>(base.name.size()), .zero = 0});
    bytes.add(base.name);
    bytes.pad();
  }
  return bytes.take();
}

Result<ShardIndex> read_shard_index(File& file, const ShardFile& expected, std::uint64_t step,
                                    const std::string& run_id) {
  const std::string& path = file.path();
  Result<std::uint64_t> size = file.size();
  if (!size.ok()) return with_code(ExitCode::checkpoint, size.error());
  if (*size != expected.bytes)
    return damaged_shard(path,
                         fmt::format("it is {} bytes long, the manifest says {}", *size, expected.bytes));
  if (*size < sizeof(Header))
    return damaged_shard(path, fmt::format("its {} bytes are too few for a shard file", *size));
  HF_TRY(const Header header, read_struct<Header>(file, 0));
  HF_TRY_VOID(check_header(path, header, step, run_id));
  HF_TRY(const Place place, read_trailer(file, expected, step));
  if (place.trailer_offset - place.index_offset > text_limits::shard_index) {
    return damaged_shard(path, fmt::format("its index is said to have {} bytes, more than any has",
                                           place.trailer_offset - place.index_offset));
  }
  // The index and the zeros between it and the trailer.
  std::vector<std::byte> bytes(place.trailer_offset - place.index_offset);
  HF_TRY_VOID(read_shard_bytes(file, place.index_offset, bytes));
  const std::span<const std::byte> index = std::span(bytes).first(place.index_bytes);
  const std::span<const std::byte> zeros = std::span(bytes).subspan(place.index_bytes);
  if (crc32c(index) != place.index_crc32c) return damaged_shard(path, "the checksum of its index is wrong");
  if (!std::ranges::all_of(zeros, [](std::byte b) { return b == std::byte{0}; }))
    return damaged_shard(path, "the bytes between its index and its trailer are not zero");
  return parse_index(path, index, place);
}

}  // namespace holdfast::checkpoint
