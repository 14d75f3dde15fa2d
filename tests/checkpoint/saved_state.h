// A small training state, cut up among any number of ranks, saved and compared. Shared by the checkpoint
// tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "checkpoint/find_checkpoint.h"
#include "checkpoint/store.h"
#include "runtime/core/random.h"

namespace holdfast::test {

struct StateTensor {
  ShardSpec spec;  // of the whole tensor, or of a whole slice
  std::vector<std::byte> bytes;
};

inline StateTensor make_tensor(const std::string& name, const std::string& kind, DType dtype,
                               std::vector<std::uint64_t> shape, std::uint64_t seed, std::uint32_t slice = 0,
                               std::uint32_t slices = 1) {
  StateTensor tensor{.spec = {.tensor = name,
                              .kind = kind,
                              .dtype = dtype,
                              .global_shape = std::move(shape),
                              .slice = slice,
                              .slices = slices},
                     .bytes = {}};
  tensor.spec.block_count = tensor.spec.slice_blocks();
  tensor.bytes.resize(tensor.spec.byte_count());
  const RandomStream random(seed, 7);
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i)
    tensor.bytes[i] = static_cast<std::byte>(random.bits(i));
  return tensor;
}

// Tensors that end inside a block, at a block, and after several chunks of 1 MiB (the last); one in two
// slices.
inline std::vector<StateTensor> mixed_state(std::uint64_t seed) {
  std::vector<StateTensor> state;
  state.push_back(make_tensor("embedding.weight", "weight", DType::fp32, {5, 3000}, seed));
  state.push_back(make_tensor("embedding.weight", "moment1", DType::fp32, {5, 3000}, seed + 1));
  state.push_back(make_tensor("norm.weight", "weight", DType::bf16, {7}, seed + 2));
  state.push_back(make_tensor("head.weight", "weight", DType::fp32, {2, 4096}, seed + 3));
  for (std::uint32_t slice = 0; slice < 2; ++slice)
    state.push_back(make_tensor("up.weight", "weight", DType::fp32, {4, 4500}, seed + 5 + slice, slice, 2));
  state.push_back(make_tensor("head.bias", "moment2", DType::fp32, {600001}, seed + 4));
  return state;
}

inline std::vector<StateTensor> tiny_state(std::uint64_t seed) {
  std::vector<StateTensor> state;
  state.push_back(make_tensor("norm.weight", "weight", DType::fp32, {67}, seed));
  state.push_back(make_tensor("norm.weight", "moment1", DType::fp32, {67}, seed + 1));
  return state;
}

// The piece of `whole` that rank `rank` of `ranks` holds: neighbouring blocks.
inline ShardSpec piece_of(const ShardSpec& whole, std::uint64_t rank, std::uint64_t ranks) {
  ShardSpec piece = whole;
  piece.first_block = whole.block_count * rank / ranks;
  piece.block_count = whole.block_count * (rank + 1) / ranks - piece.first_block;
  return piece;
}

inline std::vector<StatePiece> pieces_of(const std::vector<StateTensor>& state, std::uint64_t rank,
                                         std::uint64_t ranks) {
  std::vector<StatePiece> pieces;
  for (const StateTensor& tensor : state) {
    const ShardSpec spec = piece_of(tensor.spec, rank, ranks);
    const std::uint64_t first_byte = spec.first_element() * bytes_of(spec.dtype);
    pieces.push_back({.spec = spec, .bytes = std::span(tensor.bytes).subspan(first_byte, spec.byte_count())});
  }
  return pieces;
}

inline Manifest manifest_of_step(std::uint64_t step) {
  Manifest manifest;
  manifest.run_id = "0123456789abcdef0123456789abcdef";
  manifest.step = step;
  manifest.identity = "identity";
  manifest.config = "[run]\nseed = 1\n";
  manifest.values["data_cursor"] = std::to_string(step * 8);
  return manifest;
}

// The whole save as the trainer does it, without its barriers.
inline Result<void> save_checkpoint(Env& env, CheckpointStore& store, const std::vector<StateTensor>& state,
                                    Manifest manifest, std::uint64_t ranks,
                                    const ShardWriteOptions& options = {}) {
  HF_TRY_VOID(store.begin_save(manifest.step));
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    const std::vector<StatePiece> pieces = pieces_of(state, rank, ranks);
    HF_TRY(ShardFile shard, write_shard_file(env, store.pending_directory(manifest.step),
                                             CheckpointStore::shard_name(static_cast<int>(rank)),
                                             manifest.step, manifest.run_id, pieces, {}, options));
    manifest.shards.push_back(std::move(shard));
  }
  return store.publish(manifest);
}

#define HF_ASSERT_OK(...)                                       \
  do {                                                          \
    const auto& hf_outcome = (__VA_ARGS__);                     \
    ASSERT_TRUE(hf_outcome.ok()) << hf_outcome.error().message; \
  } while (false)

// Reads every tensor in `parts` parts and compares its bytes.
inline void expect_holds(Checkpoint& checkpoint, const std::vector<StateTensor>& state, std::uint64_t parts) {
  for (const StateTensor& tensor : state) {
    for (std::uint64_t part = 0; part < parts; ++part) {
      const ShardSpec spec = piece_of(tensor.spec, part, parts);
      std::vector<std::byte> bytes(spec.byte_count());
      const Checkpoint::Wanted wanted{.spec = spec, .target = bytes};
      HF_ASSERT_OK(checkpoint.read(std::span(&wanted, 1), static_cast<int>(parts)));
      const std::uint64_t first_byte = spec.first_element() * bytes_of(spec.dtype);
      ASSERT_TRUE(std::ranges::equal(bytes, std::span(tensor.bytes).subspan(first_byte, bytes.size())))
          << spec.tensor << " " << spec.kind << " part " << part << " of " << parts;
    }
  }
}

// The step that is found, or -1 when there is none or an error.
inline std::int64_t found_step(const std::string& path) {
  const Result<std::optional<FoundCheckpoint>> found = find_checkpoint(posix_env(), path);
  if (!found.ok() || !found.value().has_value()) return -1;
  return static_cast<std::int64_t>(found.value()->checkpoint.manifest().step);
}

inline std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}
inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
inline void flip_bit(const std::string& path, std::uint64_t offset, int bit) {
  std::fstream stream(path, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(stream.get());
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(static_cast<char>(byte ^ (1 << bit)));
}

}  // namespace holdfast::test
