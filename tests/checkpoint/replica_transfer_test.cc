// Replicas of snapshots on their way: what arrives is what was sealed, or nothing is.
#include "checkpoint/transfer.h"

#include <gmock/gmock.h>

#include <future>

#include "runtime/core/memory_plan.h"
#include "tests/support/faulty_network.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t patient_ms = 20'000;
constexpr TransferLimits brief = {.answer_timeout_ms = 200, .part_timeout_ms = 200};

// Three pieces of a little more than 2 MiB, so that they are sent in several parts.
std::vector<ShardSpec> pieces() {
  return {
      {.tensor = "a", .kind = "weight", .global_shape = {130, 4096}, .first_block = 1, .block_count = 128},
      {.tensor = "b", .kind = "moment1", .global_shape = {5000}, .first_block = 0, .block_count = 2},
      {.tensor = "c", .kind = "moment2", .global_shape = {7}, .first_block = 0, .block_count = 1}};
}

class ReplicaTransferTest : public testing::Test {
 protected:
  struct Memory {
    explicit Memory(std::uint64_t bytes)
        : owned(host_memory(MemoryKind::host_visible, bytes).value()), all(owned.get(), bytes) {}
    OwnedMemory owned;
    std::span<std::byte> all;
  };

  ReplicaTransferTest() {
    identity_.run = digest_of("run");
    identity_.host = digest_of("here");
    identity_.writer = 9;
    identity_.rank = 1;
    identity_.ranks = 2;
  }

  void fill(std::uint64_t step) {
    SnapshotSlot slot(source_.all, pieces());
    slot.begin();
    for (std::size_t i = 0; i < pieces().size(); ++i) {
      std::vector<std::byte> values(pieces()[i].byte_count());
      for (std::size_t at = 0; at < values.size(); ++at)
        values[at] = static_cast<std::byte>(at * 31 + step * 7 + i);
      slot.copy(i, 0, values);
    }
    identity_.step = step;
    Manifest manifest;
    manifest.run_id = std::string(32, '7');
    manifest.step = step;
    slot.seal(identity_, manifest);
  }

  struct Ends {
    Result<void> source;
    Result<SnapshotStep> keeper;
  };
  // What the slot holds, to the keeper.
  Ends transfer(std::uint64_t confirmed_step = 0, const TransferLimits& limits = {}) {
    const std::unique_ptr<Listener> listener = env_.network().listen("").value();
    const std::unique_ptr<Connection> near =
        env_.network().connect({.host = "127.0.0.1", .port = listener->port()}, patient_ms).value();
    std::unique_ptr<Connection> far = listener->accept(patient_ms).value();
    std::future<Result<SnapshotStep>> keeping = std::async(std::launch::async, [&] {
      Result<SnapshotStep> received = keeper_.receive(*far, limits);
      far.reset();
      return received;
    });
    const Result<void> sent =
        send_replica(*near, source_.all, {.writer = 9, .step = confirmed_step}, faults_, limits);
    near->shut_down();
    return {.source = sent, .keeper = keeping.get()};
  }
  // Which steps the keeper's places hold; 0: none that is sealed.
  std::vector<std::uint64_t> kept() const {
    std::vector<std::uint64_t> steps;
    for (const Memory* place : {&first_, &second_}) {
      const Result<SnapshotIdentity> identity = SnapshotReader::identify(place->all, "kept");
      steps.push_back(identity.ok() ? identity->step : 0);
    }
    return steps;
  }
  static Result<void> verify(std::span<const std::byte> memory) {
    HF_TRY(SnapshotReader reader, SnapshotReader::open(memory, "kept"));
    for (std::size_t i = 0; i < reader.pieces().size(); ++i) HF_TRY_VOID(outcome_of(reader.piece(i)));
    return {};
  }

  FaultyNetworkEnv env_{posix_env()};
  FaultPoints faults_;
  SnapshotIdentity identity_;
  std::uint64_t bytes_ = SnapshotSlot::bytes_for(pieces(), 1000);
  Memory source_{bytes_}, first_{bytes_}, second_{bytes_};
  ReplicaKeeper keeper_{{.run = digest_of("run"), .writer = 9, .rank = 1, .ranks = 2},
                        digest_of("there"),
                        {first_.all, second_.all},
                        faults_};
};

TEST_F(ReplicaTransferTest, TheReplicaHasTheSameBytesAndSaysWhereItIs) {
  fill(7);
  const Ends ends = transfer();
  ASSERT_TRUE(ends.source.ok()) << ends.source.error().message;
  EXPECT_EQ(*ends.keeper, (SnapshotStep{.writer = 9, .generation = 0, .step = 7}));
  ASSERT_TRUE(verify(first_.all).ok());
  const SnapshotIdentity identity = SnapshotReader::identify(first_.all, "kept").value();
  EXPECT_EQ(identity.host, digest_of("there"));
  EXPECT_EQ(identity.rank, 1u);
  EXPECT_EQ(identity.run, digest_of("run"));
  constexpr std::size_t page = 4096;
  const std::uint64_t sealed = SnapshotReader::sealed_bytes(source_.all, "source").value();
  EXPECT_TRUE(
      std::ranges::equal(source_.all.subspan(page, sealed - page), first_.all.subspan(page, sealed - page)));
}

TEST_F(ReplicaTransferTest, TheConfirmedOneStaysWhateverComes) {
  fill(7);
  ASSERT_TRUE(transfer().source.ok());
  fill(8);
  ASSERT_TRUE(transfer(7).source.ok());
  EXPECT_THAT(kept(), testing::ElementsAre(7, 8));
  fill(9);  // 8 was not confirmed, because another rank's replica failed
  ASSERT_TRUE(transfer(7).source.ok());
  EXPECT_THAT(kept(), testing::ElementsAre(7, 9));
  fill(10);
  ASSERT_TRUE(transfer(9).source.ok());
  EXPECT_THAT(kept(), testing::ElementsAre(10, 9));
  fill(11);  // of a confirmed step that the keeper never got, the older goes
  ASSERT_TRUE(transfer(5).source.ok());
  EXPECT_THAT(kept(), testing::ElementsAre(10, 11));
}

TEST_F(ReplicaTransferTest, StrangersAndTheLateAreRefused) {
  fill(7);
  ASSERT_TRUE(transfer().source.ok());
  struct Case {
    std::string what, reason;
    SnapshotIdentity identity;
    std::uint64_t step = 8;
  };
  std::vector<Case> cases = {
      {"run", "another run, start or rank", identity_},  {"start", "another run, start or rank", identity_},
      {"rank", "another run, start or rank", identity_}, {"ranks", "another run, start or rank", identity_},
      {"again", "it has a newer one", identity_, 7},     {"late", "it has a newer one", identity_, 6}};
  cases[0].identity.run = digest_of("another");
  cases[1].identity.writer = 8;
  cases[2].identity.rank = 0;
  cases[3].identity.ranks = 3;
  for (const Case& each : cases) {
    identity_ = each.identity;
    fill(each.step);
    const Ends ends = transfer(7);
    ASSERT_FALSE(ends.source.ok()) << each.what;
    EXPECT_THAT(ends.source.error().message, HasSubstr("did not take the snapshot: "));
    EXPECT_THAT(ends.source.error().message, HasSubstr(each.reason)) << each.what;
    EXPECT_FALSE(ends.keeper.ok());
    EXPECT_THAT(kept(), testing::ElementsAre(7, 0)) << each.what;
  }
}

// A keeper chooses the place of a replica by what is announced before its bytes come.
TEST_F(ReplicaTransferTest, AReplicaThatIsAnotherThanAnnouncedIsNotSealed) {
  fill(7);
  constexpr std::size_t page = SnapshotSlot::alignment_bytes;
  const std::uint64_t sealed = SnapshotReader::sealed_bytes(source_.all, "source").value();
  const auto receive = [&](const SnapshotIdentity& announced) {
    SnapshotReplica replica(first_.all);
    replica.begin(sealed);
    std::ranges::copy(source_.all.subspan(page, sealed - page), replica.body().begin());
    return replica.seal(source_.all.first(page), announced, "as it arrived");
  };
  std::vector<SnapshotIdentity> others(6, identity_);
  others[0].run = digest_of("another");
  others[1].writer = 8;
  others[2].generation = 1;
  others[3].step = 8;
  others[4].rank = 0;
  others[5].ranks = 3;
  for (const SnapshotIdentity& other : others) {
    const Result<void> outcome = receive(other);
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().message, "the RAM snapshot as it arrived is another one than was announced");
    EXPECT_THAT(kept(), testing::ElementsAre(0, 0));
  }
  identity_.host = digest_of("there");
  ASSERT_TRUE(receive(identity_).ok());
  EXPECT_THAT(kept(), testing::ElementsAre(7, 0));
}

TEST_F(ReplicaTransferTest, WhatDoesNotFitIsRefused) {
  Memory small(SnapshotSlot::alignment_bytes * 2), large(bytes_);
  ReplicaKeeper keeper({.run = digest_of("run"), .writer = 9, .rank = 1, .ranks = 2}, digest_of("there"),
                       {small.all, large.all}, faults_);
  std::swap(keeper, keeper_);
  fill(7);
  EXPECT_THAT(transfer().source.error().message, HasSubstr("it has less room than the snapshot needs"));
}

TEST_F(ReplicaTransferTest, WhatIsNotSealedIsNotSent) {
  fill(7);
  source_.all[20] = std::byte{1};
  EXPECT_EQ(transfer(0, brief).source.error().code, ExitCode::checkpoint);
}

TEST_F(ReplicaTransferTest, SomethingElseThanARankIsTurnedAway) {
  const std::unique_ptr<Listener> listener = env_.network().listen("").value();
  const std::unique_ptr<Connection> near =
      env_.network().connect({.host = "127.0.0.1", .port = listener->port()}, patient_ms).value();
  const std::unique_ptr<Connection> far = listener->accept(patient_ms).value();
  ASSERT_TRUE(near->send(std::vector<std::byte>(200, std::byte{'G'}), patient_ms).ok());
  EXPECT_THAT(keeper_.receive(*far).error().message,
              HasSubstr("sent something else than a rank of this program would"));
}

// A byte flipped anywhere on the way: nothing is sealed that is not what was sealed.
TEST_F(ReplicaTransferTest, DamageOnTheWayIsFound) {
  fill(7);
  ASSERT_TRUE(transfer().source.ok());
  const std::uint64_t whole = env_.network().sent_bytes();
  std::uint64_t step = 7;
  for (std::uint64_t at = 1; at <= whole; at += at < 100 || at + 200 > whole ? 13 : whole / 11) {
    fill(++step);
    env_.network().inject({.kind = NetworkFault::Kind::corrupt, .at = at});
    const Ends ends = transfer(7, brief);
    const std::vector<std::uint64_t> after = kept();
    EXPECT_EQ(after[0], 7u) << at;
    ASSERT_TRUE(after[1] == 0 || verify(second_.all).ok()) << at;
    ASSERT_TRUE(!ends.source.ok() || after[1] == step) << at << ": told to be there, and is not";
  }
}

TEST_F(ReplicaTransferTest, AConnectionThatBreaksAnywhereLeavesTheConfirmedOne) {
  fill(7);
  ASSERT_TRUE(transfer().source.ok());
  const std::uint64_t whole = env_.network().sent_bytes();
  std::uint64_t step = 7;
  for (const NetworkFault::Kind kind : {NetworkFault::Kind::cut, NetworkFault::Kind::swallow}) {
    for (std::uint64_t at = 1; at <= whole; at += whole / 5) {
      fill(++step);
      env_.network().inject({.kind = kind, .at = at});
      EXPECT_FALSE(transfer(7, brief).source.ok()) << at;
      EXPECT_EQ(kept()[0], 7u) << at;
      EXPECT_TRUE(verify(first_.all).ok()) << at;
    }
  }
  fill(++step);
  ASSERT_TRUE(transfer(7).source.ok()) << "the next one finds all in order";
  EXPECT_THAT(kept(), testing::ElementsAre(7, step));
}

TEST_F(ReplicaTransferTest, WhatIsBeingReplacedIsNoSnapshot) {
  fill(7);
  ASSERT_TRUE(transfer().source.ok());
  const std::uint64_t whole = env_.network().sent_bytes();
  fill(8);
  ASSERT_TRUE(transfer(7).source.ok());
  ASSERT_THAT(kept(), testing::ElementsAre(7, 8));
  fill(9);
  env_.network().inject({.kind = NetworkFault::Kind::cut, .at = whole / 2});
  ASSERT_FALSE(transfer(7, brief).source.ok());
  EXPECT_THAT(kept(), testing::ElementsAre(7, 0));
}

}  // namespace
}  // namespace holdfast::test
