#include "runtime/train/save.h"

#include <map>
#include <thread>

#include <nlohmann/json.hpp>

#include "parallel/agreement.h"
#include "runtime/config/document.h"
#include "runtime/model/parameters.h"

namespace holdfast {
namespace {

std::span<std::byte> bytes_of_state(const OwnedState& piece) {
  return std::as_writable_bytes(std::span(piece.data, piece.spec.element_count()));
}

Result<ShardFile> write_own_shard(Worker& worker, const CheckpointStore& store) {
  std::vector<StatePiece> pieces;
  for (const OwnedState& piece : worker.optimizer().state())
    pieces.push_back({piece.spec, bytes_of_state(piece)});
  const RunState& state = worker.state();
  return write_shard_file(worker.env(), store.pending_directory(state.step),
                          CheckpointStore::shard_name(worker.communicator().rank()), state.step, state.run_id,
                          pieces);
}

std::string to_text(const ShardFile& file) {
  return nlohmann::json::array({file.name, file.bytes, file.index_crc32c, file.piece_count}).dump();
}

ShardFile shard_from_text(const std::string& text) {
  const nlohmann::json json =
      nlohmann::json::parse(text);  // written by to_text of a rank that agreed on the binary
  return {.name = json[0], .bytes = json[1], .index_crc32c = json[2], .piece_count = json[3]};
}

Manifest make_manifest(Worker& worker, const std::vector<std::string>& shard_texts) {
  Manifest manifest;
  put_state(worker.state(), manifest);
  manifest.identity = config_identity(worker.config());
  manifest.config = dump_config(worker.config());
  manifest.values["device"] = worker.device().identity(worker.spec().dtype);
  for (const std::string& text : shard_texts) manifest.shards.push_back(shard_from_text(text));
  return manifest;
}

// Of ranks that read or write files: one may find them in memory and another on a disk far slower than is
// meant to be used, and rank 0 alone publishes and reads the result back.
Result<void> agree(Worker& worker, const Result<void>& mine) {
  constexpr std::int64_t slow_bytes_per_ms = 20'000;
  const auto patience_ms = static_cast<std::int64_t>(worker.state_bytes()) / slow_bytes_per_ms;
  const Waiter patient = worker.waiter().with_timeout(worker.waiter().timeout_ms() + patience_ms);
  return agree_on_outcome(worker.communicator(), patient, mine, worker.env().host_name());
}

Result<void> read_owned(Worker& worker, const std::string& directory, bool weights_only) {
  HF_TRY(Checkpoint checkpoint, Checkpoint::open(worker.env(), directory));
  if (!weights_only && checkpoint.manifest().identity != config_identity(worker.config())) {
    return fail(
        ExitCode::checkpoint,
        "{}: the manifest is of a run with other forbidden keys than its own stored config says; it was put "
        "together from two runs. Use another checkpoint",
        directory);
  }
  std::vector<Checkpoint::Wanted> wanted;
  for (const OwnedState& piece : worker.optimizer().state()) {
    if (!weights_only || piece.spec.kind == "weight") wanted.push_back({piece.spec, bytes_of_state(piece)});
  }
  HF_TRY_VOID(checkpoint.read(wanted));
  if (weights_only) return {};
  const Digest fingerprint = worker.state().data_fingerprint;
  HF_TRY(worker.state(), take_state(checkpoint.manifest(), directory));
  if (fingerprint == worker.state().data_fingerprint) return {};
  return fail(ExitCode::data,
              "the data files have changed since {} was saved (fingerprint {}, now {}): the order and "
              "content of what is "
              "left would not be the run's. Put the files back, or start a new run in another run.directory",
              directory, to_hex(worker.state().data_fingerprint), to_hex(fingerprint));
}

}  // namespace

Result<void> save_checkpoint(Worker& worker, CheckpointStore& store, std::int64_t keep) {
  const bool first = worker.communicator().rank() == 0;
  HF_TRY_VOID(agree(worker, first ? store.begin_save(worker.state().step) : Result<void>()));
  HF_FAULT_POINT(worker.faults(), "save.before_shard");
  const Result<ShardFile> shard = write_own_shard(worker, store);
  HF_FAULT_POINT(worker.faults(), "save.after_shard");
  if (Result<void> written = agree(worker, outcome_of(shard)); !written.ok()) {
    // What the others wrote is of no use; the error that made it so is the one to tell.
    if (first) static_cast<void>(store.abandon_save(worker.state().step).ok());
    return written;
  }
  HF_TRY(const std::vector<std::string> texts,
         all_gather_text(worker.communicator(), worker.waiter(), to_text(shard.value())));
  Result<void> published;
  if (first) published = store.publish(make_manifest(worker, texts));
  if (first && published.ok()) {
    // The save stands; what could not be removed is tried again after the next one.
    if (Result<void> retained = store.retain(keep); !retained.ok()) {
      fmt::print(stderr, "holdfast: an old checkpoint stays: {}\n", retained.error().message);
    }
  }
  return agree(worker, published);
}

Result<void> restore_checkpoint(Worker& worker, const std::string& checkpoint_directory) {
  HF_FAULT_POINT(worker.faults(), "load.before_read");
  HF_TRY_VOID(agree(worker, read_owned(worker, checkpoint_directory, /*weights_only=*/false)));
  return worker.publish_parameters();
}

Result<void> restore_weights(Worker& worker, const std::string& checkpoint_directory) {
  HF_TRY_VOID(agree(worker, read_owned(worker, checkpoint_directory, /*weights_only=*/true)));
  return worker.publish_parameters();
}

Result<void> initialize_weights(Worker& worker) {
  std::map<std::string, ParameterSpec> specs;
  for (ParameterSpec& spec : parameter_specs(worker.spec())) specs.emplace(spec.name, spec);
  const std::uint64_t parts = static_cast<std::uint64_t>(worker.device().threads());
  const std::vector<OwnedState> state = worker.optimizer().state();
  // An element's value follows from its number, so it does not matter which thread computes it.
  const auto fill_part = [&](std::uint64_t part) {
    for (const OwnedState& piece : state) {
      if (piece.spec.kind != "weight") continue;
      const std::uint64_t count = piece.spec.element_count();
      const std::uint64_t begin = count * part / parts, end = count * (part + 1) / parts;
      initial_values(specs.at(piece.spec.tensor), worker.config().run.seed,
                     piece.spec.first_element() + begin, std::span(piece.data + begin, end - begin));
    }
  };
  std::vector<std::jthread> others;  // joined at the end of the scope
  for (std::uint64_t part = 1; part < parts; ++part) others.emplace_back(fill_part, part);
  fill_part(0);
  others.clear();
  return worker.publish_parameters();
}

}  // namespace holdfast
