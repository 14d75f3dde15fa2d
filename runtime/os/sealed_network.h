// SealedNetwork: a Network whose connections are between processes that share a secret (sealed_session.h),
// over that of an Env.
//
//   SealedNetwork network(env, secret, "replica");
//   HF_TRY(const std::unique_ptr<Listener> listener, network.listen(address));
//
// accept() returns connections whose caller has proved that it has the secret, with the same purpose. A
// caller that has not proved it after `patience_ms` is dropped (time between two calls of accept() counts as
// `longest_pause_ms` at most). Unproved callers have slots of their own: at most `max_strangers`, of which
// `max_of_one_address` for one address. When an address has too many, its oldest caller makes room for the
// next, first among those whose hello has not arrived. A caller with a wrong hello is dropped at once, and
// proved callers take no slot.
//
// connect() returns when the socket is connected; the first calls of send or receive exchange the proofs of
// the two ends, and a peer that proves nothing is their error. After send_some() has returned 0, the next
// call offers the same bytes again. connect_known() returns when the two ends have proved themselves to each
// other, and begins again where a crowd made the listener drop it.
//
// Threads: as for Network.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/os/env.h"
#include "runtime/os/network.h"
#include "runtime/os/secret.h"

namespace holdfast::os {

class SealedNetwork final : public Network {
 public:
  static constexpr std::int64_t patience_ms = 2'000;
  static constexpr std::int64_t longest_pause_ms = 200;
  static constexpr std::size_t max_strangers = 128, max_of_one_address = 32;

  // Makes a network; `env` must outlive it and the objects that it makes.
  SealedNetwork(Env& env, const Secret& secret, std::string purpose);

  Result<std::unique_ptr<Listener>> listen(const std::string& address) override;
  // Connects and waits until the two ends know each other. Each attempt to connect lasts `connect_ms` at
  // most, and the whole call `known_ms` beyond the last of them. It ends as connect() does once `stopped` is
  // true.
  Result<std::unique_ptr<Connection>> connect_known(const NetworkAddress& address, std::int64_t connect_ms,
                                                    std::int64_t known_ms, const std::atomic<bool>& stopped);
  Result<std::unique_ptr<Connection>> begin_connection(const NetworkAddress& address) override;
  Result<std::vector<std::string>> own_addresses(const std::string& interface) override;
  bool wait_any_readable(std::span<Socket* const> sockets, std::int64_t timeout_ms) override;
  std::vector<std::size_t> find_readable(std::span<Socket* const> sockets) override;

 private:
  Result<std::unique_ptr<Connection>> make_connection(const NetworkAddress& address, std::int64_t timeout_ms,
                                                      const std::atomic<bool>* stopped) override;
  std::unique_ptr<Connection> seal(std::unique_ptr<Connection> inner) const;

  Env* env_;
  Secret secret_;
  std::string purpose_;
};

}  // namespace holdfast::os
