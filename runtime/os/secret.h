// Secret: 256 bits that the processes of one start of a run share and nobody else has. A process that has it
// is a peer (sealed_session.h).
//
//   const Secret secret = Secret::draw(env);                      // on one rank
//   SecretRequest request;                                        // on each of the others
//   tell(request.text()); ...                                     // over any channel, also one that is read
//   HF_TRY(const std::string sealed, seal_secret(secret, text));  // on the first
//   HF_TRY(const Secret same, request.open(sealed));
//
// It is in no command line, environment, log or event, and its memory is wiped. A request is a key pair of
// X25519, made for one answer; the answer is a sealed box of libsodium (X25519, XSalsa20-Poly1305): an
// attacker that only reads the messages between ranks does not learn the secret. One that can change them can
// substitute a secret of its own.
//
// Threads: any, but one at a time for each object.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::os {

// Makes libsodium ready, for files that include sodium.h. May be called on any thread, any number of times.
void begin_sodium();

class Secret {
 public:
  static constexpr std::size_t size = 32;
  using Bytes = std::array<std::byte, size>;

  static Secret draw(Env& env);  // from the system's random numbers
  explicit Secret(const Bytes& bytes) : bytes_(bytes) {}
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

class SecretRequest {
 public:
  SecretRequest();
  SecretRequest(const SecretRequest&) = delete;
  SecretRequest& operator=(const SecretRequest&) = delete;
  ~SecretRequest();
  // Returns the public key, in hexadecimal digits.
  std::string text() const;
  // Decrypts the answer. Error (communication): this is no answer to the request.
  Result<Secret> open(const std::string& sealed) const;

 private:
  std::array<unsigned char, 32> public_key_, private_key_;
};

// Returns the answer to a request's text(), in hexadecimal digits. Error (communication): it is no request.
Result<std::string> seal_secret(const Secret& secret, const std::string& request);

}  // namespace holdfast::os
