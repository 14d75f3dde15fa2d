// The fixed-width structs of a shard file, as FORMAT.md describes them. Everything is little-endian.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "runtime/core/crc32c.h"

namespace holdfast::checkpoint::shard_format {

static_assert(std::endian::native == std::endian::little,
              "shard files are little-endian, and so is this code");

inline constexpr std::uint32_t version = 2;
inline constexpr std::uint64_t alignment_bytes = 4096;  // of stored chunks, the index and the file
inline constexpr std::uint64_t chunk_bytes = std::uint64_t{1} << 20;  // of a piece
inline constexpr std::array<char, 8> header_magic = {'H', 'F', 'S', 'H', 'A', 'R', 'D', '\0'};
inline constexpr std::array<char, 8> trailer_magic = {'H', 'F', 'S', 'H', 'E', 'N', 'D', '\0'};

// The first bytes of the file.
struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint64_t step;
  std::uint64_t run_digest_high;  // XXH3-128 of the run id
  std::uint64_t run_digest_low;
  std::uint32_t chunk_bytes;
  std::uint32_t alignment_bytes;
  std::array<std::uint8_t, 4044> zero;
  std::uint32_t crc32c;  // of all bytes before
};
static_assert(sizeof(Header) == alignment_bytes);
static_assert(offsetof(Header, step) == 16 && offsetof(Header, chunk_bytes) == 40 &&
              offsetof(Header, crc32c) == 4092);

// Record of a piece. Followed by dimension_count u64 extents, the tensor's name, the kind, zeros up to a
// multiple of 8, then chunk_count ChunkRecords.
struct PieceRecord {
  std::uint64_t byte_count;
  std::uint64_t first_block;
  std::uint64_t block_count;
  std::uint32_t dtype;
  std::uint32_t dimension_count;
  std::uint32_t tensor_name_bytes;
  std::uint32_t kind_bytes;
  std::uint32_t chunk_count;
  std::uint16_t slice;
  std::uint16_t other_slices;  // other slices of the tensor, so 0 when it is whole
};
static_assert(sizeof(PieceRecord) == 48 && offsetof(PieceRecord, dtype) == 24);

struct ChunkRecord {
  std::uint64_t offset_bytes;
  std::uint32_t stored_bytes;  // without the zeros that follow
  std::uint32_t raw_bytes;
  std::uint32_t file;  // 0 = this one, k = the k-th base file
  std::uint32_t codec;
  std::uint32_t raw_crc32c;
  std::uint32_t stored_crc32c;  // of the stored bytes and the zeros that follow
  std::uint64_t digest_high;    // XXH3-128 of the raw bytes; both 0 when it was not taken
  std::uint64_t digest_low;
};
static_assert(sizeof(ChunkRecord) == 48 && offsetof(ChunkRecord, digest_high) == 32);

// Record of a base file; these follow the pieces. Followed by the name, then zeros up to a multiple of 8.
struct BaseRecord {
  std::uint64_t file_bytes;
  std::uint32_t name_bytes;
  std::uint32_t zero;
};
static_assert(sizeof(BaseRecord) == 16);

// The last bytes of the file.
struct Trailer {
  std::uint64_t index_offset;
  std::uint64_t index_bytes;
  std::uint64_t file_bytes;
  std::uint64_t step;
  std::uint32_t piece_count;
  std::uint32_t index_crc32c;
  std::uint32_t base_count;
  std::uint32_t zero;
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t crc32c;  // of all bytes before
};
static_assert(sizeof(Trailer) == 64 && offsetof(Trailer, magic) == 48 && offsetof(Trailer, crc32c) == 60);

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr std::uint64_t aligned(std::uint64_t bytes) {
  return round_up(bytes, alignment_bytes);
}
constexpr std::uint64_t chunk_count(std::uint64_t byte_count) {
  return byte_count / chunk_bytes + (byte_count % chunk_bytes != 0 ? 1 : 0);
}
constexpr std::uint64_t padding_to_8(std::uint64_t bytes) {
  return (8 - bytes % 8) % 8;
}

// Returns the checksum that the last four bytes of a Header or Trailer must hold.
template <typename Struct>
std::uint32_t checksum_of(const Struct& value) {
  return crc32c(std::as_bytes(std::span(&value, 1)).first(sizeof(Struct) - sizeof(std::uint32_t)));
}

}  // namespace holdfast::checkpoint::shard_format
