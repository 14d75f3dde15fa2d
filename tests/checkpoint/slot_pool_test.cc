#include "checkpoint/slot_pool.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/os/resizable_memory.h"
#include "tests/support/forwarding_env.h"

namespace holdfast::test {
namespace {

constexpr std::uint64_t slot_bytes = 64 << 10;
constexpr std::uint64_t old_writer = 1, new_writer = 2;

// What a process dies of here.
struct Death {};

class MortalEnv final : public ForwardingEnv {
 public:
  MortalEnv() : ForwardingEnv(posix_env()) {}
  [[noreturn]] void kill_self() override { throw Death{}; }
};

class SlotPoolTest : public testing::Test {
 protected:
  SlotPoolTest() : run(digest_of(fmt::format("slot pool {}", env.random_u64()))) {}
  ~SlotPoolTest() override { EXPECT_TRUE(remove_snapshots(env, run).ok()); }

  // A slot of the old writer that holds one piece after `step`.
  std::unique_ptr<SharedMemory> old_slot(int slot, std::uint64_t step, int rank = 0) {
    Result<std::unique_ptr<SharedMemory>> memory =
        env.create_shared_memory(snapshot_name(run, old_writer, rank, slot), slot_bytes);
    EXPECT_TRUE(memory.ok());
    (*memory)->hold(SharedMemory::Hold::shared);
    const std::vector<ShardSpec> pieces = {
        {.tensor = "w", .kind = "weight", .dtype = DType::fp32, .global_shape = {4}, .block_count = 1}};
    SnapshotSlot filled((*memory)->bytes(), pieces);
    filled.begin();
    const std::array<float, 4> values = {1, 2, 3, static_cast<float>(step)};
    filled.copy(0, 0, std::as_bytes(std::span(values)));
    filled.seal({.run = run,
                 .host = digest_of(env.host_id()),
                 .writer = old_writer,
                 .step = step,
                 .rank = static_cast<std::uint32_t>(rank),
                 .ranks = 1},
                Manifest{});
    return std::move(memory).value();
  }

  std::vector<std::uint64_t> steps_there() {
    std::vector<std::uint64_t> steps;
    for (const FoundSnapshot& found : list_snapshots(env, run)) steps.push_back(found.identity.step);
    std::ranges::sort(steps);
    return steps;
  }
  std::uint64_t bytes_there() {
    std::uint64_t sum = 0;
    for (const std::string& name : snapshot_names(env, run))
      sum += env.status(env.shared_memory_path(name))->bytes;
    return sum;
  }
  std::string new_name(int slot) const { return snapshot_name(run, new_writer, 0, slot); }
  SnapshotStep step_of_old(std::uint64_t step) const { return {.writer = old_writer, .step = step}; }

  MortalEnv env;
  FaultPoints no_faults;
  Digest run;
  SlotPool pool;
};

using Steps = std::vector<std::uint64_t>;

TEST_F(SlotPoolTest, TakesWhatItKeepsButForTheResumedStep) {
  for (int slot = 0; slot < 3; ++slot)
    pool.keep(snapshot_name(run, old_writer, 0, slot), old_slot(slot, 5 + static_cast<std::uint64_t>(slot)));
  pool.begin(env, run, new_writer, step_of_old(6));
  for (int slot = 0; slot < 2; ++slot) {
    const Result<std::unique_ptr<SharedMemory>> made =
        pool.make(env, no_faults, new_name(slot), 2 * slot_bytes);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(pool.unneeded_bytes(), static_cast<std::uint64_t>(1 - slot) * slot_bytes);
    ASSERT_EQ((*made)->bytes().size(), 2 * slot_bytes);
    EXPECT_TRUE(std::ranges::all_of((*made)->bytes().subspan(slot_bytes),
                                    [](std::byte each) { return each == std::byte{0}; }));
  }
  const Result<std::unique_ptr<SharedMemory>> third = pool.make(env, no_faults, new_name(2), slot_bytes);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(steps_there(), Steps{6});
  EXPECT_EQ(snapshot_names(env, run).size(), 4U);
}

TEST_F(SlotPoolTest, TakesTheLastOneWhenANewerStepIsConfirmed) {
  pool.keep(snapshot_name(run, old_writer, 0, 0), old_slot(0, 6));
  pool.begin(env, run, new_writer, step_of_old(6));
  pool.confirmed();
  const Result<std::unique_ptr<SharedMemory>> made = pool.make(env, no_faults, new_name(0), slot_bytes / 2);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(pool.unneeded_bytes(), 0U);
  EXPECT_EQ((*made)->bytes().size(), slot_bytes / 2);
  EXPECT_EQ(steps_there(), Steps{});
}

TEST_F(SlotPoolTest, TakesThoseOfTheDeadAndNoneThatALivingProcessHolds) {
  const std::unique_ptr<SharedMemory> held = old_slot(0, 5, 1);
  old_slot(0, 5, 2).reset();  // its process is gone
  pool.begin(env, run, new_writer, {});
  const Result<std::unique_ptr<SharedMemory>> of_the_dead =
      pool.make(env, no_faults, new_name(0), slot_bytes);
  const Result<std::unique_ptr<SharedMemory>> fresh = pool.make(env, no_faults, new_name(1), slot_bytes);
  ASSERT_TRUE(of_the_dead.ok() && fresh.ok());
  const std::vector<std::string> names = snapshot_names(env, run);
  EXPECT_EQ(names,
            (std::vector<std::string>{snapshot_name(run, old_writer, 1, 0), new_name(0), new_name(1)}));
  EXPECT_EQ(steps_there(), Steps{5});
}

// A run may have just the memory that its slots take.
TEST_F(SlotPoolTest, NoMoreMemoryIsTakenOnTheWayThanBeforeOrAfterIt) {
  for (int slot = 0; slot < 2; ++slot)
    pool.keep(snapshot_name(run, old_writer, 0, slot), old_slot(slot, 5 + static_cast<std::uint64_t>(slot)));
  for (int slot = 0; slot < 2; ++slot) old_slot(slot, 5 + static_cast<std::uint64_t>(slot), 1).reset();
  const std::uint64_t before = bytes_there();
  pool.begin(env, run, new_writer, {});
  pool.trim(env, {2 * slot_bytes, 2 * slot_bytes});
  EXPECT_EQ(bytes_there(), before) << "none of them is too long";
  for (int slot = 0; slot < 2; ++slot) {
    const Result<std::unique_ptr<SharedMemory>> made =
        pool.make(env, no_faults, new_name(slot), 2 * slot_bytes);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(pool.unneeded_bytes(), static_cast<std::uint64_t>(1 - slot) * slot_bytes);
    EXPECT_EQ(bytes_there(), before);
  }
}

TEST_F(SlotPoolTest, WhatNewSlotsDoNotNeedIsGivenBackFirst) {
  for (int slot = 0; slot < 3; ++slot)
    pool.keep(snapshot_name(run, old_writer, 0, slot), old_slot(slot, 5 + static_cast<std::uint64_t>(slot)));
  pool.begin(env, run, new_writer, step_of_old(6));
  EXPECT_EQ(pool.unneeded_bytes(), 2 * slot_bytes);
  pool.trim(env, {slot_bytes / 2});
  EXPECT_EQ(pool.unneeded_bytes(), slot_bytes / 2);
  EXPECT_EQ(steps_there(), Steps{6});
  EXPECT_EQ(bytes_there(), slot_bytes + slot_bytes / 2);
  const Result<std::unique_ptr<SharedMemory>> made = pool.make(env, no_faults, new_name(0), slot_bytes / 2);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(pool.unneeded_bytes(), 0U);
}

TEST_F(SlotPoolTest, AKillAtAnyPointLeavesTheResumedStepAndNothingSealedBesideIt) {
  for (const char* point :
       {"slot.before_unseal", "slot.before_rename", "slot.before_resize", "slot.after_resize"}) {
    SCOPED_TRACE(point);
    pool.keep(snapshot_name(run, old_writer, 0, 0), old_slot(0, 5));
    pool.keep(snapshot_name(run, old_writer, 0, 1), old_slot(1, 6));
    pool.begin(env, run, new_writer, step_of_old(6));
    const Result<std::unique_ptr<FaultPoints>> faults =
        FaultPoints::parse(fmt::format("{}=kill", point), 0, env);
    ASSERT_TRUE(faults.ok());
    EXPECT_THROW(static_cast<void>(pool.make(env, **faults, new_name(0), 2 * slot_bytes).ok()), Death);
    const bool before = std::string_view(point) == "slot.before_unseal";
    EXPECT_EQ(steps_there(), (before ? Steps{5, 6} : Steps{6}));
    // Whoever comes next takes what the dead one left, whatever its name.
    pool.forget();
    pool.begin(env, run, new_writer + 1, step_of_old(6));
    const Result<std::unique_ptr<SharedMemory>> next =
        pool.make(env, no_faults, snapshot_name(run, new_writer + 1, 0, 0), slot_bytes);
    ASSERT_TRUE(next.ok());
    EXPECT_EQ(snapshot_names(env, run).size(), 2U);
    EXPECT_EQ(steps_there(), Steps{6});
    ASSERT_TRUE(remove_snapshots(env, run).ok());
  }
}

TEST_F(SlotPoolTest, UnneededOnesGoAndTheResumedStepStays) {
  old_slot(0, 5);
  old_slot(1, 6);
  ASSERT_TRUE(env.create_shared_memory(new_name(0), slot_bytes).ok());
  ASSERT_TRUE(remove_unneeded_snapshots(env, run, step_of_old(6), new_writer).ok());
  EXPECT_EQ(snapshot_names(env, run),
            (std::vector<std::string>{snapshot_name(run, old_writer, 0, 1), new_name(0)}));
}

}  // namespace
}  // namespace holdfast::test
