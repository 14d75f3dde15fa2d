// Membership: which of the launched ranks make up the run now, and how those that are left go on together.
//
//   if (membership.communicator().abandoned()) {      // a peer is gone, or another rank said so
//     HF_TRY_VOID(membership.recover(timeout_ms, why));  // everyone that is left, each when it notices
//     Communicator& next = membership.communicator();  // another object; the one before stays abandoned
//   }
//   membership.start_new_ranks(count, task, timeout_ms);  // rank 0, between two steps, while all go on
//   membership.grow(count, timeout_ms, why);          // all ranks, where nobody is missing: they come in
//
// Epochs count the communicators: 0 is that of all launched ranks, and every recovery and every growth begins
// the next. A process that comes later learns from the others which it is, and has a number after theirs.
// Each has a communicator of its own that is never used again, so no frame of one can be taken for one of
// another; its first exchange says which epoch everybody believes it to be.
//
// Threads: that of the communicator. Errors: ExitCode::communication.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/collectives.h"
#include "parallel/comm/communicator.h"
#include "runtime/os/env.h"
#include "runtime/os/process_identity.h"

namespace holdfast::inline parallel {

// Says what became of the processes that start_new_ranks() started.
enum class NewRankState : std::uint8_t {
  none,       // none were started: grow() does it
  preparing,  // they have not done their task
  ready,      // they wait for grow()
  lost,       // one of them is gone: dismiss them
};

// Message layer that goes on without ranks that died, and with new ones: parallel/mpi over ULFM,
// parallel/local for ranks that are threads.
class ShrinkingWorld {
 public:
  virtual ~ShrinkingWorld() = default;
  // Returns the communicator of this epoch, which at first is that of all launched ranks.
  // Communicator::global_rank() is the launched rank. Every communicator lives as long as this object.
  virtual Communicator& current() = 0;
  // Abandons current() and makes one of the ranks that are left, all of which call it. When it returns nobody
  // writes any more into memory that was given to the one before, but what a dead rank of another host has
  // under way still. A rank that dies meanwhile is either left out or in the new one, whose use then fails.
  // Blocks; where it cannot return an error at its deadline it ends the process with
  // ExitCode::communication, after the sentence `why` that tells what came before.
  virtual Result<void> shrink(std::int64_t timeout_ms, const std::string& why) = 0;
  // Takes the function that says why no wait for others will ever end, or nothing; it is called from another
  // thread, too, while this one is in shrink(). Where it says something, waits end with that as their error,
  // and shrink() does not begin.
  virtual void watch(std::function<std::string()> cut_off) { static_cast<void>(cut_off); }
  // Starts `count` more processes of the same program ahead of grow(): they get the text `task`, do what it
  // says (the world does not know what), say that they are ready, and wait. Rank 0 of current() alone calls
  // it, and blocks until they run. At its deadline it ends the process, as shrink() does, but so that the
  // others go on where there are any: the call cannot be given up. One that waits dies when rank 0 does. A
  // world that cannot do so leaves it to grow().
  virtual Result<void> start_new_ranks(int count, const std::string& task, std::int64_t timeout_ms) {
    static_cast<void>(count), static_cast<void>(task), static_cast<void>(timeout_ms);
    return {};
  }
  // Returns why start_new_ranks() would not come back now; empty: nothing is known. Of rank 0.
  virtual std::string why_none_can_start() { return ""; }
  virtual NewRankState new_rank_state() { return NewRankState::none; }  // of rank 0; does not block
  virtual void dismiss_new_ranks() {}                                   // they end themselves
  // Makes a communicator of all ranks of current() and the processes that rank 0 has started, or now starts,
  // `count` of them. All ranks of current() call it, with nothing under way there. An error that does not
  // abandon current() means that no new rank has come, and nothing has changed. After any other it is for
  // shrink() to go on without the new ones, which end themselves. Blocks, as shrink() does, and ends the
  // process as that does: MPI hangs where somebody dies at the wrong moment.
  virtual Result<void> grow(int count, std::int64_t timeout_ms, const std::string& why) = 0;
  // Returns whether current() is abandoned because another rank had abandoned it: what that one says is
  // nearer to the cause.
  virtual bool reported_by_peer() const { return false; }
  // Returns whether other ranks started this process; then current() is the group that took it in.
  virtual bool is_joiner() const = 0;
};

struct Member {
  int launched_rank = 0;
  std::int64_t process_id = 0;
  std::int64_t started_ticks = 0;  // ProcessFacts; 0: not known
  std::string host;                // its name, for people
  std::string host_id = {};        // Env::host_id(): equal names may be those of two hosts

  ProcessIdentity identity() const { return {.id = process_id, .started_ticks = started_ticks}; }
  static void visit_fields(auto& self, auto&& visit) {
    visit("launched_rank", self.launched_rank);
    visit("process_id", self.process_id);
    visit("started_ticks", self.started_ticks);
    visit("host", self.host);
    visit("host_id", self.host_id);
  }
};

struct MembershipView {
  std::uint64_t epoch = 0;
  std::vector<Member> members;  // by rank of the epoch's communicator; ascending launched ranks

  static void visit_fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("members", self.members);
  }
};

class Membership {
 public:
  // Returns whether a member that does not answer is known to be dead, beyond doubt.
  using DeathProof = std::function<bool(const Member&)>;

  // Begins with all launched ranks together, or, in a process that came later, with those that are in grow().
  // `world` outlives it. `proof`: beside what the members of a host see for themselves, that a process is
  // gone. `listener`: hears of waits; null: nobody does.
  static Result<std::unique_ptr<Membership>> begin(Env& env, ShrinkingWorld& world, std::int64_t timeout_ms,
                                                   DeathProof proof = {}, WaitListener* listener = nullptr);

  // Knowledge of other hosts beside what MPI tells, from their guards (watchdog/peer_host_table.h). A member
  // out of reach is not dead, so MPI would wait for it, and no one can be left behind: the ranks that miss it
  // end, and the run is started again with those that there are.
  struct HostKnowledge {
    DeathProof has_ended;
    std::function<bool(const Member&)> out_of_reach;
  };
  void use(HostKnowledge knowledge);
  // Returns whether a recovery ended because members are out of reach; lost_quorum(): whether this side may
  // be the smaller one. Then the others may be going on, and this side must not write.
  bool cut_off() const { return cut_off_; }
  bool lost_quorum() const { return lost_quorum_; }

  const MembershipView& view() const { return view_; }
  Communicator& communicator() { return world_->current(); }
  std::vector<std::string> hosts() const;  // by rank

  // Leaves the ranks behind that do not answer any more: revoke, drain, shrink, and a first exchange in which
  // all get the same view or the same error: too few are left to know that they are the run (quorum.h). That
  // one leaves a communicator that works; every other error leaves none. A rank that dies meanwhile is left
  // behind, too.
  Result<void> recover(std::int64_t timeout_ms, const std::string& why);

  // Calls the function of ShrinkingWorld with this name, as do the next three.
  Result<void> start_new_ranks(int count, const std::string& task, std::int64_t timeout_ms) {
    return world_->start_new_ranks(count, task, timeout_ms);
  }
  std::string why_none_can_start() { return world_->why_none_can_start(); }
  NewRankState new_rank_state() { return world_->new_rank_state(); }
  void dismiss_new_ranks() { world_->dismiss_new_ranks(); }
  // Calls ShrinkingWorld::grow(), and makes the first exchange of the epoch that it begins. An error that
  // leaves communicator() as it was means that no new rank has come. After any other: recover().
  Result<void> grow(int count, std::int64_t timeout_ms, const std::string& why);
  bool is_joiner() const { return world_->is_joiner(); }
  bool reported_by_peer() const { return world_->reported_by_peer(); }

 private:
  Membership(Env& env, ShrinkingWorld& world, DeathProof proof, WaitListener* listener)
      : env_(&env),
        world_(&world),
        proof_(std::move(proof)),
        listener_(listener),
        epoch_(world.is_joiner() ? epoch_not_known : 0) {}
  Result<MembershipView> introduce(const Waiter& waiter, MembershipView& newest);
  Result<void> check_quorum(const Waiter& waiter, const MembershipView& before, const MembershipView& now);
  std::vector<int> proven_dead(const std::vector<Member>& missing, const MembershipView& before,
                               const MembershipView& now);
  bool is_proven_dead(const Member& member);
  std::vector<Member> out_of_reach() const;
  std::string why_cut_off() const;
  Error end_cut_off();

  void look_around();

  static constexpr std::uint64_t epoch_not_known = ~std::uint64_t{0};  // of one that came later

  Env* env_;
  ShrinkingWorld* world_;
  DeathProof proof_;
  WaitListener* listener_;
  HostKnowledge knowledge_;
  bool cut_off_ = false, lost_quorum_ = false;
  std::uint64_t epoch_;
  MembershipView view_;        // the newest that was agreed on
  std::vector<int> in_sight_;  // launched ranks whose processes this one can see
};

// Returns the members of `before` that are not in `now`.
std::vector<Member> members_lost(const MembershipView& before, const MembershipView& now);
// Returns how many hosts the members are on.
int count_hosts(const MembershipView& view);
// Returns how many members each host has, by name.
std::map<std::string, int> ranks_by_host(const MembershipView& view);
// Returns "rank 2 (host a)" or "ranks 1 (host a), 3 (host b)".
std::string name_members(const std::vector<Member>& members);

}  // namespace holdfast::inline parallel
