// SealedSession: what two ends of a connection say so that each knows that the other has the secret of the
// run, and so that nobody between them can forge, change, repeat, reorder or leave out a byte unnoticed.
//
//   caller -> listener   hello:  "HFSEAL01", 32 random bytes, a proof over them (which may be an old one)
//   listener -> caller   answer: 32 random bytes, a proof over both
//   caller -> listener   proof over both
//   then, each way       records: length (4 bytes), that many bytes, a tag (16 bytes)
//
// Proofs and the two keys of the records are BLAKE2b, keyed with the secret, over a word for what they are,
// the purpose of the connection and both random numbers; so they are of this connection alone, and one
// purpose's peers are no other's. A tag is that of ChaCha20-Poly1305 (RFC 8439) over the record as additional
// data, with the number of the record as its nonce. Nothing is encrypted. All by libsodium.
//
// It moves bytes and does no I/O: sealed_network.h has the sockets. Until the other end has proved itself
// nothing is looked at but the fixed lengths above, and nothing allocated; then a record's length at most.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/secret.h"

namespace holdfast::os {

class SealedSession {
 public:
  enum class Role { caller, listener };
  static constexpr std::size_t record_bytes_max = std::size_t{256} << 10;
  static constexpr std::size_t tag_bytes = 16, proof_bytes = 32, nonce_bytes = 32;
  // Makes one end of a session. `purpose` is the same at both ends, and differs between the protocols on top.
  SealedSession(const Secret& secret, std::string purpose, Role role);

  // Returns whether the other end has proved that it has the secret, and this end has produced its own proof.
  bool is_established() const { return stage_ == Stage::record_head || stage_ == Stage::record_body; }

  // Returns the bytes that are to be sent now; the caller reports by sent() how many of them have been.
  std::span<const std::byte> outgoing() const { return std::span(outgoing_).subspan(sent_); }
  void sent(std::size_t bytes);
  // Makes a record of as much of `source` as one holds, after the outgoing bytes; returns the number of bytes
  // taken. The session must be established.
  std::size_t seal(std::span<const std::byte> source);

  // Returns the buffer for the next bytes that arrive, of the awaited length; empty while verified bytes are
  // to be taken. The caller reports by arrived() how many of them came.
  std::span<std::byte> awaited();
  // Processes the bytes that arrived. Error (communication), which ends the session: they are not from a peer
  // of this run, or were changed on the way. The message names `peer`.
  Result<void> arrived(std::size_t bytes, const std::string& peer);
  // Moves verified bytes, in their order, to `target`; returns their number, at most the size of `target`.
  std::size_t take(std::span<std::byte> target);

 private:
  enum class Stage { hello, answer, proof, record_head, record_body };
  static constexpr std::size_t magic_bytes = 8, head_bytes = 4;
  using Proof = std::array<std::byte, proof_bytes>;
  using Nonce = std::array<std::byte, nonce_bytes>;
  Proof keyed(std::string_view what) const;
  bool proves(std::string_view what, std::span<const std::byte> proof) const;
  void await(Stage stage, std::size_t bytes);
  void establish();
  void put(std::span<const std::byte> bytes);
  bool understand();
  bool understand_record();

  Secret secret_;
  std::string purpose_;
  Role role_;
  Stage stage_;
  Nonce caller_nonce_{}, listener_nonce_{};
  Proof seal_key_{}, open_key_{};
  std::uint64_t sealed_ = 0, opened_ = 0;  // number of records
  std::vector<std::byte> outgoing_;
  std::size_t sent_ = 0;
  std::vector<std::byte> incoming_;  // the first `expected_` of them belong to the stage
  std::size_t expected_ = 0, filled_ = 0;
  std::size_t verified_ = 0, taken_ = 0;  // bytes of the present record
};

}  // namespace holdfast::os
