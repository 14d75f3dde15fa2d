// What the ranks of a run on several hosts tell their guards, so that these can hear each other, and what the
// membership learns from them (watchdog/peer_host_table.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/os/secret.h"
#include "runtime/rank/train_inputs.h"
#include "watchdog/peer_host_table.h"

namespace holdfast::inline rank {

// Once, of all launched ranks, with a config and a secret that all have agreed on. On one host, without a
// guard or without membership it changes nothing, and nobody listens. Errors: of the communicator; config
// where a host has no interface network.interface; where a table cannot be made, that host does
// without, and says so; where a host has several guards, all do, and rank 0 says so.
Result<void> join_hosts(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                        const Secret& secret);

// ToldHost is what a rank tells the others of its host, and where its guard listens, which only does so once
// it has been told that there are others.
struct ToldHost {
  std::uint64_t number = 0;  // random; rank 0's names the start
  std::string host = {};
  std::string host_id = {};      // Env::host_id()
  std::string name_space = {};   // of the PIDs; empty: not known
  std::uint16_t guard_port = 0;  // told later; 0: nowhere
  std::vector<std::string> addresses = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("number", self.number);
    visit("host", self.host);
    visit("host_id", self.host_id);
    visit("name_space", self.name_space);
    visit("guard_port", self.guard_port);
    visit("addresses", self.addresses);
  }
};
// The different hosts, in the order of their first ranks, each with the facts of a rank that knows a guard.
// Two that have the same name are "NAME" and "NAME#2". `index_of`: by Env::host_id().
struct ToldHosts {
  std::vector<HostFacts> facts = {};
  std::map<std::string, int> index_of = {};
};
ToldHosts different_hosts(const std::vector<ToldHost>& told);
// The first host with ranks in several PID namespaces, each of which has a guard; empty: there is none. Other
// hosts could not tell such guards apart.
std::string host_with_several_guards(const std::vector<ToldHost>& told);

}  // namespace holdfast::inline rank
