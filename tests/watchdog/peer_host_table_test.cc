#include "watchdog/peer_host_table.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/forwarding_env.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

class PeerHostTableTest : public testing::Test {
 protected:
  ~PeerHostTableTest() override { PeerHostTable::remove(env, board); }
  static PeerHostTableSetup setup() {
    return {.start = 7,
            .own_host = 1,
            .silence_ms = 1234,
            .hosts = {{.name = "a", .addresses = {"10.0.0.1", "fe80::1"}, .port = 17}, {.name = "b"}}};
  }
  std::string error_of_open() {
    const Result<std::unique_ptr<PeerHostTable>> table = PeerHostTable::open(env, board);
    return table.ok() ? "" : table.error().message;
  }
  std::span<std::byte> bytes() {
    memory = env.open_shared_memory(board + "-hosts").value();
    return memory->bytes();
  }

  Env& env = posix_env();
  std::string board = fmt::format("holdfast-test-{:016x}", posix_env().random_u64());
  std::unique_ptr<SharedMemory> memory;
};

TEST_F(PeerHostTableTest, TheSecondRankOfAHostFindsThatOfTheFirst) {
  const Result<std::unique_ptr<PeerHostTable>> first = PeerHostTable::open_or_create(env, board, setup());
  ASSERT_TRUE(first.ok()) << first.error().message;
  PeerHostTableSetup other = setup();
  other.silence_ms = 1;
  const Result<std::unique_ptr<PeerHostTable>> second = PeerHostTable::open_or_create(env, board, other);
  ASSERT_TRUE(second.ok()) << second.error().message;
  (*first)->say_silent(0, 99);
  EXPECT_EQ((*second)->silent_since_ns(0), 99);
  EXPECT_EQ((*second)->setup().silence_ms, 1234);
  EXPECT_EQ((*second)->own_host(), 1);
  EXPECT_THAT((*second)->setup().hosts[0].addresses, testing::ElementsAre("10.0.0.1", "fe80::1"));
  EXPECT_EQ((*second)->find("b"), 1);
  EXPECT_EQ((*second)->find("c"), -1);
}

TEST_F(PeerHostTableTest, OneWordSaysWhetherAnyHostIsSilent) {
  const std::unique_ptr<PeerHostTable> table = PeerHostTable::open_or_create(env, board, setup()).value();
  const std::unique_ptr<PeerHostTable> other = PeerHostTable::open(env, board).value();
  EXPECT_FALSE(other->may_miss_a_host());
  table->say_silent(0, 99);
  table->say_silent(1, 98);
  EXPECT_TRUE(other->may_miss_a_host());
  table->say_silent(0, 0);
  EXPECT_TRUE(other->may_miss_a_host());
  table->say_silent(1, 0);
  EXPECT_FALSE(other->may_miss_a_host());
}

TEST_F(PeerHostTableTest, ItsSizesAreReadOnce) {
  const std::unique_ptr<PeerHostTable> table = PeerHostTable::open_or_create(env, board, setup()).value();
  const std::unique_ptr<PeerHostTable> opened = PeerHostTable::open(env, board).value();
  memory = env.open_shared_memory(board + "-hosts").value();
  constexpr std::size_t hosts_at = 12, own_host_at = 20;
  for (std::size_t at = hosts_at; at < own_host_at + 4; ++at) memory->bytes()[at] = std::byte{0x7f};
  for (PeerHostTable* const each : {table.get(), opened.get()}) {
    EXPECT_EQ(each->hosts(), 2);
    EXPECT_EQ(each->own_host(), 1);
    EXPECT_EQ(each->setup().hosts.size(), 2u);
    EXPECT_EQ(each->find("c"), -1);
    EXPECT_FALSE(each->has_ended(0, {.id = 1, .started_ticks = 1}));
  }
}

TEST_F(PeerHostTableTest, WhatIsNoWholeTableIsToldAsSuch) {
  EXPECT_THAT(error_of_open(), HasSubstr(board));
  ASSERT_TRUE(env.create_shared_memory(board + "-hosts", 8).ok());
  EXPECT_THAT(error_of_open(), HasSubstr("is too short to be one"));
  PeerHostTable::remove(env, board);
  ASSERT_TRUE(PeerHostTable::open_or_create(env, board, setup()).ok());
  EXPECT_EQ(error_of_open(), "");
  constexpr std::size_t layout_at = 8, hosts_at = 12, own_host_at = 20;
  for (const std::size_t at : {layout_at, hosts_at + 2, own_host_at + 3}) {
    bytes()[at] ^= std::byte{0x80};
    EXPECT_THAT(error_of_open(), HasSubstr("is of another version, or damaged")) << at;
    bytes()[at] ^= std::byte{0x80};
  }
  bytes()[0] ^= std::byte{1};
  EXPECT_THAT(error_of_open(), HasSubstr("is not made yet, or is something else"));
}

class FullEnv final : public ForwardingEnv {
 public:
  explicit FullEnv(ExitCode why) : ForwardingEnv(posix_env()), why_(why) {}
  Result<std::unique_ptr<SharedMemory>> create_shared_memory(const std::string&, std::uint64_t) override {
    return fail(why_, "there is no room");
  }
  void sleep_us(std::int64_t) override { ADD_FAILURE() << "nobody else makes it"; }

 private:
  ExitCode why_;
};

TEST_F(PeerHostTableTest, NoRoomForItIsSaidAtOnce) {
  for (const ExitCode why : {ExitCode::does_not_fit, ExitCode::config}) {
    FullEnv full(why);
    const Result<std::unique_ptr<PeerHostTable>> table = PeerHostTable::open_or_create(full, board, setup());
    ASSERT_FALSE(table.ok());
    EXPECT_EQ(table.error().message, "there is no room");
  }
}

// It has room for 32 of each host.
TEST_F(PeerHostTableTest, AnEndIsKeptOnceAndForgottenWhereThereIsNoRoom) {
  const Result<std::unique_ptr<PeerHostTable>> table = PeerHostTable::open_or_create(env, board, setup());
  ASSERT_TRUE(table.ok()) << table.error().message;
  const auto say_ended = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t process = first; process <= last; ++process)
      (*table)->say_ended({.host = 0, .launched_rank = 3, .process = process, .started_ticks = 5});
  };
  say_ended(1, 32);
  say_ended(1, 32);
  say_ended(33, 65);
  EXPECT_TRUE((*table)->has_ended(0, {.id = 64, .started_ticks = 5}));
  EXPECT_FALSE((*table)->has_ended(0, {.id = 65, .started_ticks = 5})) << "there was no room";
  EXPECT_FALSE((*table)->has_ended(0, {.id = 64, .started_ticks = 6})) << "another process of that number";
  EXPECT_FALSE((*table)->has_ended(1, {.id = 64, .started_ticks = 5})) << "another host";
}

}  // namespace
}  // namespace holdfast::test
