// ClaimRecord: the content of a run's lock file, which describes the holder. HolderWatch: how long a process
// that finds the lock held waits for its holder, whose host may be gone. Both are pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::run {

// Claim: the time in which one process has the lock. Its epoch is greater than those of all claims of the run
// before it.
struct ClaimRecord {
  std::string holder = {};     // "host NAME pid N", for people
  std::string host_id = {};    // Env::host_id(); empty: of an older program, and nothing is known of its host
  std::uint64_t epoch = 0;     // 0: of an older program
  std::string id = {};         // random, of this claim alone
  std::uint64_t renewals = 0;  // counted by the holder for as long as it lives
  bool operator==(const ClaimRecord&) const = default;
};

// Formats a record, one line for each member, the holder first. Texts of the same claim have the same length.
std::string to_text(const ClaimRecord& record);
// Parses the output of to_text(); members that the text lacks are empty or 0.
ClaimRecord claim_record_of(std::string_view text);
// Returns whether the claim is of another host, whose death this host's kernel does not notice.
bool is_of_another_host(const ClaimRecord& record, const std::string& own_host_id);

struct LeaseTerms {
  std::int64_t patience_ms = 10'000;  // with a holder that lives
  // Time without a renewal, on the clock of the waiting process, after which a holder on another host has
  // lost its claim; many times the time between two renewals.
  std::int64_t lease_ms = 20'000;
  std::int64_t alive_ms = 6'000;  // since a renewal: the holder lives
};

// HolderWatch decides what a process that waits for the lock does. Threads: one.
class HolderWatch {
 public:
  enum class Answer : std::uint8_t { wait, refuse, take_over };

  HolderWatch(const LeaseTerms& terms, std::string own_host_id, std::int64_t begin_ns)
      : terms_(terms), own_host_id_(std::move(own_host_id)), begin_ns_(begin_ns) {}
  // Takes in the present `record`. A holder on this host has the lock for as long as it lives, so it is
  // waited for with patience and never replaced.
  Answer look(const ClaimRecord& record, std::int64_t now_ns);
  // Returns whether it has waited longer than it would for a holder that lives.
  bool waits_for_lease(std::int64_t now_ns) const { return now_ns - begin_ns_ >= ns(terms_.patience_ms); }

 private:
  static std::int64_t ns(std::int64_t ms) { return ms * 1'000'000; }
  LeaseTerms terms_;
  std::string own_host_id_;
  std::int64_t begin_ns_;
  ClaimRecord seen_;
  std::int64_t changed_ns_ = 0;  // when seen_ was first seen
  bool has_seen_ = false, renewed_ = false;
};

}  // namespace holdfast::run
