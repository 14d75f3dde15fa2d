// Agrees on the secret that the ranks of a run share with each other and with their guards, so that no other
// process can pass for one of them (runtime/os/secret.h), and decides where they listen for each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/agreement.h"
#include "runtime/config/config.h"
#include "runtime/os/env.h"
#include "runtime/os/secret.h"

namespace holdfast::rank {

// Returns the same secret on all ranks, which call it together: the one that some of them know from an
// earlier epoch, else a new one. It is sent sealed. Errors: communication.
Result<Secret> agree_on_secret(Communicator& communicator, const Waiter& waiter, Env& env,
                               const std::optional<Secret>& known);

struct ListenAddress {
  std::string address = {};                // address for Network::listen()
  std::vector<std::string> reported = {};  // addresses at which the others reach it
};
// Returns where this rank listens: on network.interface, or on every interface if that is not set, or on
// loopback if all ranks are on `one_host`. Error: this host has no such interface (config; communication in a
// run that has begun).
Result<ListenAddress> listen_address(Env& env, const Config& config, bool one_host);

}  // namespace holdfast::rank
