#include "runtime/save/save.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "parallel/comm/agreement.h"
#include "parallel/comm/device_wait.h"
#include "parallel/comm/gather.h"
#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/interop/checkpoint_contents.h"
#include "runtime/interop/tensor_reader.h"
#include "runtime/model/adapter_spec.h"
#include "runtime/model/parameters.h"
#include "runtime/os/background_job.h"
#include "runtime/os/console.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"
#include "runtime/save/checkpoint_parts.h"
#include "runtime/save/part_exchange.h"
#include "runtime/save/save_failure.h"

namespace holdfast::save {
namespace {

Result<ShardFile> write_own_shard(StateView& view, const CheckpointStore& store) {
  wait_for_device(view.rank.device, view.rank.communicator);
  HF_TRY_VOID(view.device_outcome());
  HF_FAILING_FAULT_POINT(view.rank.faults, write_point);
  const auto read = [&](std::span<const std::byte> part) {
    if (!view.rank.device.host_sees_memory())
      poll_peers(view.rank.communicator);  // the state comes in many small copies
    return view.rank.host_access.to_read(part);
  };
  const RunState& state = view.state;
  ShardWriteOptions options = shard_options(view, store);
  options.pace = [&](std::uint64_t) { mark(view.rank.watch); };  // slow progress is still progress
  return write_shard_file(view.rank.env, store.pending_directory(state.step),
                          CheckpointStore::shard_name(view.rank.communicator.rank()), state.step,
                          state.run_id, saved_state(view), read, options);
}

std::vector<OwnedState> of_kind(std::vector<OwnedState> pieces, std::string_view kind) {
  std::erase_if(pieces, [&](const OwnedState& piece) { return piece.spec.kind != kind; });
  return pieces;
}

// Writes zeros to all that is kept beside the weights. A start from weights alone expects zeros where a snapshot that is
// not sound was read in part, or where the memory was used before.
Result<void> clear_kept(StateView& view) {
  const auto clear = [](std::span<const OwnedState>,
                        std::span<const std::span<std::byte>> targets) -> Result<void> {
    for (const std::span<std::byte> target : targets) std::ranges::fill(target, std::byte{0});
    return {};
  };
  for (const StateKind& kind : view.rank.config.optimizer.state_kinds())
    HF_TRY_VOID(write_state(view.rank.host_access, of_kind(view.optimizer.state(), kind.name), clear));
  return {};
}

// Agrees on the outcome with all ranks. It waits long, because not all ranks publish, and some may have a
// slow disk.
Result<void> agree(StateView& view, const Result<void>& mine) {
  return agree_on_outcome(view.rank.communicator, patient_waiter(view), mine, view.rank.env.host_name());
}

// Checks that the config keys describe the same model, because tensors may fit and still mean something else
// (another number of heads). Frequencies, epsilon and what attention sees may change.
Result<void> check_same_model(const Config& stored, const Config& wanted, const std::string& directory) {
  std::string differences;
  for (const ConfigChange& change : diff_config(stored, wanted)) {
    const bool is_shape = change.key.starts_with("model.") && change.key != "model.preset" &&
                          !change.key.starts_with("model.rope_") &&
                          !change.key.starts_with("model.attention_") && change.key != "model.norm_epsilon" &&
                          change.key != "model.freeze";
    if (is_shape) differences += fmt::format("\n  {}: {} -> {}", change.key, change.before, change.after);
  }
  if (differences.empty()) return {};
  return fail(ExitCode::config,
              "run.initialize_from: {} holds weights of another model than this run's:{}\n"
              "Give the model keys of the weights (holdfast inspect shows them)",
              directory, differences);
}

// Checks that adapters in a checkpoint are this run's. Where it has none, this run's begin as they do without it.
Result<void> check_same_adapters(const Config& stored, const ModelSpec& wanted,
                                 const std::string& directory) {
  const LoraSpec there = make_model_spec(stored).lora;
  const LoraSpec& here = wanted.lora;
  if (!there.is_on() || text_of(there) == text_of(here)) return {};
  return fail(ExitCode::config,
              "run.initialize_from: {} holds {}, and this run has {}. Give the [lora] keys of the checkpoint "
              "to go on "
              "with them, or make them part of the weights first: holdfast export {} FOLDER --merge, then "
              "holdfast import FOLDER",
              directory, text_of(there), text_of(here), directory);
}

// Reads `pieces`, cut into this run's slices, from tensors that are stored in other slices or types.
Result<void> read_cut_anew(StateView& view, const std::vector<OwnedState>& pieces, TensorReader& tensors) {
  return write_state(
      view.rank.host_access, pieces,
      [&](std::span<const OwnedState> parts, std::span<const std::span<std::byte>> targets) -> Result<void> {
        for (std::size_t i = 0; i < parts.size(); ++i) {
          mark(view.rank.watch);  // slow progress is still progress
          HF_TRY_VOID(tensors.read_piece(parts[i].spec, targets[i]));
        }
        return {};
      });
}

// Writes the starting values of `pieces`, which are weights, from run.seed.
Result<void> fill_initial_values(StateView& view, const std::vector<OwnedState>& pieces) {
  std::map<std::string, ParameterSpec> specs;
  for (ParameterSpec& spec : parameter_specs(view.rank.spec)) specs.emplace(spec.name, spec);
  const std::uint64_t threads = static_cast<std::uint64_t>(view.rank.host_threads());
  constexpr std::uint64_t elements_at_once = 1 << 20;
  // An element's value follows from its number, so it does not matter which thread computes it.
  const auto fill = [&](std::span<const OwnedState> parts,
                        std::span<const std::span<std::byte>> targets) -> Result<void> {
    const auto fill_share = [&](std::uint64_t share) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const ShardSpec& spec = parts[i].spec;
        const std::uint64_t count = spec.element_count();
        const std::uint64_t begin = count * share / threads, end = count * (share + 1) / threads;
        auto* const values = reinterpret_cast<float*>(targets[i].data());
        for (std::uint64_t at = begin; at < end; at += elements_at_once) {
          const std::uint64_t size = std::min(elements_at_once, end - at);
          initial_values_of_slice(specs.at(spec.tensor), static_cast<int>(spec.slice),
                                  static_cast<int>(spec.slices), view.rank.config.run.seed,
                                  spec.first_element() + at, std::span(values + at, size));
          if (view.rank.watch != nullptr) view.rank.watch->moved(size * sizeof(float));  // sign of life
        }
      }
    };
    std::atomic<std::uint64_t> next_share = 0;
    const auto fill_shares = [&] {
      for (std::uint64_t share = next_share++; share < threads; share = next_share++) fill_share(share);
    };
    const BackgroundHelpers others(view.rank.env, "weights", static_cast<int>(threads) - 1, fill_shares);
    fill_shares();
    return {};
  };
  return write_state(view.rank.host_access, pieces, fill);
}

// Reads the weights alone, cut into this run's slices, whatever slices they were saved in.
Result<void> read_weights(StateView& view, const std::string& directory) {
  HF_TRY(Checkpoint checkpoint, Checkpoint::open(view.rank.env, directory));
  HF_TRY(const Config stored, config_of_checkpoint(view.rank.env, checkpoint));
  HF_TRY_VOID(check_same_model(stored, view.rank.config, directory));
  HF_TRY_VOID(check_same_adapters(stored, view.rank.spec, directory));
  TensorReader tensors(checkpoint, parameter_specs(view.rank.spec), view.rank.host_threads());
  std::vector<OwnedState> weights = of_kind(view.optimizer.state(), "weight"), begun;
  if (!stored.lora.is_on()) {
    begun = weights;
    std::erase_if(begun, [](const OwnedState& piece) { return !is_adapter(piece.spec.tensor); });
    std::erase_if(weights, [](const OwnedState& piece) { return is_adapter(piece.spec.tensor); });
  }
  HF_TRY_VOID(read_cut_anew(view, weights, tensors));
  return fill_initial_values(view, begun);
}

Result<Config> config_of(StateView& view, const Manifest& manifest, const std::string& place) {
  Result<LoadedConfig> loaded =
      load_stored_config(view.rank.env, manifest.config, place + " (stored config)");
  if (!loaded.ok()) return with_code(ExitCode::checkpoint, loaded.error());
  return loaded->config;
}

// Returns the RunState of a manifest, if it is of this run and its data still exist. `place` is for the error
// message. `stored`: the config in the manifest. Its lanes may differ from this run's.
Result<RunState> checked_state(StateView& view, const Manifest& manifest, const Config& stored,
                               const std::string& place) {
  Config expected = view.rank.config;
  expected.parallel.lanes = stored.parallel.lanes;
  expected.parallel.lane_block = stored.parallel.lane_block;
  expected.parallel.tensor_lanes = stored.parallel.tensor_lanes;
  if (!has_identity(expected, manifest.identity)) {
    return fail(
        ExitCode::checkpoint,
        "{}: the manifest is of a run with other forbidden keys than its own stored config says; it was put "
        "together from two runs. Use another checkpoint",
        place);
  }
  HF_TRY(RunState state, take_state(manifest, place));
  const Digest fingerprint = view.state.data_fingerprint;
  if (fingerprint == state.data_fingerprint) return state;
  return fail(ExitCode::data,
              "the data files have changed since {} was saved (fingerprint {}, now {}): the order and "
              "content of what is "
              "left would not be the run's. Put the files back, or start a new run in another run.directory",
              place, to_hex(state.data_fingerprint), to_hex(fingerprint));
}

bool is_cut_alike(const StateView& view, const Config& stored) {
  return stored.parallel.tensor_lanes == view.rank.config.parallel.tensor_lanes;
}

// Returns whether the stored state has this run's slices and types, so that it is read as it is.
bool is_stored_alike(const StateView& view, const Config& stored) {
  return is_cut_alike(view, stored) && stored.optimizer.moments == view.rank.config.optimizer.moments;
}

bool has_average(const Config& config) {
  return config.optimizer.ema > 0.0;
}

// Returns the pieces of the owned state that are stored, too: an average of the weights is new to a run that had none.
std::vector<OwnedState> pieces_in_both(StateView& view, const Config& stored) {
  std::vector<OwnedState> pieces = view.optimizer.state();
  if (!has_average(stored))
    std::erase_if(pieces, [](const OwnedState& piece) { return piece.spec.kind == "ema"; });
  return pieces;
}

// Reads the owned state as it is stored, or cut anew and converted, and begins an average that is not stored.
Result<void> read_stored(StateView& view, const Config& stored, StoredTensors source) {
  const std::vector<OwnedState> pieces = pieces_in_both(view, stored);
  if (is_stored_alike(view, stored)) {
    HF_TRY_VOID(read_state(view.rank.host_access, pieces, source.read));
  } else {
    TensorReader tensors(std::move(source), parameter_specs(view.rank.spec));
    HF_TRY_VOID(read_cut_anew(view, pieces, tensors));
  }
  if (!has_average(stored)) view.optimizer.launch_average_start(view.rank.device);
  return {};
}

Result<void> read_owned(StateView& view, const std::string& directory, Checkpoint::Shards shards) {
  HF_TRY(Checkpoint checkpoint, Checkpoint::open(view.rank.env, directory, shards));
  HF_TRY(const Config stored, config_of(view, checkpoint.manifest(), directory));
  HF_TRY(const RunState state, checked_state(view, checkpoint.manifest(), stored, directory));
  HF_TRY_VOID(read_stored(view, stored,
                          {.place = directory,
                           .tensors = checkpoint.tensors(),
                           .read = [&](std::span<const Checkpoint::Wanted> wanted) {
                             return checkpoint.read(wanted, view.rank.host_threads());
                           }}));
  view.state = state;
  return {};
}

// Reads the owned state of each rank. A rank that alone cannot is unfit.
Result<void> read_owned_together(StateView& view, const std::string& directory, Checkpoint::Shards shards) {
  const Result<void> mine = retry_storage(view.rank.env, [&]() -> Result<void> {
    HF_FAILING_FAULT_POINT(view.rank.faults, load_point);
    return read_owned(view, directory, shards);
  });
  return agree_on_fitness(view.rank.communicator, patient_waiter(view), mine, view.rank.env.host_name(),
                          Examined::own);
}

// Returns the pieces that this rank owns, in the slices and types in which a snapshot or a checkpoint has them.
std::vector<ShardSpec> wanted_as_stored(StateView& view, const Config& stored) {
  std::vector<ShardSpec> wanted;
  const std::vector<StateKind> kinds = stored.optimizer.state_kinds();
  for (const OwnedState& piece : pieces_in_both(view, stored)) {
    wanted.push_back(piece.spec);
    for (const StateKind& kind : kinds) {
      if (piece.spec.kind == kind.name) wanted.back().dtype = kind.dtype;
    }
  }
  if (is_cut_alike(view, stored)) return wanted;
  return pieces_in_slices(parameter_specs(view.rank.spec), wanted,
                          static_cast<std::uint32_t>(stored.parallel.tensor_lanes));
}

// Reads the state from a snapshot set. `wanted`: the pieces that this rank needs, as wanted_of_snapshot()
// returns them; all of them are in the set.
Result<void> read_set(StateView& view, const Config& stored, const std::string& place,
                      const std::vector<ShardSpec>& wanted, SnapshotSet& set) {
  return read_stored(view, stored,
                     {.place = place,
                      .tensors = whole_slices(wanted),
                      .read = [&](std::span<const Checkpoint::Wanted> parts) { return set.read(parts); }});
}

// Reads the state that read_set() reads, and compares it with the digests that the update which wrote it left, where
// the snapshot has them: what changed before it was copied, and on the way to the device. What differs is read once
// more. Returns whether the optimizer has these digests now.
Result<bool> read_set_checked(StateView& view, const Config& stored, const RunState& state,
                              const std::string& place, const std::vector<ShardSpec>& wanted,
                              SnapshotSet& set) {
  HF_TRY_VOID(read_set(view, stored, place, wanted, set));
  // The digests of a tensor cover its moments, which it has if it is trained, and its average.
  if (!view.optimizer.checks_state() || !is_stored_alike(view, stored) ||
      stored.model.freeze != view.rank.config.model.freeze ||
      has_average(stored) != has_average(view.rank.config))
    return false;
  std::vector<ShardSpec> weights;
  for (const OwnedState& piece : of_kind(view.optimizer.state(), "weight")) weights.push_back(piece.spec);
  HF_TRY(const std::vector<std::byte> digests, set.read_digests(weights));
  if (digests.empty()) return false;
  for (int attempt = 1;; ++attempt) {
    view.optimizer.load_digests(view.rank.device, digests);
    view.optimizer.check_state(view.rank.device, state.step, [&view] {
      wait_for_device(view.rank.device, view.rank.communicator);
      mark(view.rank.watch);  // a large shard takes seconds, which is no hang
    });
    HF_TRY_VOID(view.device_outcome());
    const std::optional<StateFinding> finding = view.optimizer.finding();
    if (!finding.has_value()) return true;
    if (attempt == 2) {
      return fail(
          ExitCode::checkpoint,
          "{} is damaged: the state that was loaded is not what the update of that step wrote; number of "
          "blocks that differ: {}, the first in tensor '{}'; it is skipped",
          place, finding->block_count, finding->first_block.tensor);
    }
    HF_TRY_VOID(read_set(view, stored, place, wanted, set));
  }
}

struct LoadedSnapshot {
  RunState state;
  bool has_digests = false;  // of the owned state
};

// Reads a snapshot, and returns the RunState once the owned state is read. All ranks call it together,
// including those that have met an error.
Result<LoadedSnapshot> read_snapshot(StateView& view, const SnapshotStep& step, const std::string& shm_run_id,
                                     std::vector<std::string>& changed_links) {
  const std::string place = fmt::format("the RAM snapshot of step {}", step.step);
  const auto is_slow_not_stuck = [&](std::uint64_t bytes) {
    if (view.rank.watch != nullptr) view.rank.watch->moved(bytes);
  };
  SnapshotSet set = SnapshotSet::open(view.rank.env, digest_of(shm_run_id), step, is_slow_not_stuck);
  HF_TRY(const std::string manifest_text, share_manifest(view, set));
  if (manifest_text.empty()) return set.why_empty(view.rank.env, step);
  HF_TRY(const Manifest manifest, decode_manifest(manifest_text, place));
  HF_TRY(const Config stored, config_of(view, manifest, place));
  const std::vector<ShardSpec> wanted = wanted_as_stored(view, stored);
  HF_TRY_VOID(fetch_missing_parts(view, set, wanted, changed_links));
  HF_TRY(const RunState state, checked_state(view, manifest, stored, place));
  HF_TRY(const bool has_digests, read_set_checked(view, stored, state, place, wanted, set));
  for (const std::string& damage : set.damages())
    print_message("{}; the replica of its rank's snapshot is sound and is used", damage);
  return LoadedSnapshot{state, has_digests};
}

}  // namespace

Result<std::uint64_t> save_checkpoint(StateView& view, CheckpointStore& store, std::int64_t keep,
                                      const std::optional<DiskTier>& given_tier) {
  const DiskTier tier = given_tier.has_value() ? *given_tier : DiskTier(view.rank.communicator.rank());
  HF_TRY_VOID(view.parameter_gather.finish());
  const auto agree_on = [&](const Result<void>& mine) {
    return agree_on_written(view, tier, store, view.state.step, mine);
  };
  HF_TRY_VOID(agree_on(tier.publishes() ? store.begin_save(view.state.step) : Result<void>()));
  Result<ShardFile> shard = [&] {
    const StorageWait storage(view.rank.watch, "a checkpoint");
    return write_shard_repeatedly(
        view.rank.env, tier, [&] { return write_own_shard(view, store); },
        [&] { return view.rank.communicator.abandoned(); });
  }();
  HF_FAULT_POINT(view.rank.faults, "save.after_shard");
  if (shard.ok()) {
    const std::uint64_t step = view.state.step;
    const auto is_slow_not_stuck = [&](std::uint64_t) { mark(view.rank.watch); };
    if (const Result<void> copied = tier.copy(step, store.pending_directory(step), *shard, is_slow_not_stuck);
        !copied.ok())
      shard = copied.error();
  }
  if (Result<void> written = agree_on(outcome_of(shard)); !written.ok()) {
    // The shards of other ranks are of no use, and the error that caused this is the one to report.
    if (tier.publishes()) static_cast<void>(store.abandon_save(view.state.step).ok());
    return written.error();
  }
  HF_TRY(std::vector<ShardFile> shards, gather(view.rank.communicator, view.rank.waiter, *shard));
  Manifest manifest = make_manifest(view, view.state, std::move(shards));
  note_checked(view, manifest);
  HF_TRY_VOID(describe_parts(view, tier, manifest));
  Result<void> published;
  if (tier.publishes()) published = store.publish(manifest);
  if (!tier.in_parts() && tier.publishes() && published.ok()) retain_or_complain(store, tier.kept(keep));
  HF_TRY_VOID(agree_on(published));
  if (tier.in_parts()) {
    store.all_hosts_have(state_of(manifest));
    if (tier.publishes()) retain_or_complain(store, tier.kept(keep));
  }
  return bytes_of_shards(manifest.shards);
}

Result<void> restore_checkpoint(StateView& view, const std::string& checkpoint_directory) {
  HF_FAULT_POINT(view.rank.faults, "load.before_read");
  HF_TRY_VOID(read_owned_together(view, checkpoint_directory, Checkpoint::Shards::all));
  return view.publish_parameters();
}

Result<void> restore_parts(StateView& view, const std::string& checkpoint_directory,
                           const std::string& content, const StorageDomains& domains,
                           const ClaimCheck& check) {
  HF_FAULT_POINT(view.rank.faults, "load.before_read");
  HF_TRY_VOID(fetch_missing_shards(
      view, domains, checkpoint_directory, content,
      [&](const Manifest& manifest) -> Result<std::vector<ShardSpec>> {
        HF_TRY(const Config stored, config_of(view, manifest, checkpoint_directory));
        return wanted_as_stored(view, stored);
      },
      check));
  HF_TRY_VOID(read_owned_together(view, checkpoint_directory, Checkpoint::Shards::present));
  return view.publish_parameters();
}

Result<void> restore_snapshot(StateView& view, const SnapshotStep& step, const std::string& shm_run_id,
                              std::vector<std::string>& changed_links) {
  HF_FAULT_POINT(view.rank.faults, "load.before_snapshot");
  const Result<LoadedSnapshot> loaded = read_snapshot(view, step, shm_run_id, changed_links);
  const Result<void> outcome = agree(view, outcome_of(loaded));
  if (!outcome.ok() && !view.rank.communicator.abandoned()) HF_TRY_VOID(clear_kept(view));
  HF_TRY_VOID(outcome);
  view.state = loaded->state;
  return view.publish_parameters(loaded->has_digests);
}

Result<void> restore_weights(StateView& view, const std::string& checkpoint_directory) {
  if (!view.is_zero) HF_TRY_VOID(clear_kept(view));
  HF_TRY_VOID(agree(view, read_weights(view, checkpoint_directory)));
  view.optimizer.launch_average_start(view.rank.device);
  return view.publish_parameters();
}

Result<void> initialize_weights(StateView& view) {
  if (!view.is_zero) HF_TRY_VOID(clear_kept(view));
  HF_TRY_VOID(fill_initial_values(view, of_kind(view.optimizer.state(), "weight")));
  view.optimizer.launch_average_start(view.rank.device);
  return view.publish_parameters();
}

}  // namespace holdfast::save
