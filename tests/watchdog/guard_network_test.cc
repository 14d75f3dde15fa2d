// Guards of several hosts, here in one process: what they tell each other comes into the tables that ranks
// read. Over a network in memory, on a clock that the test moves; once over sockets.
#include "watchdog/guard_network.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/forwarding_env.h"
#include "tests/support/memory_network.h"
#include "tests/support/test_secret.h"
#include "watchdog/guard_message.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

GuardMessage sample() {
  GuardMessage message{.start = 7, .host = 2, .generation = 3, .number = 4, .sent_ns = 5, .port = 60'000};
  message.silent = {0, 1};
  message.ended = {{.host = 2, .launched_rank = 6, .process = 100, .started_ticks = 200}};
  SlotView slot;
  slot.process = 11;
  slot.launched_rank = 5;
  slot.phase = Phase::save;
  slot.wait_peer = 3;
  slot.kind = WorkKind::first;
  slot.ceiling_ns = 98;
  slot.life_ns = 97;
  slot.storage_begun_ns = 96;
  slot.heartbeat_ns = 99;
  message.ranks = {slot, slot};
  return message;
}

TEST(GuardMessage, ComesAsItWent) {
  const std::vector<std::byte> frame = frame_of(sample());
  ASSERT_EQ(*frame_bytes(frame), frame.size());
  const Result<GuardMessage> read = message_of(frame);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->start, 7u);
  EXPECT_EQ(read->host, 2);
  EXPECT_EQ(read->generation, 3u);
  EXPECT_EQ(read->number, 4u);
  EXPECT_EQ(read->sent_ns, 5);
  EXPECT_EQ(read->port, 60'000);
  EXPECT_THAT(read->silent, ElementsAre(0, 1));
  EXPECT_THAT(read->ended, ElementsAre(sample().ended.front()));
  ASSERT_THAT(read->ranks, SizeIs(2));
  EXPECT_EQ(read->ranks[1].process, 11);
  EXPECT_EQ(read->ranks[1].launched_rank, 5);
  EXPECT_EQ(read->ranks[1].phase, Phase::save);
  EXPECT_EQ(read->ranks[1].wait_peer, 3);
  EXPECT_EQ(read->ranks[1].kind, WorkKind::first);
  EXPECT_EQ(read->ranks[1].ceiling_ns, 98);
  EXPECT_EQ(read->ranks[1].life_ns, 97);
  EXPECT_EQ(read->ranks[1].storage_begun_ns, 96);
  EXPECT_EQ(read->ranks[1].heartbeat_ns, 99);
}

TEST(GuardMessage, EveryDamagedByteIsSeen) {
  const std::vector<std::byte> whole = frame_of(sample());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::vector<std::byte> frame = whole;
    frame[at] ^= std::byte{0x10};
    const Result<std::size_t> length = frame_bytes(frame);
    if (!length.ok() || *length != frame.size()) continue;  // no frame, or one that never comes to its end
    EXPECT_FALSE(message_of(frame).ok()) << "byte " << at;
  }
  const std::string strange = "GET / HTTP/1.1\r\n";
  EXPECT_FALSE(frame_bytes(std::as_bytes(std::span(strange))).ok());
}

// A network in memory, and a clock that stands still but for sleeps.
class QuietEnv final : public ForwardingEnv {
 public:
  QuietEnv() : ForwardingEnv(posix_env()) {}
  Network& network() override { return network_; }
  void set_far(std::int64_t connect_ms) {
    network_.set_far(connect_ms * 1'000'000, [this] { return now_ns_; });
  }
  std::int64_t monotonic_ns() override { return now_ns_; }
  void sleep_us(std::int64_t microseconds) override { now_ns_ += 1'000 * microseconds; }

 private:
  MemoryNetwork network_;
  std::int64_t now_ns_ = 1'000'000'000'000;
};

// One host: a board with one rank, and its guard.
struct TestHost {
  TestHost(Env& own, int index, const std::string& mark)
      : env(&own), name(fmt::format("holdfast-test-{}-{}", mark, index)) {
    board = std::move(Board::open_or_create(*env, name, {.slots = 4, .ring_spans = 1})).value();
    board->header().guard_generation = 1;
    BoardSlot& slot = board->slot(0);
    slot.launched_rank = index;
    slot.started_ticks = 5;
    slot.process = 1'000 + index;
    restart();
  }
  ~TestHost() {
    PeerHostTable::remove(*env, name);
    static_cast<void>(env->remove_shared_memory(name).ok());
  }
  void restart() { network = std::move(GuardNetwork::begin(*env, *board, name, {.secret = secret})).value(); }

  Env* env;
  std::string name;
  Secret secret = secret_of(7);
  std::unique_ptr<Board> board;
  std::unique_ptr<GuardNetwork> network;
  std::unique_ptr<PeerHostTable> table;
};

class GuardNetworkTest : public testing::Test {
 protected:
  void make(int count, std::int64_t silence_ms) {
    const std::string mark = fmt::format("{}-{:016x}", getpid(), posix_env().random_u64());
    for (int i = 0; i < count; ++i) hosts_.push_back(std::make_unique<TestHost>(*env_, i, mark));
    PeerHostTableSetup setup{.start = 9, .own_host = 0, .silence_ms = silence_ms, .hosts = {}};
    for (int i = 0; i < count; ++i) {
      const auto port =
          static_cast<std::uint16_t>(hosts_[static_cast<std::size_t>(i)]->board->header().guard_port);
      setup.hosts.push_back({.name = fmt::format("n{}", i), .addresses = {"127.0.0.1"}, .port = port});
    }
    for (int i = 0; i < count; ++i) {
      setup.own_host = i;
      host(i).table = std::move(PeerHostTable::open_or_create(*env_, host(i).name, setup)).value();
    }
  }
  TestHost& host(int index) { return *hosts_[static_cast<std::size_t>(index)]; }

  std::int64_t now_ns() { return env_->monotonic_ns(); }

  // Until it is so, or for ten seconds. `asleep`: this guard gets no ticks.
  template <typename Condition>
  bool comes_true(const Condition& condition, int asleep = -1) {
    const std::int64_t begin_ns = now_ns();
    while (now_ns() - begin_ns < 10'000'000'000) {
      for (int i = 0; i < static_cast<int>(hosts_.size()); ++i) {
        if (i != asleep && host(i).network != nullptr) host(i).network->tick(now_ns(), false);
      }
      if (condition()) return true;
      env_->sleep_us(2'000);
    }
    return false;
  }
  bool all_hear_all() {
    const std::size_t others = hosts_.size() - 1;
    return std::ranges::all_of(
        hosts_, [&](const auto& each) { return each->network->distant_ranks(now_ns()).size() == others; });
  }

  QuietEnv quiet_;
  Env* env_ = &quiet_;
  std::vector<std::unique_ptr<TestHost>> hosts_;
};

TEST_F(GuardNetworkTest, EachKnowsTheRanksOfTheOthers) {
  make(3, 5'000);
  EXPECT_TRUE(comes_true([&] { return all_hear_all(); }));
  const std::vector<WatchedRank> ranks = host(0).network->distant_ranks(now_ns());
  EXPECT_THAT(ranks, SizeIs(2));
  for (const WatchedRank& rank : ranks) EXPECT_EQ(rank.host, fmt::format("n{}", rank.slot.launched_rank));
}

TEST_F(GuardNetworkTest, TheyReachEachOtherOverSockets) {
  env_ = &posix_env();
  make(3, 600'000);
  ASSERT_TRUE(comes_true([&] { return all_hear_all(); }));
  host(1).network->ended(read_slot(host(1).board->slot(0)));
  EXPECT_TRUE(comes_true([&] {
    return host(0).table->has_ended(1, {.id = 1'001, .started_ticks = 5}) &&
           host(2).table->has_ended(1, {.id = 1'001, .started_ticks = 5});
  }));
}

TEST_F(GuardNetworkTest, AnEndIsProofForTheOthers) {
  make(3, 5'000);
  ASSERT_TRUE(comes_true([&] { return all_hear_all(); }));
  EXPECT_FALSE(host(0).table->has_ended(1, {.id = 1'001, .started_ticks = 5}));
  host(1).network->ended(read_slot(host(1).board->slot(0)));
  EXPECT_TRUE(comes_true([&] {
    return host(0).table->has_ended(1, {.id = 1'001, .started_ticks = 5}) &&
           host(2).table->has_ended(1, {.id = 1'001, .started_ticks = 5});
  }));
  EXPECT_FALSE(host(0).table->has_ended(1, {.id = 1'001, .started_ticks = 6}))
      << "another process with the same number";
  EXPECT_FALSE(host(0).table->has_ended(2, {.id = 1'001, .started_ticks = 5})) << "one of another host";
  EXPECT_EQ(host(0).table->silent_since_ns(1), 0);
  EXPECT_TRUE(comes_true([&] {
    const std::vector<WatchedRank> ranks = host(0).network->distant_ranks(now_ns());
    return std::ranges::count(ranks, true, &WatchedRank::ended) == 1 && ranks.size() == 2;
  }));
}

TEST_F(GuardNetworkTest, ASpareOfAnotherHostThatEndedIsTold) {
  make(3, 5'000);
  host(1).board->slot(0).phase = static_cast<std::uint32_t>(Phase::spare);
  ASSERT_TRUE(comes_true([&] { return all_hear_all(); }));
  host(1).network->ended(read_slot(host(1).board->slot(0)));
  host(2).network->ended(read_slot(host(2).board->slot(0)));
  EXPECT_TRUE(comes_true([&] {
    return host(0).table->has_ended(1, {.id = 1'001, .started_ticks = 5}) &&
           host(0).table->has_ended(2, {.id = 1'002, .started_ticks = 5});
  }));
  const std::vector<WatchedRank> lost = host(0).network->take_lost_spares();
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(lost[0].slot.launched_rank, 1);
  EXPECT_EQ(lost[0].host, "n1");
  EXPECT_THAT(host(0).network->take_lost_spares(), SizeIs(0));
}

TEST_F(GuardNetworkTest, OnlyAHostThatHearsTheFirstIsNotCutOff) {
  make(3, 300);
  ASSERT_TRUE(comes_true([&] { return all_hear_all(); }));
  for (int each = 0; each < 3; ++each) EXPECT_FALSE(host(each).network->is_cut_off()) << each;
  EXPECT_TRUE(comes_true([&] { return host(1).table->silent_since_ns(0) != 0; }, /*asleep=*/0));
  EXPECT_TRUE(host(1).network->is_cut_off());
  EXPECT_FALSE(host(0).network->is_cut_off());
}

TEST_F(GuardNetworkTest, AHostThatFallsSilentAndComesBack) {
  make(3, 700);
  ASSERT_TRUE(comes_true([&] { return all_hear_all(); }));
  const std::int64_t begin_ns = now_ns();
  EXPECT_TRUE(comes_true([&] { return host(0).table->silent_since_ns(2) != 0; }, /*asleep=*/2));
  EXPECT_GE(now_ns() - begin_ns, 600'000'000) << "it said something at most 0.1 s before";
  EXPECT_LE(now_ns() - begin_ns, 710'000'000);
  EXPECT_TRUE(comes_true([&] { return host(1).table->silent_since_ns(2) != 0; }, /*asleep=*/2));
  EXPECT_LE(now_ns() - begin_ns, 810'000'000)
      << "a heartbeat later it knows that the first one misses it, too";
  EXPECT_LE(host(0).table->silent_since_ns(2), begin_ns);
  EXPECT_EQ(host(0).table->silent_since_ns(1), 0);
  EXPECT_FALSE(host(0).table->has_ended(2, {.id = 1'002, .started_ticks = 5})) << "silence is no proof";
  EXPECT_TRUE(comes_true(
      [&] { return host(0).table->silent_since_ns(2) == 0 && host(1).table->silent_since_ns(2) == 0; }));
}

TEST_F(GuardNetworkTest, AGuardThatFollowsIsFoundWhereverItListens) {
  make(3, 1'500);
  ASSERT_TRUE(comes_true([&] { return all_hear_all(); }));
  host(1).network.reset();
  const std::int64_t until_ns = now_ns() + 2'500'000'000;
  EXPECT_TRUE(comes_true([&] { return now_ns() > until_ns; }));
  EXPECT_EQ(host(0).table->silent_since_ns(1), 0)
      << "it closed its connections: it ended, and is not unreachable";
  host(1).board->header().guard_generation = 2;
  host(1).restart();
  EXPECT_TRUE(comes_true(
      [&] { return host(0).table->port_of(1) == host(1).board->header().guard_port && all_hear_all(); }));
  host(1).network->ended(read_slot(host(1).board->slot(0)));
  EXPECT_TRUE(comes_true([&] { return host(2).table->has_ended(1, {.id = 1'001, .started_ticks = 5}); }));
}

// Each connection takes several ticks, and longer than the patience of the first attempts.
TEST_F(GuardNetworkTest, HostsThatAreFarFromEachOtherAreHeard) {
  for (const std::int64_t connect_ms : {60, 300, 1'500}) {
    hosts_.clear();
    quiet_.set_far(connect_ms);
    make(3, 5'000);
    EXPECT_TRUE(comes_true([&] { return all_hear_all(); })) << connect_ms;
  }
}

TEST_F(GuardNetworkTest, AHostThatIsNeverHeardIsToldOnce) {
  make(4, 5'000);
  host(2).network.reset();
  std::string told;
  const auto is_told = [&] {
    told += host(0).network->take_never_heard(now_ns());
    return !told.empty();
  };
  const std::int64_t begin_ns = now_ns();
  EXPECT_FALSE(comes_true([&] { return is_told() || now_ns() - begin_ns > 9'900'000'000; }) && is_told());
  EXPECT_TRUE(comes_true(is_told));
  EXPECT_EQ(told, "n2 (127.0.0.1)");
  told.clear();
  EXPECT_FALSE(comes_true(is_told)) << "once";
}

TEST_F(GuardNetworkTest, WithoutATableNothingHappens) {
  const std::string mark = fmt::format("{}-{:016x}", getpid(), posix_env().random_u64());
  TestHost alone(*env_, 0, mark);
  alone.network->tick(now_ns(), false);
  alone.network->ended(read_slot(alone.board->slot(0)));
  EXPECT_TRUE(alone.network->distant_ranks(now_ns()).empty());
}

}  // namespace
}  // namespace holdfast::test
