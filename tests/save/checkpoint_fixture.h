// Checkpoints written by hand: any model, any values, cut for any number of ranks.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/model/spec.h"
#include "runtime/save/run_state.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {

// Fills the elements [first_element, first_element + values.size()) of a tensor of the spec's kind.
using FillValues = std::function<void(const ShardSpec& piece, std::span<float> values)>;

inline Config resolved_config(const std::string& text) {
  const std::string whole = text +
                            "[run]\ndirectory = \"run\"\n[data]\nsources = [{ path = \"corpus.txt\" }]\n"
                            "[parallel]\nlanes = 1\n";
  Result<LoadedConfig> loaded = load_config_text(posix_env(), whole, "test.toml", {});
  EXPECT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_TRUE(resolve_config(loaded->config, 0).ok());
  return loaded->config;
}

struct CheckpointContent {
  Config config;
  RunState state;
  int ranks = 1;
  FillValues fill;
};

// Publishes it in the run directory and returns the checkpoint's own.
inline std::string write_checkpoint(const std::string& run_directory, const CheckpointContent& content) {
  Env& env = posix_env();
  FaultPoints faults;
  CheckpointStore store(env, faults, run_directory);
  EXPECT_TRUE(store.begin_save(content.state.step).ok());
  Manifest manifest;
  put_state(content.state, manifest);
  manifest.identity = config_identity(content.config);
  manifest.config = dump_config(content.config);
  const BucketPlan plan(backward_buckets(make_model_spec(content.config)), content.ranks);
  for (int rank = 0; rank < content.ranks; ++rank) {
    std::vector<StatePiece> pieces;
    std::vector<std::vector<float>> memory;
    for (const char* kind : {"weight", "moment1", "moment2"}) {
      for (const ShardSpec& spec : plan.shard_specs(rank, kind)) {
        memory.emplace_back(spec.element_count());
        content.fill(spec, memory.back());
        pieces.push_back({.spec = spec, .bytes = std::as_bytes(std::span(memory.back()))});
      }
    }
    const Result<ShardFile> file =
        write_shard_file(env, store.pending_directory(content.state.step), CheckpointStore::shard_name(rank),
                         content.state.step, content.state.run_id, pieces);
    EXPECT_TRUE(file.ok()) << file.error().message;
    manifest.shards.push_back(file.value());
  }
  const Result<void> published = store.publish(manifest);
  EXPECT_TRUE(published.ok()) << published.error().message;
  return store.checkpoint_directory(content.state.step);
}

inline RunState example_state() {
  return {.run_id = std::string(32, 'a'),
          .step = 50,
          .data_cursor = 400,
          .data_digest = {.high = 1, .low = 2},
          .loss_digest = {.high = 3, .low = 4},
          .data_fingerprint = {.high = 5, .low = 6}};
}

}  // namespace holdfast::test
