// PeerHostTable: the hosts of a run as one of them sees the others, in shared memory beside its board. The
// ranks write it once while all hosts are reached; from then on their guard writes what it hears, and the
// ranks read it: whether a process of another host has ended, and whether a host is unreachable.
//
// Threads: any may read. The guard alone writes after the start, and a guard that takes over continues with
// the existing content.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/process_identity.h"

namespace holdfast::watchdog {

// Facts that the ranks tell each other about a host. `addresses` are numbers (Network::own_addresses).
struct HostFacts {
  std::string name = {};
  std::vector<std::string> addresses = {};
  std::uint16_t port = 0;  // port of its guard; 0: it has none, and nothing is ever reported about it
};

struct PeerHostTableSetup {
  std::uint64_t start = 0;          // the same on all hosts of a start, different for every start
  int own_host = 0;                 // index in `hosts`
  std::int64_t silence_ms = 5'000;  // a host that sends nothing for so long is unreachable
  std::vector<HostFacts> hosts = {};
};

// Process of another host that its guard saw end: certainly no longer there.
struct EndedProcess {
  std::int32_t host = 0, launched_rank = -1;
  std::int64_t process = 0, started_ticks = 0;
  bool operator==(const EndedProcess&) const = default;
  ProcessIdentity identity() const { return {.id = process, .started_ticks = started_ticks}; }
};

class PeerHostTable {
 public:
  // Opens the table of the board `board`. The first process of a host makes it; the others find it.
  static Result<std::unique_ptr<PeerHostTable>> open_or_create(Env& env, const std::string& board,
                                                               const PeerHostTableSetup& setup);
  // Opens an existing table. Error: it is not there, not yet whole, or not a table of this program.
  static Result<std::unique_ptr<PeerHostTable>> open(Env& env, const std::string& board);
  static void remove(Env& env, const std::string& board);

  PeerHostTableSetup setup() const;
  int hosts() const;
  int own_host() const;
  std::string name_of(int host) const;
  int find(const std::string& name) const;  // -1: no such host

  // Returns 0 if the host is heard, else when it was heard for the last time, on the monotonic clock of this
  // host.
  std::int64_t silent_since_ns(int host) const;
  // Returns whether silent_since_ns() may differ from 0 for some host: one load, for loops that wait.
  bool may_miss_a_host() const;
  bool has_ended(int host, const ProcessIdentity& process) const;

  // These functions are for the guard.
  void say_silent(int host, std::int64_t since_ns);
  void say_ended(const EndedProcess& ended);  // ignores known ones; drops it where there is no room
  void moved(int host, std::uint16_t port);   // to another port
  std::uint16_t port_of(int host) const;

 private:
  static constexpr std::size_t name_bytes = 256, address_bytes = 512;
  struct Header {
    std::atomic<std::uint64_t> magic{0};
    std::uint32_t layout = 0, hosts = 0, ended_max = 0;
    std::int32_t own_host = 0;
    std::uint64_t start = 0;
    std::int64_t silence_ms = 0;
    std::atomic<std::uint32_t> ended{0};
    std::atomic<std::uint32_t> any_silent{0};  // raised before the first host is, lowered after the last
  };
  struct Host {
    std::array<char, name_bytes> name{};
    std::array<char, address_bytes> addresses{};  // separated by blanks
    std::atomic<std::uint32_t> port{0};
    std::uint32_t reserved = 0;
    std::atomic<std::int64_t> silent_since_ns{0};
  };
  struct Size {
    std::uint32_t hosts = 0, ended_max = 0;
    std::int32_t own_host = 0;
  };
  PeerHostTable(std::unique_ptr<SharedMemory> memory, const Size& size)
      : memory_(std::move(memory)), size_(size) {}
  static std::size_t bytes_of(std::uint32_t hosts, std::uint32_t ended_max);
  Header& header() const;
  Host& host(int index) const;
  EndedProcess& ended(std::uint32_t index) const;

  std::unique_ptr<SharedMemory> memory_;
  Size size_;  // checked once against the memory; the header is not read for it again
};

}  // namespace holdfast::watchdog
