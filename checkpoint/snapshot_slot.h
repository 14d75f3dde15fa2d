// Snapshot slot: memory with a copy of the state that one rank holds after one step. It describes itself, so
// a run can resume from it in shared memory, which outlives its process.
//
//   0             header, 4,096 bytes: run, writer, generation, step, rank; whether it is sealed
//   4096          pieces, each at a multiple of 4,096, as they are in memory
//   after them    where they are known: block digests, 8 bytes for each block of a weight
//   index offset  the manifest without shards, the ShardSpecs of the pieces and their CRC32C (none: the block digests
//                 are in their place), and the number and the CRC32C of the block digests if there are any, as JSON
//
// A block digest is what the update that wrote a block of a weight and its moments left of it
// (runtime/core/block_digest.h). The checksums are of what was copied; with the digests a reader finds what had changed
// before that. Pieces that the update itself has written to the slot have no checksum but those.
//
// Every byte that a reader uses is under a checksum or a digest. A slot is filled from the front and sealed last: one
// whose writer died on the way is not sealed, and counts for nothing. It never leaves the hosts of its run,
// so its numbers have the processor's byte order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/paced.h"
#include "checkpoint/shard_file.h"
#include "runtime/core/digest.h"
#include "runtime/core/json.h"
#include "runtime/core/result.h"
#include "runtime/core/shard_spec.h"

namespace holdfast::checkpoint {

// Turns a slot, sealed or not, into one that counts for nothing. Done before anything else in it changes.
void unseal_snapshot(std::span<std::byte> slot);

// Identity of a snapshot: whose state at which time. Steps are ordered by (generation, step).
struct SnapshotIdentity {
  Digest run;                // digest of the run's id
  Digest host;               // digest of the host's name
  std::uint64_t writer = 0;  // writer number of the start that made it (StartPoint::writer)
  std::uint64_t generation = 0;
  std::uint64_t step = 0;
  std::uint32_t rank = 0, ranks = 0;  // the state is in the slots of so many ranks
  bool operator==(const SnapshotIdentity&) const = default;
};

// Formats specs as text: for the index of a slot, and for messages from rank to rank.
std::string to_text(std::span<const ShardSpec> specs);
std::vector<ShardSpec> specs_from_text(const std::string& text);  // written by to_text

class SnapshotSlot {
 public:
  static constexpr std::uint64_t alignment_bytes = 4096;
  static constexpr std::uint64_t chunk_bytes = std::uint64_t{1} << 20;  // the same as in a shard file
  // Returns the bytes of memory needed for these pieces and a manifest of at most so many bytes.
  static std::uint64_t bytes_for(std::span<const ShardSpec> pieces, std::uint64_t manifest_bytes_max);
  // Returns whether block digests are of the blocks of this piece.
  static bool has_digests(const ShardSpec& piece) { return piece.kind == "weight"; }
  // Makes a slot in `memory`, which has bytes_for() bytes from an address that is a multiple of 4,096, and
  // outlives this object.
  SnapshotSlot(std::span<std::byte> memory, const std::vector<ShardSpec>& pieces);

  // Begins a snapshot. Then every piece is copied once, or its memory is written by whoever asked for room(), and seal()
  // writes its identity. The parts of one chunk come front to back; several threads may copy, each other chunks.
  void begin();
  void copy(std::size_t piece, std::uint64_t offset, std::span<const std::byte> part);
  std::span<std::byte> room(std::size_t piece);
  // Returns the memory of a piece's block digests, which the caller fills if it knows those of all pieces that have
  // any; it says so to seal(). `alone`: they are the only checksums, because some piece was not copied by copy(). Every
  // piece is then a weight with digests, or a moment of one that is a piece as well.
  std::span<std::byte> digests(std::size_t piece) const { return digests_[piece]; }
  enum class Digests { unknown, filled, alone };
  void seal(const SnapshotIdentity& identity, const Manifest& manifest, Digests digests = Digests::unknown);
  // Returns the pieces; they have their checksums once copy() has copied them.
  const std::vector<StatePiece>& pieces() const { return pieces_; }

 private:
  std::span<std::byte> memory_;
  std::string specs_text_;  // specs in the index
  std::vector<StatePiece> pieces_;
  std::vector<std::vector<std::uint32_t>> chunk_crc32c_;  // by piece and chunk
  std::vector<std::span<std::byte>> digests_;             // by piece
  std::span<std::byte> all_digests_;                      // after the last piece
};

// SnapshotReplica: memory that becomes the replica of a sealed slot of another process: the same bytes,
// except that they name this host.
//
//   replica.begin(sealed_bytes);   // of the slot
//   receive(replica.body());       // the part of the slot after its first page
//   HF_TRY_VOID(replica.seal(first_page, identity, place));
class SnapshotReplica {
 public:
  // Makes a replica in `memory`, with the same conditions as for SnapshotSlot.
  explicit SnapshotReplica(std::span<std::byte> memory) : memory_(memory) {}
  std::uint64_t capacity_bytes() const { return memory_.size(); }
  // Begins a replica and discards the previous content. `sealed_bytes`: more than a page, at most
  // capacity_bytes().
  void begin(std::uint64_t sealed_bytes);
  std::span<std::byte> body() const { return body_; }
  // Seals the replica, or leaves it unsealed and returns ExitCode::checkpoint: where a checksum is wrong, or
  // the slot is another one than `expected`. `first_page` is that of the slot; `expected.host` is the digest
  // of this host's name, which the replica has instead of the slot's.
  Result<void> seal(std::span<const std::byte> first_page, const SnapshotIdentity& expected,
                    const std::string& place);

 private:
  std::span<std::byte> memory_, body_;
};

// SnapshotReader: a sealed slot whose header and index were verified. Threads: one.
class SnapshotReader {
 public:
  // Opens a slot in `memory`, which outlives the reader. ExitCode::checkpoint when the slot is not sealed or
  // damaged; `place` is for the error message.
  static Result<SnapshotReader> open(std::span<const std::byte> memory, const std::string& place);
  // Reads the header alone, with the same errors.
  static Result<SnapshotIdentity> identify(std::span<const std::byte> memory, const std::string& place);
  // Returns the length of a sealed slot; bytes after it have no meaning. The same errors.
  static Result<std::uint64_t> sealed_bytes(std::span<const std::byte> memory, const std::string& place);

  const SnapshotIdentity& identity() const { return identity_; }
  const Manifest& manifest() const { return manifest_; }
  const std::vector<ShardSpec>& pieces() const { return specs_; }
  // Returns a piece after its checksum was verified, or the digests of a weight and its moments. Verifies in parts and
  // calls `pace` with the bytes of each.
  Result<std::span<const std::byte>> piece(std::size_t index, const Pace& pace = {});
  bool has_verified(std::size_t index) const { return verified_[index]; }
  // Returns the block digests of a piece that was verified; empty where they are unknown.
  std::span<const std::byte> digests_of(std::size_t index) const { return digests_[index]; }

 private:
  friend class SnapshotReplica;
  static Result<SnapshotReader> open(std::span<const std::byte> first_page, std::span<const std::byte> memory,
                                     const std::string& place);
  Result<void> parse_index(std::span<const std::byte> index);
  bool find_digests(const Json& json, std::uint64_t offset);
  bool find_blocks();
  Result<void> verify_digests();
  Result<void> verify_blocks(std::size_t index, const Pace& pace);
  std::string place_;
  std::span<const std::byte> memory_;
  SnapshotIdentity identity_;
  Manifest manifest_;
  std::vector<ShardSpec> specs_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint32_t> crc32c_;  // empty: digests alone
  // StatePieces are the pieces whose blocks have a digest in common, by their numbers: a weight, its moments and its
  // average; none: the weight has none.
  struct StatePieces {
    std::size_t weight = 0;
    std::optional<std::size_t> moment1 = {}, moment2 = {}, ema = {};
  };
  std::vector<StatePieces> together_;  // by piece, where there are digests alone
  std::vector<bool> verified_;
  std::vector<std::span<const std::byte>> digests_;  // by piece
  std::span<const std::byte> all_digests_;           // empty: unknown
  std::uint32_t digests_crc32c_ = 0;
  bool digests_verified_ = false;
};

}  // namespace holdfast::checkpoint
