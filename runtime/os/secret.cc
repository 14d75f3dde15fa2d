#include "runtime/os/secret.h"

#include <sodium.h>

#include <cstring>
#include <optional>

#include "runtime/core/check.h"

namespace holdfast::os {
namespace {

static_assert(crypto_box_PUBLICKEYBYTES == 32 && crypto_box_SECRETKEYBYTES == 32);
constexpr std::size_t sealed_size = Secret::size + crypto_box_SEALBYTES;

template <std::size_t size>
std::string digits_of(const std::array<unsigned char, size>& bytes) {
  std::array<char, 2 * size + 1> digits;
  sodium_bin2hex(digits.data(), digits.size(), bytes.data(), size);
  return digits.data();
}

template <std::size_t size>
std::optional<std::array<unsigned char, size>> bytes_of(const std::string& digits) {
  std::array<unsigned char, size> bytes;
  std::size_t count = 0;
  const bool right =
      digits.size() == 2 * size &&
      sodium_hex2bin(bytes.data(), size, digits.data(), digits.size(), nullptr, &count, nullptr) == 0 &&
      count == size;
  return right ? std::optional(bytes) : std::nullopt;
}

}  // namespace

void begin_sodium() {
  static const bool ready = sodium_init() >= 0;
  HF_CHECK(ready, "libsodium finds no random numbers on this system");
}

Secret Secret::draw(Env& env) {
  Bytes bytes;
  for (std::size_t at = 0; at < size; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = env.random_u64();
    std::memcpy(&bytes[at], &word, sizeof(word));
  }
  return Secret(bytes);
}

Secret::~Secret() {
  sodium_memzero(bytes_.data(), bytes_.size());
}

SecretRequest::SecretRequest() {
  begin_sodium();
  crypto_box_keypair(public_key_.data(), private_key_.data());
}

SecretRequest::~SecretRequest() {
  sodium_memzero(private_key_.data(), private_key_.size());
}

std::string SecretRequest::text() const {
  return digits_of(public_key_);
}

Result<Secret> SecretRequest::open(const std::string& sealed) const {
  const auto box = bytes_of<sealed_size>(sealed);
  Secret::Bytes bytes;
  auto* const target = reinterpret_cast<unsigned char*>(bytes.data());
  if (!box.has_value() ||
      crypto_box_seal_open(target, box->data(), sealed_size, public_key_.data(), private_key_.data()) != 0) {
    return fail(ExitCode::communication, "what a rank sent is not the secret of this run");
  }
  Secret secret(bytes);
  sodium_memzero(bytes.data(), bytes.size());
  return secret;
}

Result<std::string> seal_secret(const Secret& secret, const std::string& request) {
  begin_sodium();
  const auto public_key = bytes_of<crypto_box_PUBLICKEYBYTES>(request);
  std::array<unsigned char, sealed_size> box;
  const auto* const source = reinterpret_cast<const unsigned char*>(secret.bytes().data());
  if (!public_key.has_value() || crypto_box_seal(box.data(), source, Secret::size, public_key->data()) != 0) {
    return fail(ExitCode::communication, "what a rank sent is no request for the secret of this run");
  }
  return digits_of(box);
}

}  // namespace holdfast::os
