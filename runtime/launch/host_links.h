// Links between the hosts of a start: who tries to connect to whom before it, at which addresses, and what they tell
// each other of that. Pure, but for addresses_to_reach(). host_meeting.h makes the attempts.
//
//   - A few hosts try all pairs, in both directions, as firewalls may let only one pass. Of many hosts each tries those
//     1, 2, 4, ... places behind it in the list, so a host without a network has some that miss it.
//   - A host is reached when one of its addresses is, in each network that the run uses: that of MPI (the interfaces
//     that the settings of its TCP transport allow), and network.interface where it is set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/network.h"

namespace holdfast::launch {

// LinkFault says that a process of host `from` could not connect to one of host `of`.
struct LinkFault {
  std::string from, of;
  std::string where = {};  // addresses that were tried: "10.0.0.3, 10.1.0.3"
  bool operator==(const LinkFault&) const = default;
};

// Returns the indices of the hosts that host `index` of `hosts` connects to.
std::vector<int> callees_of(int index, int hosts);

// Returns the interfaces between which MPI's TCP transport chooses, as a word: "+eth0,10.0.0.0/8" for these alone,
// "^lo,docker0" for all but these, "-" where MPI does not use TCP between hosts. `variable`: value of a variable of
// mpirun's environment, which wins over `tune`, the text of its file of settings.
std::string mpi_interfaces(const std::function<std::string(const std::string&)>& variable,
                           const std::string& tune);

// Networks of a host: the addresses by which others reach it in each network that the run uses.
using HostNetworks = std::vector<std::vector<std::string>>;
// `mpi`: mpi_interfaces(); `interface`: network.interface, or empty. Leaves out a network in which this host has no
// address: whether it may lack that is not decided here.
HostNetworks addresses_to_reach(Network& network, const std::string& mpi, const std::string& interface);

// MeetingWords is what a host needs to meet the others.
struct MeetingWords {
  std::string door = {};       // of the launcher: "40112@10.0.0.1,10.1.0.1"; empty: there is no meeting
  int place = 0;               // index of the host among those asked
  std::string mpi = "-";       // mpi_interfaces()
  std::string interface = {};  // network.interface
  bool operator==(const MeetingWords&) const = default;
};

// HostArrival is what a host says of itself when it comes to the meeting.
struct HostArrival {
  int place = 0;
  std::uint16_t port = 0;
  HostNetworks networks = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("place", self.place);
    visit("port", self.port);
    visit("networks", self.networks);
  }
};

// HostCallees is what it is told then.
struct HostCallees {
  std::vector<HostArrival> hosts = {};

  static void visit_fields(auto& self, auto&& visit) { visit("hosts", self.hosts); }
};

// HostReport is what it says in the end.
struct HostReport {
  struct Unreached {
    int place = 0;
    std::string where = {};

    static void visit_fields(auto& self, auto&& visit) {
      visit("place", self.place);
      visit("where", self.where);
    }
  };
  std::vector<Unreached> unreached = {};

  static void visit_fields(auto& self, auto&& visit) { visit("unreached", self.unreached); }
};

}  // namespace holdfast::launch
