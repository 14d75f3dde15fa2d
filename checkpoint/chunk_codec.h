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
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/tensor.h"

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

// Decides whether the next chunk is worth compressing, from the gain and cost of the ones before. Only the
// writer's thread compresses, so it pays only where it takes less time than the disk needs for the bytes it
// saves: on a fast disk never. "always" compresses every chunk that gets smaller. The choice never changes
// the bytes that are read back.
//
// Pure: the caller measures. Decides by kind ("weight", "moment1", ...) and element type, because within one
// of these all chunks are alike. Not thread-safe; one for each file that is written.
enum class Compression { automatic, none, always };
// Parses "automatic", "none" or "always".
std::optional<Compression> compression_of(std::string_view name);

class CompressionChoice {
 public:
  explicit CompressionChoice(Compression mode) : mode_(mode) {}

  // Returns the planes to try on the next chunk of this kind; none = store it as it is.
  PlaneSet planes_for(const std::string& kind, DType dtype);
  // Takes in the result of those planes for a chunk of `raw_bytes`.
  void saw_chunk(const std::string& kind, DType dtype, std::uint64_t raw_bytes, PlaneSet tried,
                 const EncodedChunk& encoded, std::int64_t duration_ns);
  // Takes in how long the disk took for `bytes`, whatever was done meanwhile.
  void saw_write(std::uint64_t bytes, std::int64_t duration_ns);

 private:
  // Numbers of chunks after which a kind that does not pay is tried again, ever more of them: tensor contents
  // and disks change.
  static constexpr std::int64_t first_pause_chunks = 16, longest_pause_chunks = 1024;
  // Number of chunks between two trials of every plane, which find planes that have begun to compress.
  static constexpr std::int64_t review_chunks = 256;

  struct Kind {
    PlaneSet gaining = 0;         // result of the latest trial of all planes
    double cost_ns_per_byte = 0;  // per raw byte, with those planes
    double gain = 0;              // bytes saved / raw bytes
    bool on_trial = false;        // the next saw_chunk() belongs to a trial of all planes
    std::int64_t chunks_to_trial = 0;
    std::int64_t pause_chunks = first_pause_chunks;
  };
  bool pays(const Kind& kind) const;

  Compression mode_;
  std::map<std::pair<std::string, DType>, Kind> kinds_;
  double write_ns_per_byte_ = 0;  // 0 = not known yet
};

}  // namespace holdfast::checkpoint
