#include "parallel/group/membership.h"

#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <set>

#include "parallel/comm/gather.h"
#include "parallel/group/quorum.h"
#include "runtime/os/processes.h"

namespace holdfast::parallel {
namespace {

// Message by which a rank introduces itself in the first exchange of an epoch.
struct Introduction {
  std::uint64_t epoch = 0;  // epoch that the rank believes to be in
  Member self;
  std::optional<std::uint64_t> agreed = {};  // epoch of the newest view that the rank has agreed on

  static void visit_fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("self", self.self);
    visit("agreed", self.agreed);
  }
};

std::vector<int> ranks_of(const std::vector<Member>& members) {
  std::vector<int> ranks;
  for (const Member& member : members) ranks.push_back(member.launched_rank);
  return ranks;
}

}  // namespace

std::vector<Member> members_lost(const MembershipView& before, const MembershipView& now) {
  std::vector<Member> lost = before.members;
  std::erase_if(lost, [&](const Member& member) {
    return std::ranges::binary_search(now.members, member.launched_rank, {}, &Member::launched_rank);
  });
  return lost;
}

int count_hosts(const MembershipView& view) {
  std::set<std::string> hosts;
  for (const Member& member : view.members) hosts.insert(member.host_id);
  return static_cast<int>(hosts.size());
}

std::map<std::string, int> ranks_by_host(const MembershipView& view) {
  std::map<std::string, int> ranks;
  for (const Member& member : view.members) ++ranks[member.host];
  return ranks;
}

std::string name_members(const std::vector<Member>& members) {
  constexpr std::size_t named_max = 8;
  std::string text = members.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(members.size(), named_max); ++i) {
    text += fmt::format("{}{} (host {})", i == 0 ? " " : ", ", members[i].launched_rank, members[i].host);
  }
  if (members.size() > named_max) text += fmt::format(" and {} more", members.size() - named_max);
  return text;
}

Result<std::unique_ptr<Membership>> Membership::begin(Env& env, ShrinkingWorld& world,
                                                      std::int64_t timeout_ms, DeathProof proof,
                                                      WaitListener* listener) {
  std::unique_ptr<Membership> membership(new Membership(env, world, std::move(proof), listener));
  HF_TRY(membership->view_, membership->introduce({env, timeout_ms, listener}));
  membership->look_around();
  return membership;
}

void Membership::look_around() {
  in_sight_.clear();
  for (const Member& member : view_.members) {
    const bool same = member.started_ticks != 0 &&
                      ProcessIdentity::of(env_->processes(), member.process_id) == member.identity();
    if (member.host_id == env_->host_id() && same) in_sight_.push_back(member.launched_rank);
  }
}

Result<void> Membership::grow(int count, std::int64_t timeout_ms, const std::string& why) {
  deadline_ns_ = env_->monotonic_ns() + timeout_ms * 1'000'000;
  const Result<void> grown = world_->grow(count, timeout_ms, why);
  if (!communicator().abandoned()) deadline_ns_ = never_ns;
  HF_TRY_VOID(grown);
  ++epoch_;
  HF_TRY(view_, introduce({*env_, timeout_ms, listener_}));
  look_around();
  return {};
}

std::vector<std::string> Membership::hosts() const {
  std::vector<std::string> hosts;
  for (const Member& member : view_.members) hosts.push_back(member.host);
  return hosts;
}

void Membership::use(HostKnowledge knowledge) {
  knowledge_ = std::move(knowledge);
  world_->watch([this] { return why_cut_off(); });
}

std::vector<Member> Membership::out_of_reach() const {
  std::vector<Member> away;
  if (!knowledge_.out_of_reach) return away;
  if (knowledge_.may_miss_a_member && !knowledge_.may_miss_a_member()) return away;
  std::ranges::copy_if(view_.members, std::back_inserter(away), knowledge_.out_of_reach);
  return away;
}

std::string Membership::why_cut_off() const {
  const std::vector<Member> away = out_of_reach();
  if (away.empty()) return "";
  return fmt::format("{} {} unreachable: nothing is heard from there, and nothing proves that {} died",
                     name_members(away), away.size() == 1 ? "is" : "are", away.size() == 1 ? "it" : "they");
}

// Ends a recovery because members are unreachable. Each side counts the members that it hears and those that
// it knows to be dead.
Error Membership::end_cut_off() {
  cut_off_ = true;
  const std::vector<Member> away = out_of_reach();
  QuorumFacts facts{.before = ranks_of(view_.members), .left = {}, .dead = {}};
  for (const Member& member : view_.members) {
    const bool is_away = std::ranges::find(away, member.launched_rank, &Member::launched_rank) != away.end();
    if (is_proven_dead(member)) {
      facts.dead.push_back(member.launched_rank);
    } else if (!is_away) {
      facts.left.push_back(member.launched_rank);
    }
  }
  lost_quorum_ = !has_quorum(facts);
  if (!lost_quorum_) {
    return fail(ExitCode::communication, "{}; the run ends here, start it again: it goes on without them",
                why_cut_off());
  }
  return fail(
      ExitCode::communication,
      "{}; {} of {} ranks are left here, so the others may go on by themselves, and a run must not go "
      "on twice: nothing more is written from here. Repair the network, then start the run again",
      why_cut_off(), facts.left.size(), facts.before.size());
}

Result<void> Membership::recover(std::int64_t timeout_ms, const std::string& why) {
  deadline_ns_ = env_->monotonic_ns() + timeout_ms * 1'000'000;
  const auto left_ms = [&] { return (deadline_ns_ - env_->monotonic_ns()) / 1'000'000; };
  while (left_ms() > 0) {
    if (!out_of_reach().empty()) return end_cut_off();
    if (const Result<void> shrunk = world_->shrink(left_ms(), why); !shrunk.ok()) {
      return out_of_reach().empty() ? shrunk.error() : end_cut_off();
    }
    if (epoch_ != epoch_not_known) ++epoch_;
    const Waiter waiter(*env_, std::max<std::int64_t>(1, left_ms()), listener_);
    MembershipView newest;
    Result<MembershipView> now = introduce(waiter, &newest);
    Result<void> outcome = outcome_of(now);
    if (outcome.ok()) outcome = check_quorum(waiter, newest, *now);
    if (outcome.ok()) {
      view_ = std::move(now).value();
      deadline_ns_ = never_ns;
    }
    if (outcome.ok() || !communicator().abandoned()) return outcome;
  }
  communicator().abandon();
  return fail(ExitCode::communication,
              "rank {} and the ranks that are left did not come together within {} ms: one of them hangs or "
              "is unreachable; start the run again",
              communicator().global_rank(communicator().rank()), timeout_ms);
}

// Exchanges introductions. `newest` gets the newest view that any of the members has agreed on before; null: nobody asks.
// It is sent once, and only where some do not have it: it is as long as there are ranks.
Result<MembershipView> Membership::introduce(const Waiter& waiter, MembershipView* newest) {
  Communicator& group = communicator();
  const ProcessIdentity own = ProcessIdentity::of(env_->processes(), env_->process_id());
  own_rank_ = group.global_rank(group.rank());
  Introduction mine{.epoch = epoch_,
                    .self = {.launched_rank = own_rank_,
                             .process_id = own.id,
                             .started_ticks = own.started_ticks,
                             .host = env_->host_name(),
                             .host_id = env_->host_id()}};
  if (!view_.members.empty()) mine.agreed = view_.epoch;
  HF_TRY(std::vector<Introduction> all, gather(group, waiter, mine));
  for (const Introduction& said : all) {
    if (epoch_ == epoch_not_known) epoch_ = said.epoch;
  }
  MembershipView now{.epoch = epoch_, .members = {}};
  for (const Introduction& said : all) {
    if (said.epoch != epoch_ && said.epoch != epoch_not_known) {
      group.abandon();
      return fail(ExitCode::communication,
                  "rank {} is in epoch {} of the run and rank {} in epoch {}: they have not seen the same "
                  "deaths; start the run again",
                  mine.self.launched_rank, epoch_, said.self.launched_rank, said.epoch);
    }
    now.members.push_back(said.self);
  }
  if (newest == nullptr) return now;
  const auto knows = std::ranges::max_element(all, {}, &Introduction::agreed);  // the first of those that do
  *newest = view_;
  if (std::ranges::all_of(all, [&](const Introduction& said) { return said.agreed == knows->agreed; }))
    return now;
  const auto teller = static_cast<int>(knows - all.begin());
  const std::string told = group.rank() == teller ? record_to_text(view_) : "";
  HF_TRY(const std::vector<std::string> texts, all_gather_text(group, waiter, told));
  HF_TRY(*newest, record_from_text<MembershipView>(texts[static_cast<std::size_t>(teller)]));
  return now;
}

// Checks that the ranks that are left may go on. A member that one rank knows to be dead counts as dead for
// all.
Result<void> Membership::check_quorum(const Waiter& waiter, const MembershipView& before,
                                      const MembershipView& now) {
  const std::vector<Member> missing = members_lost(before, now);
  const std::vector<int> dead = proven_dead(missing, before, now);
  std::vector<std::int64_t> proofs;  // by missing member, how many ranks know that it is dead
  for (const Member& member : missing) proofs.push_back(std::ranges::count(dead, member.launched_rank));
  HF_TRY_VOID(all_reduce_sum(communicator(), waiter, proofs));
  QuorumFacts facts{.before = ranks_of(before.members), .left = ranks_of(now.members), .dead = {}};
  for (std::size_t i = 0; i < missing.size(); ++i) {
    if (proofs[i] > 0) facts.dead.push_back(missing[i].launched_rank);
  }
  if (has_quorum(facts)) return {};
  return fail(ExitCode::communication,
              "{} of {} ranks are left, and nothing proves that {} died: they may be cut off and go on by "
              "themselves, and a run must not go on twice. Repair the network, then start the run again",
              facts.left.size(), facts.before.size(), name_members(missing));
}

// Returns the launched ranks of missing members that are known to be dead. A process closes its connections a
// moment before it is gone, and the guard of another host reports this a moment later; waiting for that is
// worthwhile where the quorum depends on it.
std::vector<int> Membership::proven_dead(const std::vector<Member>& missing, const MembershipView& before,
                                         const MembershipView& now) {
  constexpr std::int64_t patience_ns = 2'000'000'000, look_again_us = 500;
  const std::int64_t begin_ns = env_->monotonic_ns();
  while (true) {
    QuorumFacts facts{.before = ranks_of(before.members), .left = ranks_of(now.members), .dead = {}};
    bool may_follow = false, may_be_reported = false;
    for (const Member& member : missing) {
      if (is_proven_dead(member)) {
        facts.dead.push_back(member.launched_rank);
      } else {
        const bool in_sight = std::ranges::find(in_sight_, member.launched_rank) != in_sight_.end();
        (in_sight ? may_follow : may_be_reported) = true;
      }
    }
    may_follow = may_follow || (may_be_reported && knowledge_.has_ended && !has_quorum(facts));
    if (!may_follow || env_->monotonic_ns() - begin_ns > patience_ns) return facts.dead;
    env_->sleep_us(look_again_us);
  }
}

// Returns the other members that may wait for this rank.
std::vector<Member> Membership::others_not_dead() {
  std::vector<Member> others = view_.members;
  std::erase_if(others, [&](const Member& member) {
    return member.launched_rank == own_rank_ || is_proven_dead(member);
  });
  return others;
}

bool Membership::is_awaited(bool has_guard) {
  constexpr std::int64_t look_ns = 2'000'000'000, apart_ns = 50'000'000, look_again_us = 1'000,
                         slack_ns = 10'000'000;
  if (cut_off_ || !out_of_reach().empty()) return false;
  const std::int64_t begin_ns = env_->monotonic_ns();
  const bool nobody_ends_them = !has_guard && deadline_ns_ - begin_ns < slack_ns;
  // One of several that end the others is the first.
  const std::int64_t end_ns =
      begin_ns + look_ns + (nobody_ends_them ? std::min(own_rank_, 32) * apart_ns : 0);
  while (true) {
    const std::vector<Member> others = others_not_dead();
    switch (leaving_step({.rank = own_rank_,
                          .others = ranks_of(others),
                          .looked_long = env_->monotonic_ns() > end_ns,
                          .nobody_ends_them = nobody_ends_them})) {
      case LeavingStep::exit_with_code:
        return false;
      case LeavingStep::look_again:
        env_->sleep_us(look_again_us);
        break;
      case LeavingStep::die:
        return true;
      case LeavingStep::end_others:
        for (const Member& member : others) end_if_in_sight(member);
        return false;
    }
  }
}

void Membership::end_if_in_sight(const Member& member) {
  if (std::ranges::find(in_sight_, member.launched_rank) == in_sight_.end()) return;
  const Result<std::unique_ptr<Process>> process = member.identity().open(env_->processes());
  if (process.ok() && *process != nullptr) static_cast<void>((*process)->signal(SIGKILL).ok());
}

bool Membership::is_proven_dead(const Member& member) {
  if (proof_ && proof_(member)) return true;
  if (knowledge_.has_ended && knowledge_.has_ended(member)) return true;
  if (std::ranges::find(in_sight_, member.launched_rank) == in_sight_.end()) return false;
  return member.identity().has_ended(env_->processes());
}

}  // namespace holdfast::parallel
