// Membership: keeps track of which launched ranks make up the run now, and rebuilds the group from those that
// are left.
//
//   if (membership.communicator().abandoned()) {      // a peer is gone, or another rank reported so
//     HF_TRY_VOID(membership.recover(timeout_ms, why));  // all ranks left, each when it detects this
//     Communicator& next = membership.communicator();  // another object; the previous one stays abandoned
//   }
//   membership.start_new_ranks(count, task, timeout_ms);  // rank 0, between two steps, while all continue
//   membership.grow(count, timeout_ms, why);          // all ranks, with none missing: takes the joiners in
//
// Membership epochs number the communicators: 0 is that of all launched ranks, and every recovery and every
// growth begins the next. A joiner learns its epoch from the others, and has a number after theirs. Each
// epoch has a communicator of its own that is never used again, so no frame of one can be taken for one of
// another; its first exchange says which epoch each rank believes it to be.
//
// Threads: the thread of the communicator. Errors: ExitCode::communication.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/collectives.h"
#include "parallel/comm/communicator.h"
#include "runtime/os/env.h"
#include "runtime/os/process_identity.h"

namespace holdfast::parallel {

// State of the processes that start_new_ranks() started.
enum class NewRankState : std::uint8_t {
  none,       // none were started: grow() starts them
  preparing,  // they have not finished their task
  ready,      // they wait for grow()
  lost,       // one of them is gone: dismiss them all
};

// Message layer that continues without dead ranks, and with new ones: parallel/mpi over ULFM.
class ShrinkingWorld {
 public:
  virtual ~ShrinkingWorld() = default;
  // Returns the communicator of this epoch, which is initially that of all launched ranks.
  // Communicator::global_rank() is the launched rank. Every communicator lives as long as this object.
  virtual Communicator& current() = 0;
  // Abandons current() and makes a communicator of the ranks that are left, all of which call this. When it
  // returns, no rank writes any more into memory that was given to the previous one, except for messages of a
  // dead rank of another host that are still on their way. A rank that dies meanwhile is either left out or
  // in the new communicator, whose use then fails. Blocks; where it cannot return an error at its deadline,
  // it ends the process with ExitCode::communication after printing the sentence `why`, which says what
  // happened before.
  virtual Result<void> shrink(std::int64_t timeout_ms, const std::string& why) = 0;
  // Sets the function that returns why no wait for other ranks will ever end, or an empty text; it is also
  // called from another thread while this one is in shrink(). When it returns a reason, waits end with that
  // as their error, and shrink() does not begin.
  virtual void watch(std::function<std::string()> cut_off) { static_cast<void>(cut_off); }
  // Starts `count` more processes of the same program ahead of grow(): each gets the text `task`, performs it
  // (its meaning is not known here), reports that it is ready, and waits. Only rank 0 of current() calls it,
  // and blocks until they run. At its deadline it ends the process, as shrink() does, but so that the other
  // ranks, if there are any, continue: the call cannot be cancelled. A waiting process dies when rank 0 does.
  // A world that cannot do so leaves it to grow().
  virtual Result<void> start_new_ranks(int count, const std::string& task, std::int64_t timeout_ms) {
    static_cast<void>(count), static_cast<void>(task), static_cast<void>(timeout_ms);
    return {};
  }
  // Returns why start_new_ranks() would not return now; empty: no reason is known. For rank 0.
  virtual std::string why_none_can_start() { return ""; }
  virtual NewRankState new_rank_state() { return NewRankState::none; }  // for rank 0; does not block
  virtual void dismiss_new_ranks() {}                                   // the new ranks end themselves
  // Sets what ends this process, by whatever thread, where a call that blocks has missed its deadline; if it returns,
  // the process ends with ExitCode::communication. See Membership::is_awaited().
  virtual void leaves_by(std::function<void()> leave) { static_cast<void>(leave); }
  // Makes a communicator of all ranks of current() and of the `count` processes that rank 0 has started, or
  // starts now. All ranks of current() call it, with no message under way there. An error that does not
  // abandon current() means that no new rank has joined, and nothing has changed. After any other error,
  // shrink() continues without the new ranks, which end themselves. Blocks, as shrink() does, and ends the
  // process like that: MPI hangs where a rank dies at the wrong moment.
  virtual Result<void> grow(int count, std::int64_t timeout_ms, const std::string& why) = 0;
  // Returns whether current() is abandoned because another rank had abandoned it: the error of that rank is
  // closer to the cause.
  virtual bool reported_by_peer() const { return false; }
  // Returns whether other ranks started this process; then current() is the group that took it in.
  virtual bool is_joiner() const = 0;
};

struct Member {
  int launched_rank = 0;
  std::int64_t process_id = 0;
  std::int64_t started_ticks = 0;  // ProcessFacts; 0: not known
  std::string host;                // host name, for messages
  std::string host_id = {};        // Env::host_id(): two hosts may have equal names

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

  // Begins with all launched ranks together, or, in a joiner, with those that are in grow(). `world` outlives
  // it. `proof` says that a process is gone, in addition to what the members of a host observe themselves.
  // `listener` is notified of waits; null: there is none.
  static Result<std::unique_ptr<Membership>> begin(Env& env, ShrinkingWorld& world, std::int64_t timeout_ms,
                                                   DeathProof proof = {}, WaitListener* listener = nullptr);

  // Knowledge of other hosts from their guards (watchdog/peer_host_table.h), in addition to what MPI reports.
  // An unreachable member is not dead, so MPI would wait for it, and no member can be excluded: the ranks
  // that miss it end, and the run is started again with those that there are.
  struct HostKnowledge {
    DeathProof has_ended;
    std::function<bool(const Member&)> out_of_reach;
    // Returns false if out_of_reach() is false for all members; empty: each member is asked. Membership asks
    // every few milliseconds of a wait, and of thousands of members.
    std::function<bool()> may_miss_a_member = {};
  };
  void use(HostKnowledge knowledge);
  // cut_off() returns whether a recovery ended because members are unreachable; lost_quorum() returns whether
  // this side may be the smaller one. Then the others may be going on, and this side must not write.
  bool cut_off() const { return cut_off_; }
  bool lost_quorum() const { return lost_quorum_; }

  const MembershipView& view() const { return view_; }
  Communicator& communicator() { return world_->current(); }
  int own_rank() const { return own_rank_; }  // launched
  std::vector<std::string> hosts() const;     // by rank

  // Rebuilds the group without the ranks that do not answer any more: revoke, drain, shrink, and a first
  // exchange in which all get the same view or the same error, which is that too few are left to know that
  // they are the run (quorum.h). After that error the communicator works; after every other error there is
  // none. A rank that dies meanwhile is excluded, too.
  Result<void> recover(std::int64_t timeout_ms, const std::string& why);

  // Returns whether this rank, which has given up its group and is about to end, must die by SIGKILL: others may
  // wait for it in MPI, which does not tell them of an exit code (leaving_step()). May wait for a moment, for the others
  // to end as well. Where some did not come in the time of recover(), and no guard would end them, it ends them: the
  // run is over. Returns false also where members are unreachable: the run ends for all, and the next start goes on
  // from what is in the memory of all hosts that it has, not only of those that went on.
  bool is_awaited(bool has_guard);
  // Calls the function of ShrinkingWorld with this name, as the next four do.
  void leaves_by(std::function<void()> leave) { world_->leaves_by(std::move(leave)); }
  Result<void> start_new_ranks(int count, const std::string& task, std::int64_t timeout_ms) {
    return world_->start_new_ranks(count, task, timeout_ms);
  }
  std::string why_none_can_start() { return world_->why_none_can_start(); }
  NewRankState new_rank_state() { return world_->new_rank_state(); }
  void dismiss_new_ranks() { world_->dismiss_new_ranks(); }
  // Calls ShrinkingWorld::grow(), and makes the first exchange of the epoch that it begins. An error that
  // leaves communicator() as it was means that no new rank has joined. After any other error, call recover().
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
  Result<MembershipView> introduce(const Waiter& waiter, MembershipView* newest = nullptr);
  Result<void> check_quorum(const Waiter& waiter, const MembershipView& before, const MembershipView& now);
  std::vector<int> proven_dead(const std::vector<Member>& missing, const MembershipView& before,
                               const MembershipView& now);
  bool is_proven_dead(const Member& member);
  std::vector<Member> others_not_dead();
  void end_if_in_sight(const Member& member);
  std::vector<Member> out_of_reach() const;
  std::string why_cut_off() const;
  Error end_cut_off();

  void look_around();

  static constexpr std::int64_t never_ns = std::numeric_limits<std::int64_t>::max();
  static constexpr std::uint64_t epoch_not_known = ~std::uint64_t{0};  // of a joiner

  Env* env_;
  ShrinkingWorld* world_;
  DeathProof proof_;
  WaitListener* listener_;
  HostKnowledge knowledge_;
  bool cut_off_ = false, lost_quorum_ = false;
  std::uint64_t epoch_;
  int own_rank_ = 0;
  std::int64_t deadline_ns_ = never_ns;  // of the recovery, or growth, that is under way
  MembershipView view_;                  // newest view that was agreed on
  std::vector<int> in_sight_;            // launched ranks whose processes this process can observe
};

// Returns the members of `before` that are not in `now`.
std::vector<Member> members_lost(const MembershipView& before, const MembershipView& now);
// Returns how many hosts the members are on.
int count_hosts(const MembershipView& view);
// Returns how many members each host has, by name.
std::map<std::string, int> ranks_by_host(const MembershipView& view);
// Returns "rank 2 (host a)" or "ranks 1 (host a), 3 (host b)".
std::string name_members(const std::vector<Member>& members);

}  // namespace holdfast::parallel
