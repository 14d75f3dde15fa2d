// A snapshot slot in shared memory: as it is, and sealed with checksums that fit.
#include "checkpoint/snapshot_slot.h"
#include "runtime/core/crc32c.h"
#include "tests/fuzz/fuzz_env.h"

namespace holdfast::fuzz {
namespace {

constexpr std::uint64_t page_bytes = 4096;
// Places of the header's numbers (checkpoint/snapshot_slot.cc).
constexpr std::size_t sealed_byte = 12, index_offset_byte = 80, index_bytes_byte = 88, index_crc_byte = 96,
                      crc_byte = 100;
constexpr std::uint32_t sealed_mark = 0x5ea1ed01;

bool read_slot(std::span<const std::byte> memory) {
  const auto refused = [](const Error& error) {
    require_sentence(error, {ExitCode::checkpoint});
    return false;
  };
  const Result<SnapshotIdentity> identity = SnapshotReader::identify(memory, "slot");
  const Result<std::uint64_t> sealed_bytes = SnapshotReader::sealed_bytes(memory, "slot");
  require(identity.ok() == sealed_bytes.ok(), "only one of both takes the header");
  Result<SnapshotReader> reader = SnapshotReader::open(memory, "slot");
  if (!reader.ok()) return refused(reader.error());
  require(sealed_bytes.ok() && *sealed_bytes <= memory.size(), "it is longer than its memory");
  for (std::size_t i = 0; i < reader->pieces().size(); ++i) {
    const Result<std::span<const std::byte>> piece = reader->piece(i);
    if (!piece.ok()) return refused(piece.error());
    require(piece->size() == reader->pieces()[i].byte_count(), "a piece has another length");
    require(piece->data() >= memory.data() && piece->data() + piece->size() <= memory.data() + memory.size(),
            "a piece lies outside");
  }
  require(to_text(specs_from_text(to_text(reader->pieces()))) == to_text(reader->pieces()),
          "the pieces are written as other ones");
  return true;
}

// Does what a rank that keeps a replica does with the same bytes.
void receive(std::span<const std::byte> memory) {
  const Result<std::uint64_t> bytes = SnapshotReader::sealed_bytes(memory, "slot");
  if (!bytes.ok() || *bytes <= page_bytes) return;
  std::vector<std::byte> room(memory.size());
  SnapshotReplica replica{room};
  replica.begin(*bytes);
  std::ranges::copy(memory.subspan(page_bytes, replica.body().size()), replica.body().begin());
  SnapshotIdentity announced = SnapshotReader::identify(memory, "slot").value();
  announced.host = Digest{};
  const Result<void> sealed = replica.seal(memory.first(page_bytes), announced, "replica");
  if (!sealed.ok()) return require_sentence(sealed.error(), {ExitCode::checkpoint});
  require(SnapshotReader::open(room, "replica").ok(), "what was sealed is not taken");
}

std::vector<std::byte> sealed_slot(Input input) {
  std::vector<std::byte> slot(input.begin(), input.end());
  if (slot.size() < page_bytes) return slot;
  store(slot, sealed_byte, sealed_mark);
  const auto offset = std::min<std::uint64_t>(load<std::uint64_t>(slot, index_offset_byte), slot.size());
  const auto bytes =
      std::min<std::uint64_t>(load<std::uint64_t>(slot, index_bytes_byte), slot.size() - offset);
  store(slot, index_crc_byte, crc32c(std::span<const std::byte>(slot).subspan(offset, bytes)));
  store(slot, crc_byte, crc32c(std::span<const std::byte>(slot).first(crc_byte)));
  return slot;
}

bool run_snapshot_slot(Input input) {
  const bool accepted = read_slot(input);
  const std::vector<std::byte> slot = sealed_slot(input);
  static_cast<void>(read_slot(slot));
  receive(slot);
  return accepted;
}

std::vector<std::byte> slot_of(const std::vector<ShardSpec>& specs) {
  FuzzEnv env;
  const std::uint64_t bytes = SnapshotSlot::bytes_for(specs, 1000);
  const auto memory = env.create_shared_memory("slot", bytes).value();
  SnapshotSlot slot(memory->bytes(), specs);
  slot.begin();
  for (std::size_t i = 0; i < specs.size(); ++i)
    slot.copy(i, 0, std::vector<std::byte>(specs[i].byte_count(), std::byte{5}));
  Manifest manifest;
  manifest.run_id = "0123456789abcdef0123456789abcdef";
  manifest.values = {{"cursor", "17"}};
  slot.seal({.run = digest_of(std::string_view("run")),
             .host = {},
             .writer = 3,
             .generation = 1,
             .step = 9,
             .rank = 1,
             .ranks = 2},
            manifest);
  return env.shared_memory("slot");
}

std::vector<Seed> snapshot_slot_seeds() {
  return {{"two", slot_of({{.tensor = "a", .kind = "weight", .global_shape = {2, 3}, .block_count = 1},
                           {.tensor = "b",
                            .kind = "moment1",
                            .dtype = DType::bf16,
                            .global_shape = {100},
                            .slice = 1,
                            .slices = 2,
                            .block_count = 1}})},
          {"none", slot_of({})}};
}

constexpr std::string_view snapshot_slot_words[] = {
    "[", "]", "{", "}", ",", "null", "\"", "-1", "18446744073709551615", "4294967295"};

}  // namespace

extern const Target snapshot_slot_target;
const Target snapshot_slot_target{.name = "snapshot_slot",
                                  .run = run_snapshot_slot,
                                  .seeds = snapshot_slot_seeds,
                                  .memory_per_byte = 256,
                                  .memory_beside = 64 << 10,
                                  .words = snapshot_slot_words};

}  // namespace holdfast::fuzz
