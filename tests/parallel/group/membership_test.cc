// Ranks that are threads and die: what the others agree on.
#include "parallel/group/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/parallel/communicator_contract.h"
#include "tests/parallel/patient.h"
#include "tests/support/local_world.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t timeout_ms = 60'000;

std::vector<int> launched_ranks(const MembershipView& view) {
  std::vector<int> ranks;
  for (const Member& member : view.members) ranks.push_back(member.launched_rank);
  return ranks;
}

bool certainly_dead(const Member&) {
  return true;
}

using Body = std::function<void(int rank, Membership& membership)>;

// body() on every rank; a rank dies when its body returns.
void run_ranks(int ranks, const Membership::DeathProof& proof, const Body& body) {
  LocalWorld world(ranks);
  ThreadRankEnv env(posix_env());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<ShrinkingWorld> mine = world.join(rank);
      Result<std::unique_ptr<Membership>> membership = Membership::begin(env, *mine, timeout_ms, proof);
      ASSERT_TRUE(membership.ok()) << membership.error().message;
      body(rank, **membership);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Until somebody is missed.
Result<void> exchange_until_a_death(Membership& membership) {
  while (true) {
    std::vector<std::int64_t> one = {1};
    HF_TRY_VOID(all_reduce_sum(membership.communicator(), patient(), one));
  }
}

TEST(Membership, TheFirstEpochIsAllOfThem) {
  run_ranks(3, {}, [](int rank, Membership& membership) {
    EXPECT_EQ(membership.view().epoch, 0U);
    EXPECT_THAT(launched_ranks(membership.view()), ElementsAre(0, 1, 2));
    EXPECT_EQ(membership.view().members[0].host, posix_env().host_name());
    EXPECT_EQ(membership.view().members[0].process_id, posix_env().process_id());
    EXPECT_EQ(membership.communicator().rank(), rank);
  });
}

TEST(Membership, WhoIsLeftGoesOnUnderItsLaunchedRank) {
  run_ranks(4, certainly_dead, [](int rank, Membership& membership) {
    if (rank == 1) return;
    const Result<void> fault = exchange_until_a_death(membership);
    EXPECT_FALSE(fault.ok());
    Communicator& before = membership.communicator();
    HF_EXPECT_OK(membership.recover(timeout_ms, "somebody is gone"));
    EXPECT_TRUE(before.abandoned());
    EXPECT_EQ(membership.view().epoch, 1U);
    EXPECT_THAT(launched_ranks(membership.view()), ElementsAre(0, 2, 3));
    Communicator& now = membership.communicator();
    EXPECT_EQ(now.global_rank(now.rank()), rank);
    HF_EXPECT_OK(test::check_messages(now, patient()));
    HF_EXPECT_OK(test::check_collectives(now, patient()));
  });
}

// Down to the last one, one after another and two at once.
TEST(Membership, EveryDeathBeginsAnEpoch) {
  run_ranks(5, certainly_dead, [](int rank, Membership& membership) {
    const std::vector<std::vector<int>> dying = {{0}, {2, 4}, {3}};
    std::vector<int> left = {0, 1, 2, 3, 4};
    for (const std::vector<int>& dead : dying) {
      // All have entered the epoch before somebody leaves it.
      HF_EXPECT_OK(barrier(membership.communicator(), patient()));
      if (std::ranges::find(dead, rank) != dead.end()) return;
      for (const int each : dead) std::erase(left, each);
      while (launched_ranks(membership.view()) != left) {
        EXPECT_FALSE(exchange_until_a_death(membership).ok());
        HF_EXPECT_OK(membership.recover(timeout_ms, "somebody is gone"));
      }
    }
    EXPECT_THAT(launched_ranks(membership.view()), ElementsAre(1));
    EXPECT_EQ(membership.communicator().size(), 1);
  });
}

// A rank dies when it is missed itself: while the others come together, or right behind it.
TEST(Membership, ADeathDuringRecoveryIsRecoveredToo) {
  for (const bool takes_part : {false, true}) {
    run_ranks(4, certainly_dead, [takes_part](int rank, Membership& membership) {
      if (rank == 3) return;
      EXPECT_FALSE(exchange_until_a_death(membership).ok());
      if (rank == 0) {
        if (takes_part) static_cast<void>(membership.recover(timeout_ms, "somebody is gone"));
        return;
      }
      while (membership.view().members.size() > 2) {
        HF_EXPECT_OK(membership.recover(timeout_ms, "somebody is gone"));
        if (membership.view().members.size() == 2) break;
        EXPECT_FALSE(exchange_until_a_death(membership).ok());
      }
      EXPECT_THAT(launched_ranks(membership.view()), ElementsAre(1, 2));
      HF_EXPECT_OK(barrier(membership.communicator(), patient()));
    });
  }
}

// Whoever's end of the world is one of these dies of its `messages`th message in a recovery.
struct Death {};
class DyingWorld final : public ShrinkingWorld {
 public:
  DyingWorld(std::unique_ptr<ShrinkingWorld> inner, int messages)
      : inner_(std::move(inner)), messages_(messages) {}
  Communicator& current() override {
    Communicator& newest = inner_->current();
    if (ends_.empty() || &ends_.back()->inner() != &newest)
      ends_.push_back(std::make_unique<End>(*this, newest));
    return *ends_.back();
  }
  Result<void> shrink(std::int64_t timeout, const std::string& why) override {
    recovers_ = true;
    return inner_->shrink(timeout, why);
  }
  Result<void> grow(int count, std::int64_t timeout, const std::string& why) override {
    return inner_->grow(count, timeout, why);
  }
  bool is_joiner() const override { return inner_->is_joiner(); }

 private:
  class End final : public Communicator {
   public:
    End(DyingWorld& world, Communicator& inner) : world_(world), inner_(inner) {}
    Communicator& inner() { return inner_; }
    int rank() const override { return inner_.rank(); }
    int size() const override { return inner_.size(); }
    int global_rank(int rank) const override { return inner_.global_rank(rank); }
    Result<Request> send(std::span<const std::byte> source, int peer, int tag) override {
      world_.count();
      return inner_.send(source, peer, tag);
    }
    Result<Request> receive(std::span<std::byte> target, int peer, int tag) override {
      world_.count();
      return inner_.receive(target, peer, tag);
    }
    Result<bool> test(Request request) override { return inner_.test(request); }
    Result<void> check_peers() override { return inner_.check_peers(); }
    void abandon() override { inner_.abandon(); }
    bool abandoned() override { return inner_.abandoned(); }

   private:
    DyingWorld& world_;
    Communicator& inner_;
  };

  void count() {
    if (recovers_ && --messages_ == 0) throw Death{};
  }

  std::unique_ptr<ShrinkingWorld> inner_;
  std::vector<std::unique_ptr<End>> ends_;
  int messages_;
  bool recovers_ = false;
};

// Wherever a rank dies in a recovery, some of the others may have agreed on its outcome and some not. Those that have tell
// the others, so that all go on from one view.
TEST(Membership, ADeathAtAnyMessageOfARecoveryIsRecoveredToo) {
  constexpr int ranks = 5, lost = 4, messages_max = 16;
  for (int dying = 0; dying < lost; ++dying) {
    for (int messages = 1; messages <= messages_max; ++messages) {
      LocalWorld world(ranks);
      ThreadRankEnv env(posix_env());
      std::vector<std::thread> threads;
      const auto run_rank = [&](int rank) {
        DyingWorld mine(world.join(rank), rank == dying ? messages : 0);
        Result<std::unique_ptr<Membership>> membership =
            Membership::begin(env, mine, timeout_ms, certainly_dead);
        ASSERT_TRUE(membership.ok()) << membership.error().message;
        if (rank == lost) return;
        // A rank that has not died of so many messages does not die.
        std::size_t left = 0;
        while (left != lost - 1) {
          EXPECT_FALSE(exchange_until_a_death(**membership).ok());
          const Result<void> recovered = (*membership)->recover(10'000, "somebody is gone");
          ASSERT_TRUE(recovered.ok()) << recovered.error().message;
          left = (*membership)->view().members.size();
          if (rank == dying) return;
        }
        EXPECT_EQ((*membership)->communicator().size(), lost - 1);
      };
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&run_rank, rank] {
          try {
            run_rank(rank);
          } catch (const Death&) {
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      if (testing::Test::HasFailure()) FAIL() << "rank " << dying << " dies of message " << messages;
    }
  }
}

TEST(Membership, WhoCannotProveADeathMustBeTheMajority) {
  run_ranks(4, {}, [](int rank, Membership& membership) {
    if (rank == 0 || rank == 1) return;
    Result<void> outcome;
    while (outcome.ok() && membership.view().members.size() > 2) {
      EXPECT_FALSE(exchange_until_a_death(membership).ok());
      outcome = membership.recover(timeout_ms, "somebody is gone");
    }
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, ExitCode::communication);
    EXPECT_THAT(outcome.error().message, HasSubstr("nothing proves that rank"));
    EXPECT_FALSE(membership.communicator().abandoned()) << "they end together";
    HF_EXPECT_OK(barrier(membership.communicator(), patient()));
  });
}

// Half of the ranks are left, without the lowest, and only one of them has been told what became of the
// others.
TEST(Membership, ADeathThatOneOfThemKnowsOfIsProvenForAll) {
  run_ranks(4, {}, [](int rank, Membership& membership) {
    if (rank < 2) return;
    if (rank == 2)
      membership.use(
          {.has_ended = [](const Member& member) { return member.launched_rank < 2; }, .out_of_reach = {}});
    while (membership.view().members.size() > 2) {
      EXPECT_FALSE(exchange_until_a_death(membership).ok());
      const Result<void> outcome = membership.recover(timeout_ms, "somebody is gone");
      ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    }
    EXPECT_THAT(launched_ranks(membership.view()), ElementsAre(2, 3));
    HF_EXPECT_OK(barrier(membership.communicator(), patient()));
  });
}

TEST(Membership, WhoNeverComesIsADeadlineMissed) {
  std::atomic<bool> given_up{false};
  run_ranks(3, certainly_dead, [&given_up](int rank, Membership& membership) {
    if (rank == 2) return;
    EXPECT_FALSE(exchange_until_a_death(membership).ok());
    if (rank == 1) {  // hangs
      while (!given_up.load()) posix_env().sleep_us(1'000);
      return;
    }
    const Result<void> outcome = membership.recover(100, "somebody is gone");
    given_up.store(true);
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, ExitCode::communication);
    EXPECT_TRUE(membership.communicator().abandoned());
  });
}

// Two have given up the group, and one of them knows that the others are gone.
TEST(Membership, WhoGivesUpIsAwaitedByThoseThatMayLive) {
  run_ranks(3, {}, [](int rank, Membership& membership) {
    EXPECT_EQ(membership.own_rank(), rank);
    if (rank == 0) return;
    if (rank == 1) {
      membership.use(
          {.has_ended = [](const Member& member) { return member.launched_rank != 1; }, .out_of_reach = {}});
    }
    EXPECT_EQ(membership.is_awaited(/*has_guard=*/true), rank == 2);
  });
}

TEST(Membership, NamesWhoIsLost) {
  const MembershipView before{.epoch = 0,
                              .members = {{.launched_rank = 0, .host = "a"},
                                          {.launched_rank = 1, .host = "a"},
                                          {.launched_rank = 2, .host = "b"}}};
  const MembershipView now{.epoch = 1, .members = {{.launched_rank = 1, .host = "a"}}};
  EXPECT_EQ(name_members(members_lost(before, now)), "ranks 0 (host a), 2 (host b)");
  EXPECT_EQ(name_members(members_lost(now, MembershipView{})), "rank 1 (host a)");
}

// Two halves that do not hear each other: both end, and only the half with the lowest rank may still write.
TEST(Membership, WhoIsCutOffEndsAtOnceAndKnowsWhetherItMayWrite) {
  run_ranks(4, {}, [](int rank, Membership& membership) {
    const bool lower = rank < 2;
    membership.use({.has_ended = {}, .out_of_reach = [lower](const Member& member) {
                      return (member.launched_rank < 2) != lower;
                    }});
    EXPECT_FALSE(membership.cut_off());
    const Result<void> outcome = membership.recover(timeout_ms, "nobody answers");
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, ExitCode::communication);
    EXPECT_THAT(outcome.error().message, HasSubstr(lower ? "ranks 2 (host" : "ranks 0 (host"));
    EXPECT_THAT(outcome.error().message,
                HasSubstr(lower ? "it goes on without them" : "nothing more is written"));
    EXPECT_TRUE(membership.cut_off());
    EXPECT_EQ(membership.lost_quorum(), !lower);
    EXPECT_EQ(membership.view().epoch, 0U) << "no other epoch has begun";
  });
}

// The same with one of the lower half dead, as a guard has seen: then the upper half is the larger one.
TEST(Membership, TheDeadDoNotCountForTheSideThatIsCutOff) {
  run_ranks(4, {}, [](int rank, Membership& membership) {
    if (rank == 0) return;
    const bool lower = rank < 2;
    membership.use(
        {.has_ended = [](const Member& member) { return member.launched_rank == 0; },
         .out_of_reach = [lower](const Member& member) { return (member.launched_rank < 2) != lower; }});
    EXPECT_FALSE(membership.recover(timeout_ms, "nobody answers").ok());
    EXPECT_EQ(membership.lost_quorum(), lower);
  });
}

}  // namespace
}  // namespace holdfast::test
