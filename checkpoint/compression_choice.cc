#include "checkpoint/compression_choice.h"

#include <algorithm>
#include <bit>

namespace holdfast::checkpoint {
namespace {

constexpr double newest_weight = 0.25;  // of a measurement in its running mean

void follow(double& mean, double value) {
  mean += newest_weight * (value - mean);
}

}  // namespace

std::optional<Compression> compression_of(std::string_view name) {
  if (name == "automatic") return Compression::automatic;
  if (name == "none") return Compression::none;
  if (name == "always") return Compression::always;
  return std::nullopt;
}

bool CompressionChoice::pays(const Kind& kind) const {
  if (kind.gaining == 0) return false;
  return mode_ == Compression::always || kind.gain * write_ns_per_byte_ > kind.cost_ns_per_byte;
}

PlaneSet CompressionChoice::planes_for(const std::string& kind, DType dtype) {
  const PlaneSet all = all_planes(bytes_of(dtype));
  if (mode_ == Compression::none) return 0;
  // The gain cannot be weighed without a measurement of the disk.
  if (mode_ == Compression::automatic && write_ns_per_byte_ <= 0) return 0;
  Kind& state = kinds_[{kind, dtype}];
  state.on_trial = state.chunks_to_trial <= 0;
  if (state.on_trial) return all;
  --state.chunks_to_trial;
  return pays(state) ? state.gaining : 0;
}

void CompressionChoice::saw_chunk(const std::string& kind, DType dtype, std::uint64_t raw_bytes,
                                  PlaneSet tried, const EncodedChunk& encoded, std::int64_t duration_ns) {
  // A chunk that is too small to be compressed says nothing about its kind.
  if (tried == 0 || raw_bytes <= ChunkCoder::smallest_gain_bytes) return;
  Kind& state = kinds_[{kind, dtype}];
  const double bytes = static_cast<double>(raw_bytes);
  const double cost = static_cast<double>(duration_ns) / bytes;
  const double gain = static_cast<double>(encoded.saved_bytes) / bytes;
  if (!state.on_trial) {
    follow(state.cost_ns_per_byte, cost);
    follow(state.gain, gain);
    return;
  }
  // Planes that gain nothing are left out from here on, with their share of the time.
  const double tried_count = std::popcount(tried);
  state.gaining = encoded.codec == ChunkCodec::planes ? encoded.compressed : 0;
  state.gain = gain;
  state.cost_ns_per_byte = cost * std::popcount(state.gaining) / tried_count;
  if (pays(state)) {
    state.pause_chunks = first_pause_chunks;
    state.chunks_to_trial = review_chunks;
  } else {
    state.chunks_to_trial = state.pause_chunks;
    state.pause_chunks = std::min(2 * state.pause_chunks, longest_pause_chunks);
  }
}

void CompressionChoice::saw_write(std::uint64_t bytes, std::int64_t duration_ns) {
  if (bytes == 0) return;
  // A clock that did not move still means "known, and fast".
  const double measured = std::max(static_cast<double>(duration_ns) / static_cast<double>(bytes), 1e-6);
  if (write_ns_per_byte_ <= 0) write_ns_per_byte_ = measured;
  follow(write_ns_per_byte_, measured);
}

}  // namespace holdfast::checkpoint
