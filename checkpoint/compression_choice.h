// Whether the next chunk is worth compressing, from what the ones before gained and cost. Compressing is the
// writer's thread's work and nobody else's, so it pays only where it takes less time than the disk needs for
// the bytes it saves: on a fast disk never. "always" compresses whatever gets smaller. What is chosen never
// changes what is read back.
//
// Pure: the caller measures. By kind ("weight", "moment1", ...) and element type, because within one of these
// all chunks are alike. Not thread-safe; one for each file that is written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/chunk_codec.h"
#include "runtime/core/tensor.h"

namespace holdfast::inline checkpoint {

enum class Compression { automatic, none, always };
// "automatic", "none", "always".
std::optional<Compression> compression_of(std::string_view name);

class CompressionChoice {
 public:
  explicit CompressionChoice(Compression mode) : mode_(mode) {}

  // The planes to try on the next chunk of this kind; none = store it as it is.
  PlaneSet planes_for(const std::string& kind, DType dtype);
  // What that made of a chunk of `raw_bytes`.
  void saw_chunk(const std::string& kind, DType dtype, std::uint64_t raw_bytes, PlaneSet tried,
                 const EncodedChunk& encoded, std::int64_t duration_ns);
  // So long the disk took for `bytes`, whatever was done meanwhile.
  void saw_write(std::uint64_t bytes, std::int64_t duration_ns);

 private:
  // A kind that does not pay is tried again after ever more chunks: fillings and disks change.
  static constexpr std::int64_t first_pause_chunks = 16, longest_pause_chunks = 1024;
  // A trial of every plane once in so many chunks finds planes that have begun to compress.
  static constexpr std::int64_t review_chunks = 256;

  struct Kind {
    PlaneSet gaining = 0;         // of the latest trial of all planes
    double cost_ns_per_byte = 0;  // of raw bytes, with those planes
    double gain = 0;              // bytes saved / raw bytes
    bool on_trial = false;        // the chunk that planes_for was last asked about
    std::int64_t chunks_to_trial = 0;
    std::int64_t pause_chunks = first_pause_chunks;
  };
  bool pays(const Kind& kind) const;

  Compression mode_;
  std::map<std::pair<std::string, DType>, Kind> kinds_;
  double write_ns_per_byte_ = 0;  // 0 = not known yet
};

}  // namespace holdfast::inline checkpoint
