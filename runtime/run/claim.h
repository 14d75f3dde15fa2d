// Claim: the right to write a run, which one process at a time has. It is a lock on a file (Env::lock) and a
// record in it, which describes the holder.
//
//   HF_TRY(const std::unique_ptr<Claim> claim, Claim::take(env, paths.lock(), in_use));
//   HF_TRY_VOID(claim->check());              // before something that must not be done twice
//   store.fence({claim->epoch(), claim->fence()});
//
// The kernel gives the lock of a dead process free, but not that of a host without power on a file system
// that hosts share. So the holder renews its record every two seconds, on a thread of its own, and one that
// waits on another host takes over when it has seen no renewal for the lease: it puts a new file in the place
// of the lock, with a greater epoch. Clocks of two hosts are never compared. Where the lock excludes
// processes of its own host only, as on some file systems, the epoch is what is left: whoever claims last is
// the writer.
//
// A holder that was only slow finds another claim in the file, and is the writer no more: check() fails with
// ExitCode::communication from then on. A check and what follows it are not one operation; between them lies
// no more than a system call, so a process that is stopped right there can still do that one thing. Where that
// would harm, it is a rename of what the next holder has removed by then (checkpoint/lineage.h).
//
// Threads: standing(), check() and what fence() returns are for any; the rest for one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/core/result.h"
#include "runtime/os/thread.h"

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

// LeaseTerms: how long a process that finds the lock held waits for its holder, whose host may be gone.
struct LeaseTerms {
  std::int64_t patience_ms = 10'000;  // with a holder that lives
  // Time without a renewal, on the clock of the waiting process, after which a holder on another host has
  // lost its claim; many times the time between two renewals.
  std::int64_t lease_ms = 20'000;
  std::int64_t alive_ms = 6'000;  // since a renewal: the holder lives
};

// HolderWatch decides what a process that waits for the lock does. Pure. Threads: one.
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

// ClaimCheck is Claim::check() for others; empty on a rank that has no claim.
using ClaimCheck = std::function<Result<void>()>;

class Claim {
 public:
  // Makes the error for the case that a living holder does not end.
  using InUse = std::function<Error(const std::string& holder)>;

  // Takes the claim. Waits for a holder as HolderWatch says, and reports when it waits for a lease. Errors:
  // in_use(); else as Env::lock, except that an error that may pass is ExitCode::checkpoint or data.
  // `renews`: false leaves renew() to the caller.
  static Result<std::unique_ptr<Claim>> take(Env& env, const std::string& path, const InUse& in_use,
                                             const LeaseTerms& terms = {}, bool renews = true);
  // Releases the lock; not before a renewal that a disk holds has come back.
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  std::uint64_t epoch() const;
  // Reads the file. Errors: communication when another claim is there; checkpoint when it cannot be read.
  Result<void> check() { return fence()(); }
  // Returns the result of the newest check, without reading the file.
  Result<void> still_held() const;
  // Returns check() as a function, for callers that may outlive this object.
  ClaimCheck fence() const;
  // Returns whether the claim may be written for, for frequent callers: a check that is a second old by both
  // clocks counts, and so does a claim whose file cannot be read.
  std::function<bool()> loose_fence() const;
  // Checks, and writes the next renewal.
  Result<void> renew();

 private:
  struct State;
  struct Held;
  Claim(std::shared_ptr<State> state, std::shared_ptr<Held> held)
      : state_(std::move(state)), held_(std::move(held)) {}
  Result<void> start_renewing();

  std::shared_ptr<State> state_;
  std::shared_ptr<Held> held_;      // the thread's too
  std::unique_ptr<Thread> thread_;  // null: it does not renew
};

// The loose fence of the newest claim, for the threads of a rank that has several claims one after another.
class ClaimGate {
 public:
  void use(std::function<bool()> fence) {
    const std::lock_guard guard(mutex_);
    fence_ = std::move(fence);
  }
  bool is_open() {
    std::function<bool()> fence;
    {
      const std::lock_guard guard(mutex_);
      fence = fence_;
    }
    return !fence || fence();
  }

 private:
  std::mutex mutex_;
  std::function<bool()> fence_;  // empty: no other rank has the run
};

}  // namespace holdfast::run
