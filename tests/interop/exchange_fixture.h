// A model's weights in a checkpoint, cut into any number of slices and pieces, every element with a value of
// its own.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/model/spec.h"
#include "runtime/os/fault_point.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {

inline ModelSpec small_spec(const std::string& style, int tensor_lanes) {
  Config config;
  config.model = {.preset = "",
                  .style = style,
                  .layers = 2,
                  .heads = 8,
                  .kv_heads = 4,
                  .width = 64,
                  .feed_forward = 80,
                  .vocabulary = 300,
                  .head = "untied"};
  config.training.sequence_length = 24;
  config.parallel.tensor_lanes = tensor_lanes;
  return make_model_spec(config);
}

// Element `index` of a whole tensor.
inline float value_at(const std::string& tensor, std::uint64_t index) {
  return static_cast<float>(std::hash<std::string>()(tensor) % 97) * 65536.0F + static_cast<float>(index);
}

// Saves the weights with spec.tensor_lanes slices, every slice in pieces of two blocks, over `files` files;
// returns the checkpoint's directory.
inline std::string save_weights(const ModelSpec& spec, const std::string& run_directory, std::size_t files) {
  Env& env = posix_env();
  FaultPoints faults;
  CheckpointStore store(env, faults, run_directory);
  const std::string run_id(32, 'a');
  std::vector<std::vector<StatePiece>> pieces(files);
  std::vector<std::vector<float>> memory;
  std::size_t next = 0;
  for (const ParameterSpec& parameter : parameter_specs(spec)) {
    const int slices = parameter.cut == Cut::none ? 1 : spec.tensor_lanes;
    for (int slice = 0; slice < slices; ++slice) {
      ShardSpec whole{.tensor = parameter.name,
                      .kind = "weight",
                      .global_shape = parameter.shape,
                      .slice = static_cast<std::uint32_t>(slice),
                      .slices = static_cast<std::uint32_t>(slices)};
      for (whole.first_block = 0; whole.first_block < whole.slice_blocks(); whole.first_block += 2) {
        whole.block_count = std::min<std::uint64_t>(2, whole.slice_blocks() - whole.first_block);
        std::vector<float>& values = memory.emplace_back(whole.element_count());
        for (const SliceRun& run :
             runs_of_slice(parameter, slice, slices, whole.first_element(), whole.element_count())) {
          for (std::uint64_t i = 0; i < run.count; ++i)
            values[run.slice_offset - whole.first_element() + i] =
                value_at(parameter.name, run.tensor_offset + i);
        }
        pieces[next++ % files].push_back({.spec = whole, .bytes = std::as_bytes(std::span(values))});
      }
    }
  }
  EXPECT_TRUE(store.begin_save(1).ok());
  Manifest manifest;
  manifest.run_id = run_id;
  manifest.step = 1;
  for (std::size_t i = 0; i < files; ++i) {
    Result<ShardFile> shard =
        write_shard_file(env, store.pending_directory(1), CheckpointStore::shard_name(static_cast<int>(i)), 1,
                         run_id, pieces[i]);
    EXPECT_TRUE(shard.ok()) << shard.error().message;
    manifest.shards.push_back(*shard);
  }
  const Result<void> published = store.publish(manifest);
  EXPECT_TRUE(published.ok()) << published.error().message;
  return store.checkpoint_directory(1);
}

}  // namespace holdfast::test
