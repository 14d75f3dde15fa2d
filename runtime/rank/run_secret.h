// The secret that ranks share with each other and with their guards, so that nobody else is taken for one of
// them (runtime/os/secret.h), and where they listen for each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/agreement.h"
#include "runtime/config/config.h"
#include "runtime/os/env.h"
#include "runtime/os/secret.h"

namespace holdfast::inline rank {

// All ranks together. Returns the same secret on each: that which some of them know from an epoch before,
// else a new one. It is handed out sealed. Errors: communication.
Result<Secret> agree_on_secret(Communicator& communicator, const Waiter& waiter, Env& env,
                               const std::optional<Secret>& known);

struct ListenPlace {
  std::string address = {};            // for Network::listen()
  std::vector<std::string> told = {};  // by which the others reach it
};
// By network.interface; without one, every interface. Where all are on `one_host`: loopback. Error: this
// host has no such interface (config; communication in a run that has begun).
Result<ListenPlace> listen_place(Env& env, const Config& config, bool one_host);

}  // namespace holdfast::inline rank
