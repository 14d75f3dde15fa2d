#include "runtime/os/sealed_session.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/core/check.h"

namespace holdfast::os {
namespace {

constexpr std::array<char, 8> session_magic = {'H', 'F', 'S', 'E', 'A', 'L', '0', '1'};
static_assert(crypto_aead_chacha20poly1305_ietf_ABYTES == SealedSession::tag_bytes);
static_assert(crypto_aead_chacha20poly1305_ietf_KEYBYTES == SealedSession::proof_bytes);

unsigned char* sodium_bytes(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* sodium_bytes(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

using RecordNonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

// A key is of one connection and one direction, so the number of the record is used once.
RecordNonce nonce_of(std::uint64_t number) {
  RecordNonce nonce{};
  std::memcpy(nonce.data(), &number, sizeof(number));
  return nonce;
}

}  // namespace

SealedSession::SealedSession(const Secret& secret, std::string purpose, Role role)
    : secret_(secret), purpose_(std::move(purpose)), role_(role), stage_(Stage::hello) {
  begin_sodium();
  if (role_ == Role::listener) {
    await(Stage::hello, magic_bytes + nonce_bytes + proof_bytes);
    return;
  }
  randombytes_buf(caller_nonce_.data(), nonce_bytes);
  put(std::as_bytes(std::span(session_magic)));
  put(caller_nonce_);
  put(keyed("hello---"));  // before there is a listener's number
  await(Stage::answer, nonce_bytes + proof_bytes);
}

// Every part has a fixed length but the purpose, which comes last.
SealedSession::Proof SealedSession::keyed(std::string_view what) const {
  HF_CHECK(what.size() == magic_bytes);
  crypto_generichash_state state;
  Proof proof;
  crypto_generichash_init(&state, sodium_bytes(secret_.bytes().data()), Secret::size, proof_bytes);
  const auto add = [&](std::span<const std::byte> part) {
    crypto_generichash_update(&state, sodium_bytes(part.data()), part.size());
  };
  add(std::as_bytes(std::span(what)));
  add(caller_nonce_);
  add(listener_nonce_);
  add(std::as_bytes(std::span(purpose_)));
  crypto_generichash_final(&state, sodium_bytes(proof.data()), proof_bytes);
  return proof;
}

bool SealedSession::proves(std::string_view what, std::span<const std::byte> proof) const {
  const Proof right = keyed(what);
  return sodium_memcmp(right.data(), proof.data(), proof_bytes) == 0;
}

void SealedSession::await(Stage stage, std::size_t bytes) {
  stage_ = stage;
  if (incoming_.size() < bytes) incoming_.resize(bytes);
  expected_ = bytes;
  filled_ = 0;
}

void SealedSession::establish() {
  const bool calls = role_ == Role::caller;
  seal_key_ = keyed(calls ? "to-liste" : "to-calle");
  open_key_ = keyed(calls ? "to-calle" : "to-liste");
  await(Stage::record_head, head_bytes);
}

void SealedSession::put(std::span<const std::byte> bytes) {
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
}

void SealedSession::sent(std::size_t bytes) {
  sent_ += bytes;
  HF_CHECK(sent_ <= outgoing_.size());
  if (sent_ < outgoing_.size()) return;
  outgoing_.clear();
  sent_ = 0;
}

std::size_t SealedSession::seal(std::span<const std::byte> source) {
  HF_CHECK(is_established());
  const std::span<const std::byte> record = source.first(std::min(source.size(), record_bytes_max));
  const auto length = static_cast<std::uint32_t>(record.size());
  const RecordNonce nonce = nonce_of(sealed_++);
  std::array<std::byte, tag_bytes> tag;
  unsigned char no_text = 0;  // of which nothing is encrypted
  crypto_aead_chacha20poly1305_ietf_encrypt_detached(&no_text, sodium_bytes(tag.data()), nullptr, nullptr, 0,
                                                     sodium_bytes(record.data()), record.size(), nullptr,
                                                     nonce.data(), sodium_bytes(seal_key_.data()));
  put(std::as_bytes(std::span(&length, 1)));
  put(record);
  put(tag);
  return record.size();
}

std::span<std::byte> SealedSession::awaited() {
  if (taken_ < verified_) return {};
  return std::span(incoming_).first(expected_).subspan(filled_);
}

Result<void> SealedSession::arrived(std::size_t bytes, const std::string& peer) {
  filled_ += bytes;
  HF_CHECK(filled_ <= expected_);
  if (filled_ < expected_) return {};
  const bool was_established = is_established();
  if (understand()) return {};
  if (was_established) {
    return fail(ExitCode::communication, "what {} sent was changed on the way, or is not from this run",
                peer);
  }
  return fail(ExitCode::communication, "{} did not prove that it belongs to this run", peer);
}

// False: it is not what a peer would say.
bool SealedSession::understand() {
  const std::span<const std::byte> said = std::span(incoming_).first(expected_);
  switch (stage_) {
    case Stage::hello:
      if (std::memcmp(said.data(), session_magic.data(), magic_bytes) != 0) return false;
      std::ranges::copy(said.subspan(magic_bytes, nonce_bytes), caller_nonce_.begin());
      if (!proves("hello---", said.subspan(magic_bytes + nonce_bytes))) return false;
      randombytes_buf(listener_nonce_.data(), nonce_bytes);
      put(listener_nonce_);
      put(keyed("listener"));
      await(Stage::proof, proof_bytes);
      return true;
    case Stage::answer:
      std::ranges::copy(said.first(nonce_bytes), listener_nonce_.begin());
      if (!proves("listener", said.subspan(nonce_bytes))) return false;
      put(keyed("caller--"));
      establish();
      return true;
    case Stage::proof:
      if (!proves("caller--", said)) return false;
      establish();
      return true;
    case Stage::record_head:
    case Stage::record_body:
      return understand_record();
  }
  return false;
}

bool SealedSession::understand_record() {
  if (stage_ == Stage::record_head) {
    std::uint32_t length = 0;
    std::memcpy(&length, incoming_.data(), sizeof(length));
    if (length == 0 || length > record_bytes_max) return false;
    await(Stage::record_body, length + tag_bytes);
    return true;
  }
  const std::size_t length = expected_ - tag_bytes;
  const RecordNonce nonce = nonce_of(opened_++);
  const unsigned char* const record = sodium_bytes(incoming_.data());
  unsigned char no_text = 0;
  if (crypto_aead_chacha20poly1305_ietf_decrypt_detached(&no_text, nullptr, &no_text, 0, record + length,
                                                         record, length, nonce.data(),
                                                         sodium_bytes(open_key_.data())) != 0)
    return false;
  verified_ = length;
  taken_ = 0;
  return true;
}

std::size_t SealedSession::take(std::span<std::byte> target) {
  const std::size_t count = std::min(target.size(), verified_ - taken_);
  std::copy_n(incoming_.begin() + static_cast<std::ptrdiff_t>(taken_), count, target.begin());
  taken_ += count;
  if (count > 0 && taken_ == verified_) {
    verified_ = taken_ = 0;
    await(Stage::record_head, head_bytes);
  }
  return count;
}

}  // namespace holdfast::os
