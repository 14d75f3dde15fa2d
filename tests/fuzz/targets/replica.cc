// Target of what comes on the connection of a replica, to the rank that keeps it and to the one that sends
// it; as it is, and with numbers and checksums that fit.
#include "checkpoint/transfer.h"

#include "runtime/core/crc32c.h"
#include "tests/fuzz/fuzz_env.h"
#include "tests/fuzz/scripted_connection.h"

namespace holdfast::fuzz {
namespace {

constexpr std::size_t slot_page_bytes = SnapshotSlot::alignment_bytes, bytes_by_kind = 8 * slot_page_bytes;
// These are the places of the numbers of the hello (checkpoint/transfer.cc) and of a slot's header
// (snapshot_slot.cc).
constexpr std::size_t replica_hello_bytes = 160, generation_byte = 48, content_bytes_byte = 80,
                      hello_crc_byte = 152;
constexpr std::size_t slot_index_offset_byte = 80, slot_index_bytes_byte = 88, slot_index_crc_byte = 96,
                      slot_crc_byte = 100;
constexpr std::uint32_t replica_go_on = 1, replica_kept = 5;
constexpr SnapshotStep announced{.writer = 3, .generation = 1, .step = 9};

SnapshotIdentity replica_identity() {
  return {.run = digest_of(std::string_view("run")),
          .host = digest_of(std::string_view("here")),
          .writer = announced.writer,
          .generation = announced.generation,
          .step = announced.step,
          .rank = 1,
          .ranks = 2};
}

std::vector<std::byte> slot_to_send() {
  const std::vector<ShardSpec> specs = {
      {.tensor = "a", .kind = "weight", .global_shape = {2, 3}, .block_count = 1}};
  FuzzEnv env;
  const std::unique_ptr<SharedMemory> memory =
      env.create_shared_memory("slot", SnapshotSlot::bytes_for(specs, 1000)).value();
  SnapshotSlot slot(memory->bytes(), specs);
  slot.begin();
  slot.copy(0, 0, std::vector<std::byte>(specs[0].byte_count(), std::byte{5}));
  Manifest manifest;
  manifest.run_id = "0123456789abcdef0123456789abcdef";
  slot.seal(replica_identity(), manifest);
  return env.shared_memory("slot");
}

// Returns the answers of a keeper that takes it.
std::vector<std::byte> replica_answers() {
  return answer_frames({replica_go_on, replica_kept});
}

// Returns what the rank says that sends its replica.
std::vector<std::byte> sent_replica() {
  FaultPoints faults;
  const std::vector<std::byte> keeper = replica_answers(), slot = slot_to_send();
  ScriptedConnection connection(keeper);
  require(send_replica(connection, slot, {}, faults).ok(), "a keeper that takes it is not believed");
  return connection.heard();
}

bool keep_replica(Input input) {
  FaultPoints faults;
  std::vector<std::byte> first(bytes_by_kind), second(bytes_by_kind);
  const SnapshotIdentity expected = replica_identity();
  ReplicaKeeper keeper({.run = expected.run, .writer = expected.writer, .rank = 1, .ranks = 2},
                       digest_of(std::string_view("there")), {first, second}, faults);
  ScriptedConnection connection(input);
  const Result<SnapshotStep> kept = keeper.receive(connection);
  int replicas = 0;
  for (const std::vector<std::byte>* place : {&first, &second}) {
    const Result<SnapshotIdentity> found = SnapshotReader::identify(*place, "kept");
    if (!found.ok()) continue;
    ++replicas;
    require(kept.ok() && found->run == expected.run && found->writer == expected.writer && found->rank == 1 &&
                found->ranks == 2 && found->step == kept->step && found->generation == kept->generation,
            "a place holds another replica than was announced");
    require(SnapshotReader::open(*place, "kept").ok(), "a replica that cannot be read is kept");
  }
  require(replicas == (kept.ok() ? 1 : 0), "the keeper says something else than it holds");
  if (!kept.ok()) require_sentence(kept.error(), {ExitCode::communication, ExitCode::checkpoint});
  return kept.ok();
}

bool send_to_keeper(Input input) {
  static const std::vector<std::byte> slot = slot_to_send();
  FaultPoints faults;
  ScriptedConnection connection(input);
  const Result<void> sent = send_replica(connection, slot, {}, faults);
  if (!sent.ok()) require_sentence(sent.error(), {ExitCode::communication});
  return sent.ok() && connection.said_all();
}

// Returns the input with a hello that a keeper takes, and checksums that fit; the header of the slot comes
// last.
std::vector<std::byte> fitting_replica(Input input) {
  static const std::vector<std::byte> model = sent_replica();
  std::vector<std::byte> said(input.begin(), input.end());
  if (said.size() < replica_hello_bytes + slot_page_bytes) return said;
  std::ranges::copy(std::span(model).first(generation_byte), said.begin());
  store(said, content_bytes_byte, std::uint64_t{said.size() - replica_hello_bytes - slot_page_bytes});
  store(said, hello_crc_byte, crc32c(std::span<const std::byte>(said).first(hello_crc_byte)));
  const std::span<std::byte> header = std::span(said).last(slot_page_bytes);
  const std::span<const std::byte> body = std::span<const std::byte>(said).subspan(
      replica_hello_bytes, said.size() - replica_hello_bytes - slot_page_bytes);
  const std::uint64_t offset = std::min<std::uint64_t>(
      std::max<std::uint64_t>(load<std::uint64_t>(header, slot_index_offset_byte), slot_page_bytes) -
          slot_page_bytes,
      body.size());
  const std::uint64_t bytes =
      std::min<std::uint64_t>(load<std::uint64_t>(header, slot_index_bytes_byte), body.size() - offset);
  store(header, slot_index_crc_byte, crc32c(body.subspan(offset, bytes)));
  store(header, slot_crc_byte, crc32c(std::span<const std::byte>(header).first(slot_crc_byte)));
  return said;
}

bool run_replica(Input input) {
  const bool is_replica = keep_replica(input), is_answer = send_to_keeper(input);
  static_cast<void>(keep_replica(fitting_replica(input)));
  return is_replica || is_answer;
}

std::vector<Seed> replica_seeds() {
  return {{"replica", sent_replica()}, {"answers", replica_answers()}};
}

}  // namespace

extern const Target replica_target;
const Target replica_target{.name = "replica",
                            .run = run_replica,
                            .seeds = replica_seeds,
                            .memory_per_byte = 256,
                            .memory_beside = 256 << 10};

}  // namespace holdfast::fuzz
