// Encodes the bytes of a chunk as they are stored, and decodes them; FORMAT.md describes both codecs.
//
// The numbers of trained state are noise except for their exponents. So the words of a chunk are rotated left
// by one bit (the sign moves to the other end, the exponent fills the highest byte) and split into byte
// planes, and only the planes that compress go through zstd (higher levels gain nothing). The rest is stored
// as it is. After ZipNN (arXiv 2411.05239) and the numbers of z4ai and LMC.
//
// Pure except for its scratch memory: a ChunkCoder holds at most memory_bytes_max for chunks of 1 MiB (the
// planes of one, and zstd's state), serves one thread at a time, and gives back the bits that it was given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace holdfast::checkpoint {

enum class ChunkCodec : std::uint32_t { raw = 0, planes = 1 };

// Set of byte planes. Bit p is the plane of byte p of the rotated words, 0 the lowest.
using PlaneSet = std::uint32_t;
inline constexpr std::uint64_t planes_max = 8;
constexpr PlaneSet all_planes(std::uint64_t element_bytes) {
  return (PlaneSet{1} << element_bytes) - 1;
}

struct EncodedChunk {
  ChunkCodec codec = ChunkCodec::raw;
  std::uint64_t stored_bytes = 0;
  PlaneSet compressed = 0;  // planes that zstd made smaller; also set when the gain was too small to be used
  std::uint64_t saved_bytes = 0;
};

class ChunkCoder {
 public:
  // Smallest gain for which a chunk is stored compressed: the file's unit of allocation would consume a
  // smaller one.
  static constexpr std::uint64_t smallest_gain_bytes = 4096;

  static constexpr std::uint64_t memory_bytes_max = std::uint64_t{3} << 20;

  ChunkCoder();
  ~ChunkCoder();
  ChunkCoder(ChunkCoder&&) noexcept;
  ChunkCoder& operator=(ChunkCoder&&) noexcept;

  // Encodes whole elements of 2, 4 or 8 bytes; zstd is tried on the planes of `tried`. `target` has room for
  // raw.size() bytes and does not overlap it.
  EncodedChunk encode(std::span<const std::byte> raw, std::uint64_t element_bytes, PlaneSet tried,
                      std::span<std::byte> target);

  // Decodes `stored` into `raw`. Returns false when `stored` is not what encode() makes of so many bytes,
  // whatever wrote it: then the content of `raw` is undefined. Reads and writes nothing outside of both.
  bool decode(ChunkCodec codec, std::span<const std::byte> stored, std::uint64_t element_bytes,
              std::span<std::byte> raw);

 private:
  struct Contexts;
  std::uint64_t encode_planes(std::span<const std::byte> raw, std::uint64_t element_bytes, PlaneSet tried,
                              std::span<std::byte> target, PlaneSet& compressed);
  bool decode_planes(std::span<const std::byte> stored, std::uint64_t element_bytes,
                     std::span<std::byte> raw);
  std::unique_ptr<Contexts> contexts_;
  std::vector<std::byte> scratch_;
};

}  // namespace holdfast::checkpoint
