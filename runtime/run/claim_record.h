// ClaimRecord: what the lock file of a run says about who has it. HolderWatch: how long one that finds the
// lock held waits for its holder, whose host may be gone. Both are pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::inline run {

// A claim is the time in which one process has the lock. Its epoch is greater than those of all claims of the
// run before it.
struct ClaimRecord {
  std::string holder = {};     // "host NAME pid N", for people
  std::string host_id = {};    // Env::host_id(); empty: of an older program, and nothing is known of its host
  std::uint64_t epoch = 0;     // 0: of an older program
  std::string id = {};         // random, of this claim alone
  std::uint64_t renewals = 0;  // counted by the holder for as long as it lives
  bool operator==(const ClaimRecord&) const = default;
};

// One line for each member, the holder first. Texts of the same claim have the same length.
std::string to_text(const ClaimRecord& record);
// Reads what to_text() wrote; what a text does not say is empty or 0.
ClaimRecord claim_record_of(std::string_view text);
// Returns whether the claim is of another host, whose death this host's kernel does not notice.
bool is_of_another_host(const ClaimRecord& record, const std::string& own_host_id);

struct LeaseTerms {
  std::int64_t patience_ms = 10'000;  // with a holder that lives
  // Time without a renewal, on the clock of the one that waits, after which a holder on another host has lost
  // its claim; many times that between two renewals.
  std::int64_t lease_ms = 20'000;
  std::int64_t alive_ms = 6'000;  // since a renewal: the holder lives
};

// HolderWatch says what one that waits for the lock is to do. Threads: one.
class HolderWatch {
 public:
  enum class Answer : std::uint8_t { wait, refuse, take_over };

  HolderWatch(const LeaseTerms& terms, std::string own_host_id, std::int64_t begin_ns)
      : terms_(terms), own_host_id_(std::move(own_host_id)), begin_ns_(begin_ns) {}
  // `record`: as it is now. A holder on this host has the lock for as long as it lives, so it is waited for
  // with patience and never replaced.
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

}  // namespace holdfast::inline run
