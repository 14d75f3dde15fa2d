// HostBook: what is known about hosts beyond one run: which of them people have tainted, and what earlier preflights have
// measured there. It is a file of its user, which several runs share: $XDG_STATE_HOME/holdfast/hosts.json, or
// ~/.local/state/holdfast/hosts.json.
//
//   {"version":1,"hosts":[{"host":"n2","taint":{"reason":"fan","since_us":...,"until_us":...},"checked_us":...,"is_fit":true,
//     "reasons":[],"trials":[{"time_us":...,"device":"cpu","kind":"...","test":"...","tokens_per_s":5120}]}],"bits":[...]}
//
// Everything but the functions that take an Env is pure. Threads: one at a time; several processes may change the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::run {

// HostTaint keeps a host out of starts that others can do without it.
struct HostTaint {
  std::string reason = {};    // for people; may be empty
  std::int64_t since_us = 0;  // wall clock, since 1970
  std::int64_t until_us = 0;  // 0: until somebody ends it

  bool operator==(const HostTaint&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("reason", self.reason);
    visit("since_us", self.since_us);
    visit("until_us", self.until_us);
  }
};

// HostTrial is the rate that a preflight has measured on one device of a host that was fit.
struct HostTrial {
  std::int64_t time_us = 0;
  std::string device = {};    // hardware_name() (runtime/rank/device_choice.h)
  std::string kind = {};      // of the device: equal kinds compute equal bits
  std::string test = {};      // digest of the shapes and of the program
  double tokens_per_s = 0.0;  // > 0

  bool operator==(const HostTrial&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("time_us", self.time_us);
    visit("device", self.device);
    visit("kind", self.kind);
    visit("test", self.test);
    visit("tokens_per_s", self.tokens_per_s);
  }
};

struct BookedHost {
  std::string host = {};  // as it was named to the command
  std::optional<HostTaint> taint = {};
  std::int64_t checked_us = 0;            // when the newest preflight ended; 0: there was none
  bool is_fit = true;                     // as it found
  std::vector<std::string> reasons = {};  // why not; one sentence each
  std::vector<HostTrial> trials = {};     // oldest first

  bool operator==(const BookedHost&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("taint", self.taint);
    visit("checked_us", self.checked_us);
    visit("is_fit", self.is_fit);
    visit("reasons", self.reasons);
    visit("trials", self.trials);
  }
};

// BookedBits are those that devices of a kind have computed in a test.
struct BookedBits {
  std::string kind = {}, test = {};  // as in HostTrial
  std::string digest = {};           // in hex
  std::int64_t time_us = 0;

  bool operator==(const BookedBits&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("kind", self.kind);
    visit("test", self.test);
    visit("digest", self.digest);
    visit("time_us", self.time_us);
  }
};

// BookedLink holds the rates of the link between two hosts in preflights that found it fit, oldest first.
struct BookedLink {
  std::string from = {}, to = {};  // in ascending order
  std::vector<double> MB_per_s = {};

  bool operator==(const BookedLink&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("from", self.from);
    visit("to", self.to);
    visit("MB_per_s", self.MB_per_s);
  }
};

struct HostBook {
  static constexpr std::int64_t newest_version = 1;
  static constexpr std::size_t trials_max = 5;      // of a device in a test, the newest
  static constexpr std::size_t devices_max = 64;    // and tests, of a host: those with the newest trials
  static constexpr std::size_t bits_max = 256;      // the newest
  static constexpr std::size_t links_max = 10'000;  // those that were tried last

  std::int64_t version = newest_version;
  std::vector<BookedHost> hosts = {};  // by name
  std::vector<BookedBits> bits = {};   // oldest first
  std::vector<BookedLink> links = {};  // in the order in which they were tried

  // Returns a host, or null; entry() adds it where it is missing.
  const BookedHost* find(std::string_view host) const;
  BookedHost& entry(const std::string& host);
  // Returns the bits of such a device in such a test, or null.
  const BookedBits* find_bits(std::string_view kind, std::string_view test) const;
  // Takes the place of what was known of the same kind and test.
  void set_bits(const BookedBits& known);
  // Adds a trial, and forgets the oldest ones.
  void add_trial(const std::string& host, const HostTrial& trial);
  // Returns the usual rate of a device of the host in a test, the median of its trials; none: there was no trial.
  std::optional<double> usual_rate(std::string_view host, std::string_view device, std::string_view kind,
                                   std::string_view test) const;
  // Do the same for the link between two hosts.
  void add_link(const std::string& host, const std::string& other, double MB_per_s);
  std::optional<double> usual_link_rate(const std::string& host, const std::string& other) const;
  // Ends the taints whose time is over.
  void forget_expired(std::int64_t now_us);
  // Returns the tainted hosts, each with a sentence, for a launcher that is about to use them.
  std::map<std::string, std::string> tainted(std::int64_t now_us) const;

  std::string text() const;
  // Parses text that may be anything. Errors: ExitCode::config, a clause.
  static Result<HostBook> from_text(std::string_view text);

  bool operator==(const HostBook&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("version", self.version);
    visit("hosts", self.hosts);
    visit("bits", self.bits);
    visit("links", self.links);
  }
};

// Returns the path of the file. ExitCode::config with a sentence where this user has no home directory.
Result<std::string> host_book_path(Env& env);
// Reads the file; none is an empty book. ExitCode::config with a sentence where it is of another version, or damaged: what
// is in it may be wanted by another program, so it stays as it is.
Result<HostBook> read_host_book(Env& env);
// Changes the file under a lock. An error of `change` leaves it as it is, and is returned.
Result<void> change_host_book(Env& env, const std::function<Result<void>(HostBook& book)>& change);

}  // namespace holdfast::run
