#include "runtime/save/save.h"
#include "runtime/interop/checkpoint_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <thread>

#include "parallel/comm/agreement.h"
#include "parallel/comm/device_wait.h"
#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/interop/tensor_reader.h"
#include "runtime/model/parameters.h"
#include "runtime/os/tell.h"
#include "runtime/rank/watch.h"
#include "runtime/save/checkpoint_parts.h"
#include "runtime/save/device_state.h"
#include "runtime/save/shard_fetch.h"
#include "runtime/save/shard_options.h"
#include "runtime/save/snapshot_exchange.h"

namespace holdfast {
namespace {

Result<ShardFile> write_own_shard(Worker& worker, const CheckpointStore& store) {
  wait_for_device(worker.device(), worker.communicator());
  HF_TRY_VOID(worker.device_outcome());
  const auto read = [&](std::span<const std::byte> part) {
    if (!worker.device().host_sees_memory())
      poll_peers(worker.communicator());  // it comes in many small copies
    return worker.host_access().to_read(part);
  };
  const RunState& state = worker.state();
  ShardWriteOptions options = shard_options(worker.config().checkpoint, store);
  options.pace = [&](std::uint64_t) { mark(worker.watch()); };  // slow is not stuck
  return write_shard_file(worker.env(), store.pending_directory(state.step),
                          CheckpointStore::shard_name(worker.communicator().rank()), state.step, state.run_id,
                          saved_state(worker), read, options);
}

std::vector<OwnedState> of_kind(std::vector<OwnedState> pieces, std::string_view kind) {
  std::erase_if(pieces, [&](const OwnedState& piece) { return piece.spec.kind != kind; });
  return pieces;
}

// Writes zeros: a start from weights alone expects them where a snapshot that is not sound was read in part,
// or where the memory was used before.
Result<void> clear_moments(Worker& worker) {
  const auto clear = [](std::span<const OwnedState>,
                        std::span<const std::span<std::byte>> targets) -> Result<void> {
    for (const std::span<std::byte> target : targets) std::ranges::fill(target, std::byte{0});
    return {};
  };
  for (const char* kind : {"moment1", "moment2"})
    HF_TRY_VOID(write_state(worker.host_access(), of_kind(worker.optimizer().state(), kind), clear));
  return {};
}

// Not all ranks publish, and some may have a slow disk: the others wait for them.
Result<void> agree(Worker& worker, const Result<void>& mine) {
  return agree_on_outcome(worker.communicator(), patient_waiter(worker), mine, worker.env().host_name());
}

// Tensors may fit and still mean something else (another number of heads), so the keys decide. Frequencies
// and epsilon may change.
Result<void> check_same_model(const Config& stored, const Config& wanted, const std::string& directory) {
  std::string differences;
  for (const ConfigChange& change : diff_config(stored, wanted)) {
    const bool is_shape = change.key.starts_with("model.") && change.key != "model.preset" &&
                          change.key != "model.rope_theta" && change.key != "model.norm_epsilon";
    if (is_shape) differences += fmt::format("\n  {}: {} -> {}", change.key, change.before, change.after);
  }
  if (differences.empty()) return {};
  return fail(ExitCode::config,
              "run.initialize_from: {} holds weights of another model than this run's:{}\n"
              "Give the model keys of the weights (holdfast inspect shows them)",
              directory, differences);
}

// `pieces`, cut into this run's slices, from tensors that are stored in other ones.
Result<void> read_cut_anew(Worker& worker, const std::vector<OwnedState>& pieces, TensorReader& tensors) {
  return write_state(
      worker.host_access(), pieces,
      [&](std::span<const OwnedState> parts, std::span<const std::span<std::byte>> targets) -> Result<void> {
        for (std::size_t i = 0; i < parts.size(); ++i) {
          mark(worker.watch());  // slow is not stuck
          HF_TRY_VOID(tensors.read_piece(parts[i].spec, targets[i]));
        }
        return {};
      });
}

// The weights alone, cut into this run's slices, whatever they were saved in.
Result<void> read_weights(Worker& worker, const std::string& directory) {
  HF_TRY(Checkpoint checkpoint, Checkpoint::open(worker.env(), directory));
  HF_TRY(const Config stored, config_of_checkpoint(worker.env(), checkpoint));
  HF_TRY_VOID(check_same_model(stored, worker.config(), directory));
  TensorReader tensors(checkpoint, parameter_specs(worker.spec()), worker.host_threads());
  return read_cut_anew(worker, of_kind(worker.optimizer().state(), "weight"), tensors);
}

Result<Config> config_of(Worker& worker, const Manifest& manifest, const std::string& place) {
  Result<LoadedConfig> loaded = load_stored_config(worker.env(), manifest.config, place + " (stored config)");
  if (!loaded.ok()) return Error{ExitCode::checkpoint, loaded.error().message};
  return loaded->config;
}

// The RunState of a manifest, if it is of this run and its data are still there; `place` is for the sentence.
// `stored`: the config in it. The lanes may be others than this run's.
Result<RunState> checked_state(Worker& worker, const Manifest& manifest, const Config& stored,
                               const std::string& place) {
  Config expected = worker.config();
  expected.parallel.lanes = stored.parallel.lanes;
  expected.parallel.tensor_lanes = stored.parallel.tensor_lanes;
  if (manifest.identity != config_identity(expected)) {
    return fail(
        ExitCode::checkpoint,
        "{}: the manifest is of a run with other forbidden keys than its own stored config says; it was put "
        "together from two runs. Use another checkpoint",
        place);
  }
  HF_TRY(RunState state, take_state(manifest, place));
  const Digest fingerprint = worker.state().data_fingerprint;
  if (fingerprint == state.data_fingerprint) return state;
  return fail(ExitCode::data,
              "the data files have changed since {} was saved (fingerprint {}, now {}): the order and "
              "content of what is "
              "left would not be the run's. Put the files back, or start a new run in another run.directory",
              place, to_hex(state.data_fingerprint), to_hex(fingerprint));
}

bool is_cut_alike(const Worker& worker, const Config& stored) {
  return stored.parallel.tensor_lanes == worker.config().parallel.tensor_lanes;
}

Result<void> read_owned(Worker& worker, const std::string& directory, Checkpoint::Shards shards) {
  HF_TRY(Checkpoint checkpoint, Checkpoint::open(worker.env(), directory, shards));
  HF_TRY(const Config stored, config_of(worker, checkpoint.manifest(), directory));
  HF_TRY(const RunState state, checked_state(worker, checkpoint.manifest(), stored, directory));
  const std::vector<OwnedState> pieces = worker.optimizer().state();
  if (is_cut_alike(worker, stored)) {
    HF_TRY_VOID(read_state(worker.host_access(), pieces, checkpoint, worker.host_threads()));
  } else {
    TensorReader tensors(checkpoint, parameter_specs(worker.spec()), worker.host_threads());
    HF_TRY_VOID(read_cut_anew(worker, pieces, tensors));
  }
  worker.state() = state;
  return {};
}

// Returns what this rank owns, in the slices in which a snapshot or a checkpoint has it.
std::vector<ShardSpec> wanted_in_cut_of(Worker& worker, const Config& stored) {
  std::vector<ShardSpec> wanted;
  for (const OwnedState& piece : worker.optimizer().state()) wanted.push_back(piece.spec);
  if (is_cut_alike(worker, stored)) return wanted;
  return pieces_in_slices(parameter_specs(worker.spec()), wanted,
                          static_cast<std::uint32_t>(stored.parallel.tensor_lanes));
}

// `wanted`: what of it this rank needs, as wanted_of_snapshot() has it; all of that is in the set.
Result<void> read_set(Worker& worker, const Config& stored, const std::string& place,
                      const std::vector<ShardSpec>& wanted, SnapshotSet& set) {
  const auto read = [&](std::span<const Checkpoint::Wanted> parts) { return set.read(parts); };
  const std::vector<OwnedState> pieces = worker.optimizer().state();
  if (is_cut_alike(worker, stored)) return read_state(worker.host_access(), pieces, read);
  TensorReader tensors({.place = place, .tensors = whole_slices(wanted), .read = read},
                       parameter_specs(worker.spec()));
  return read_cut_anew(worker, pieces, tensors);
}

// All ranks together, also where one has met an error: the RunState, once the owned state is read.
Result<RunState> read_snapshot(Worker& worker, const SnapshotStep& step, const std::string& memory_id) {
  const std::string place = fmt::format("the RAM snapshot of step {}", step.step);
  const auto is_slow_not_stuck = [&](std::uint64_t bytes) {
    if (worker.watch() != nullptr) worker.watch()->moved(bytes);
  };
  SnapshotSet set = SnapshotSet::open(worker.env(), digest_of(memory_id), step, is_slow_not_stuck);
  HF_TRY(const std::string manifest_text, share_manifest(worker, set));
  if (manifest_text.empty()) return set.why_empty(worker.env(), step);
  HF_TRY(const Manifest manifest, decode_manifest(manifest_text, place));
  HF_TRY(const Config stored, config_of(worker, manifest, place));
  const std::vector<ShardSpec> wanted = wanted_in_cut_of(worker, stored);
  HF_TRY_VOID(fetch_missing_parts(worker, set, wanted));
  HF_TRY(const RunState state, checked_state(worker, manifest, stored, place));
  HF_TRY_VOID(read_set(worker, stored, place, wanted, set));
  for (const std::string& damage : set.damages())
    tell("{}; the replica of its rank's snapshot is sound and is used", damage);
  return state;
}

}  // namespace

Result<std::uint64_t> save_checkpoint(Worker& worker, CheckpointStore& store, std::int64_t keep,
                                      const std::optional<DiskTier>& given_tier) {
  const DiskTier tier = given_tier.has_value() ? *given_tier : DiskTier(worker.communicator().rank());
  HF_TRY_VOID(worker.parameter_gather().finish());
  HF_TRY_VOID(agree(worker, tier.publishes() ? store.begin_save(worker.state().step) : Result<void>()));
  HF_FAULT_POINT(worker.faults(), "save.before_shard");
  Result<ShardFile> shard = write_own_shard(worker, store);
  HF_FAULT_POINT(worker.faults(), "save.after_shard");
  if (shard.ok()) {
    const std::uint64_t step = worker.state().step;
    const auto is_slow_not_stuck = [&](std::uint64_t) { mark(worker.watch()); };
    if (const Result<void> copied = tier.copy(step, store.pending_directory(step), *shard, is_slow_not_stuck);
        !copied.ok())
      shard = copied.error();
  }
  if (Result<void> written = agree(worker, outcome_of(shard)); !written.ok()) {
    // What the others wrote is of no use; the error that made it so is the one to tell.
    if (tier.publishes()) static_cast<void>(store.abandon_save(worker.state().step).ok());
    return written.error();
  }
  HF_TRY(const std::vector<std::string> texts,
         all_gather_text(worker.communicator(), worker.waiter(), to_text(shard.value())));
  Manifest manifest = make_manifest(worker, worker.state(), texts);
  HF_TRY_VOID(describe_parts(worker, tier, manifest));
  Result<void> published;
  if (tier.publishes()) published = store.publish(manifest);
  if (!tier.in_parts() && tier.publishes() && published.ok()) retain_or_complain(store, tier.kept(keep));
  HF_TRY_VOID(agree(worker, published));
  if (tier.in_parts()) {
    store.all_hosts_have(state_of(manifest));
    if (tier.publishes()) retain_or_complain(store, tier.kept(keep));
  }
  return bytes_of_shards(texts);
}

Result<void> restore_checkpoint(Worker& worker, const std::string& checkpoint_directory) {
  HF_FAULT_POINT(worker.faults(), "load.before_read");
  HF_TRY_VOID(agree(worker, read_owned(worker, checkpoint_directory, Checkpoint::Shards::all)));
  return worker.publish_parameters();
}

Result<void> restore_parts(Worker& worker, const std::string& checkpoint_directory,
                           const std::string& content, const RunPlaces& places, const ClaimCheck& check) {
  HF_FAULT_POINT(worker.faults(), "load.before_read");
  HF_TRY_VOID(fetch_missing_shards(
      worker, places, checkpoint_directory, content,
      [&](const Manifest& manifest) -> Result<std::vector<ShardSpec>> {
        HF_TRY(const Config stored, config_of(worker, manifest, checkpoint_directory));
        return wanted_in_cut_of(worker, stored);
      },
      check));
  HF_TRY_VOID(agree(worker, read_owned(worker, checkpoint_directory, Checkpoint::Shards::present)));
  return worker.publish_parameters();
}

Result<void> restore_snapshot(Worker& worker, const SnapshotStep& step, const std::string& memory_id) {
  HF_FAULT_POINT(worker.faults(), "load.before_snapshot");
  const Result<RunState> state = read_snapshot(worker, step, memory_id);
  const Result<void> outcome = agree(worker, outcome_of(state));
  if (!outcome.ok() && !worker.communicator().abandoned()) HF_TRY_VOID(clear_moments(worker));
  HF_TRY_VOID(outcome);
  worker.state() = *state;
  return worker.publish_parameters();
}

Result<void> restore_weights(Worker& worker, const std::string& checkpoint_directory) {
  if (!worker.arena_was_zero()) HF_TRY_VOID(clear_moments(worker));
  HF_TRY_VOID(agree(worker, read_weights(worker, checkpoint_directory)));
  return worker.publish_parameters();
}

Result<void> initialize_weights(Worker& worker) {
  if (!worker.arena_was_zero()) HF_TRY_VOID(clear_moments(worker));
  std::map<std::string, ParameterSpec> specs;
  for (ParameterSpec& spec : parameter_specs(worker.spec())) specs.emplace(spec.name, spec);
  const std::uint64_t threads = static_cast<std::uint64_t>(worker.host_threads());
  constexpr std::uint64_t elements_at_once = 1 << 20;
  // An element's value follows from its number, so it does not matter which thread computes it.
  const auto fill = [&](std::span<const OwnedState> parts,
                        std::span<const std::span<std::byte>> targets) -> Result<void> {
    const auto fill_share = [&](std::uint64_t thread) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const ShardSpec& spec = parts[i].spec;
        const std::uint64_t count = spec.element_count();
        const std::uint64_t begin = count * thread / threads, end = count * (thread + 1) / threads;
        auto* const values = reinterpret_cast<float*>(targets[i].data());
        for (std::uint64_t at = begin; at < end; at += elements_at_once) {
          const std::uint64_t size = std::min(elements_at_once, end - at);
          initial_values_of_slice(specs.at(spec.tensor), static_cast<int>(spec.slice),
                                  static_cast<int>(spec.slices), worker.config().run.seed,
                                  spec.first_element() + at, std::span(values + at, size));
          if (worker.watch() != nullptr) worker.watch()->moved(size * sizeof(float));  // a sign of life
        }
      }
    };
    std::vector<std::jthread> others;  // joined at the end of the scope
    for (std::uint64_t thread = 1; thread < threads; ++thread) others.emplace_back(fill_share, thread);
    fill_share(0);
    return {};
  };
  HF_TRY_VOID(write_state(worker.host_access(), of_kind(worker.optimizer().state(), "weight"), fill));
  return worker.publish_parameters();
}

}  // namespace holdfast
