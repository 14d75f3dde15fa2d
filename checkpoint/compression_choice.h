// Decides whether the next chunk is worth compressing, from the gain and cost of the ones before. Only the
// writer's thread compresses, so it pays only where it takes less time than the disk needs for the bytes it
// saves: on a fast disk never. "always" compresses every chunk that gets smaller. The choice never changes
// the bytes that are read back.
//
// Pure: the caller measures. Decides by kind ("weight", "moment1", ...) and element type, because within one
// of these all chunks are alike. Not thread-safe; one for each file that is written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/chunk_codec.h"
#include "runtime/core/tensor.h"

namespace holdfast::checkpoint {

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
