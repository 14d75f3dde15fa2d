// Preflight rules: what the measurements of all hosts before a run (`holdfast preflight`) mean: a pure function from them, and from
// what is known of the hosts (runtime/run/host_book.h), to whether each host is fit, with reasons. The table of the bounds is data.
//
// Which bits are right is found by votes: each device that always computed the same has one, and what an earlier preflight
// recorded has another. Devices vote only with those of their kind in the same test. Where no result has more votes than any other,
// nobody knows who is right, and all who voted are unfit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/run/host_book.h"

namespace holdfast::health {

// DeviceTrial is what one device of a host did. A round is some steps from the same state, so all rounds have the same bits.
struct DeviceTrial {
  std::string device = {};                    // hardware_name()
  std::string kind = {};                      // devices of one kind compute the same bits
  std::string trouble = {};                   // why it did not get through; empty: it did
  std::string digest = {};                    // of most of its rounds, in hex
  std::int64_t rounds = 0, other_rounds = 0;  // all of them; those with another digest
  double tokens_per_s = 0.0;
  std::uint64_t memory_bytes = 0,
                wrong_bytes = 0;  // of the memory that was tried; of those that came back changed

  static void visit_fields(auto& self, auto&& visit) {
    visit("device", self.device);
    visit("kind", self.kind);
    visit("trouble", self.trouble);
    visit("digest", self.digest);
    visit("rounds", self.rounds);
    visit("other_rounds", self.other_rounds);
    visit("tokens_per_s", self.tokens_per_s);
    visit("memory_bytes", self.memory_bytes);
    visit("wrong_bytes", self.wrong_bytes);
  }
};

// DiskTrial is what the file system of the run directory did.
struct DiskTrial {
  std::string directory = {};
  std::string trouble = {};                          // why there are no rates; empty: there are
  double write_MB_per_s = 0.0, read_MB_per_s = 0.0;  // written with fsync at the end; read without the cache
  double sync_ms = 0.0;                              // median of small writes with fsync

  static void visit_fields(auto& self, auto&& visit) {
    visit("directory", self.directory);
    visit("trouble", self.trouble);
    visit("write_MB_per_s", self.write_MB_per_s);
    visit("read_MB_per_s", self.read_MB_per_s);
    visit("sync_ms", self.sync_ms);
  }
};

// HostTrials is what a host tells of itself.
struct HostTrials {
  std::string version = {}, program = {};   // build_version(), program_digest()
  std::string test = {};                    // digest of the shapes and of the program
  std::int64_t begun_us = 0, ended_us = 0;  // its wall clock
  std::vector<DeviceTrial> devices = {};
  DiskTrial disk = {};
  std::optional<double> hottest_C = {};    // of its sensors at the end; none: no sensor told
  std::vector<std::string> findings = {};  // health rules that ask for the host to be left, a sentence each

  static void visit_fields(auto& self, auto&& visit) {
    visit("version", self.version);
    visit("program", self.program);
    visit("test", self.test);
    visit("begun_us", self.begun_us);
    visit("ended_us", self.ended_us);
    visit("devices", self.devices);
    visit("disk", self.disk);
    visit("hottest_C", self.hottest_C);
    visit("findings", self.findings);
  }
};

// LinkTrial is what two hosts exchanged, by their places among those that are tried.
struct LinkTrial {
  std::size_t from = 0, to = 0;
  double MB_per_s = 0.0;    // in each direction, both at once
  double latency_us = 0.0;  // median of half a round trip of a small message
  // Holds what share of it TCP lost in the worse direction; none: it did not go by TCP.
  std::optional<double> lost_share = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("from", self.from);
    visit("to", self.to);
    visit("MB_per_s", self.MB_per_s);
    visit("latency_us", self.latency_us);
    visit("lost_share", self.lost_share);
  }
};

// TriedHost is a host as the one that asks sees it.
struct TriedHost {
  std::string name = {};
  std::optional<HostTrials> trials = {};       // none: it did not answer, or failed
  std::string silence = {};                    // why not; a clause
  std::int64_t asked_us = 0, answered_us = 0;  // wall clock of the one that asks
};

// PreflightRule is a bound: a host beyond it is not fit.
struct PreflightRule {
  enum class Bound : std::uint8_t { none, below, above };
  std::string_view name = {};
  std::string_view says = {};
  Bound bound = Bound::none;
  double limit = 0.0;
  std::string_view unit = {};
  std::string_view origin = {};
};
std::span<const PreflightRule> preflight_rules();

struct PreflightReason {
  std::string_view rule = {};  // its name
  std::string sentence = {};   // with the number

  bool operator==(const PreflightReason&) const = default;
};

struct HostVerdict {
  std::string host = {};
  std::vector<PreflightReason> reasons = {};  // in the order of the rules
  std::optional<double> clock_ms = {};        // how far its clock is ahead, at least, by what is proven
  // Rate of each device over the median of the fleet, and over its own usual one; 0: not known.
  std::vector<double> of_fleet = {}, of_usual = {};

  bool is_fit() const { return reasons.empty(); }
};

// Returns a verdict for each host, in their order. `program`: program_digest() of the one that asks.
std::vector<HostVerdict> judge_hosts(std::span<const TriedHost> hosts, const HostBook& book,
                                     const std::string& version, const std::string& program);

// Adds what the links of the hosts mean to their verdicts. `links`: of different hosts of the list, each pair once. Where most links
// of a host have become slow, it alone is to blame for them.
void judge_links(std::span<const LinkTrial> links, const HostBook& book, std::span<HostVerdict> verdicts);

// Returns how far a clock is ahead, at least, in microseconds (negative: behind): that it read begun_us after asked_us and ended_us
// before answered_us by the other clock proves no more. 0: both may be the same.
std::int64_t proven_clock_skew_us(std::int64_t asked_us, std::int64_t begun_us, std::int64_t ended_us,
                                  std::int64_t answered_us);

// Takes over what a preflight has found: reasons, the rates of hosts that are fit and of the links between them, and the
// bits of their devices.
void note_verdicts(HostBook& book, std::span<const TriedHost> hosts, std::span<const HostVerdict> verdicts,
                   std::span<const LinkTrial> links, std::int64_t now_us);

}  // namespace holdfast::health
