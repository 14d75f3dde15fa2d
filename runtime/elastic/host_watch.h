// Connects the guards of a run on several hosts: its ranks tell their guards where the other guards listen,
// and the membership learns from the guards which hosts are unreachable (watchdog/peer_host_table.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/group/membership.h"
#include "runtime/os/secret.h"
#include "runtime/rank/train_inputs.h"
#include "watchdog/peer_host_table.h"

namespace holdfast::elastic {

// Connects the hosts. All launched ranks call it once, with a config and a secret that all have agreed on. It
// changes nothing on one host, without a guard or without membership, and no guard listens then. Errors:
// those of the communicator; config if a host has no interface network.interface. If a host cannot make a
// table, it goes without and logs that; if a host has several guards, all hosts go without, and rank 0 logs
// that.
Result<void> join_hosts(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                        const Secret& secret);

// ReportedHost holds the facts that a rank sends about its host, and where its guard listens. A guard only
// listens once it has been told that there are other hosts.
struct ReportedHost {
  std::uint64_t number = 0;  // random; the number of rank 0 identifies the start
  std::string host = {};
  std::string host_id = {};      // Env::host_id()
  std::string name_space = {};   // PID namespace; empty: not known
  std::uint16_t guard_port = 0;  // sent in a second round; 0: the guard does not listen
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
// ReportedHosts lists the different hosts in the order of their first ranks, each with the facts of a rank
// that knows a guard. Two hosts with the same name are "NAME" and "NAME#2". `index_of`: by Env::host_id().
struct ReportedHosts {
  std::vector<HostFacts> facts = {};
  std::map<std::string, int> index_of = {};
};
ReportedHosts different_hosts(const std::vector<ReportedHost>& reported);
// Returns the first host with ranks in several PID namespaces, each of which has a guard; empty if there is
// none. Other hosts could not tell such guards apart.
std::string host_with_several_guards(const std::vector<ReportedHost>& reported);
// Returns what the table of this host tells about the members on other hosts, each found by its host id in
// `name_of`, which has the host's name in the table. One load answers while all hosts are heard.
Membership::HostKnowledge knowledge_of(const std::shared_ptr<PeerHostTable>& table,
                                       const std::map<std::string, std::string>& name_of);

}  // namespace holdfast::elastic
