// The inventory of RAM snapshots: newest_whole_step() beside its definition, over random offers of the hosts.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "checkpoint/ram_tier.h"

namespace holdfast::test {
namespace {

// Small numbers, so that parts of the same step meet: writers 1 to 3, generations 0 and 1, steps 1 to 4.
constexpr std::uint64_t writers = 3, generations = 2, steps = 4;
constexpr std::uint32_t ranks_max = 3;

struct Inventory {
  std::vector<std::vector<SnapshotIdentity>> offers;  // by host
  SnapshotStep disk;
  std::vector<SnapshotStep> damaged;
  std::optional<SnapshotStep> newest() const { return newest_whole_step(offers, disk, damaged); }
};

class RandomInventory {
 public:
  explicit RandomInventory(unsigned seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  SnapshotStep step() {
    return {.writer = 1 + below(writers), .generation = below(generations), .step = 1 + below(steps)};
  }
  // Some say that they are of a rank that there is not.
  SnapshotIdentity identity() {
    const SnapshotStep of = step();
    return {.run = {},
            .host = {},
            .writer = of.writer,
            .generation = of.generation,
            .step = of.step,
            .rank = static_cast<std::uint32_t>(below(ranks_max + 1)),
            .ranks = static_cast<std::uint32_t>(1 + below(ranks_max))};
  }
  // Snapshots that all ranks of some steps have sealed, of which some parts are gone; and others.
  Inventory inventory() {
    Inventory inventory{.offers = std::vector<std::vector<SnapshotIdentity>>(1 + below(4)),
                        .disk = {.writer = 0, .generation = below(generations), .step = below(steps)},
                        .damaged = std::vector<SnapshotStep>(below(3))};
    std::ranges::generate(inventory.damaged, [this] { return step(); });
    for (std::uint64_t sealed = below(4); sealed > 0; --sealed) {
      SnapshotIdentity part = identity();
      for (part.rank = 0; part.rank < part.ranks; ++part.rank)
        if (below(8) != 0) anywhere(inventory).push_back(part);
    }
    for (std::uint64_t others = below(5); others > 0; --others) anywhere(inventory).push_back(identity());
    return inventory;
  }
  std::vector<SnapshotIdentity>& anywhere(Inventory& inventory) {
    return inventory.offers[below(inventory.offers.size())];
  }
  std::mt19937& generator() { return random_; }

 private:
  std::mt19937 random_;
};

bool is_offered(const Inventory& inventory, const SnapshotStep& step, std::uint32_t rank,
                std::uint32_t ranks) {
  return std::ranges::any_of(inventory.offers, [&](const std::vector<SnapshotIdentity>& offer) {
    return std::ranges::any_of(offer, [&](const SnapshotIdentity& each) {
      return step_of(each) == step && each.rank == rank && each.ranks == ranks;
    });
  });
}

bool is_whole(const Inventory& inventory, const SnapshotStep& step) {
  for (std::uint32_t ranks = 1; ranks <= ranks_max; ++ranks) {
    bool whole = true;
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      whole = whole && is_offered(inventory, step, rank, ranks);
    if (whole) return true;
  }
  return false;
}

// Looks at every step that there could be, the greatest first.
std::optional<SnapshotStep> newest_by_definition(const Inventory& inventory) {
  for (std::uint64_t generation = generations; generation-- > 0;) {
    for (std::uint64_t step = steps; step > 0; --step) {
      for (std::uint64_t writer = writers; writer > 0; --writer) {
        const SnapshotStep found{.writer = writer, .generation = generation, .step = step};
        const bool is_newer =
            std::pair(generation, step) > std::pair(inventory.disk.generation, inventory.disk.step);
        const bool is_damaged = std::ranges::find(inventory.damaged, found) != inventory.damaged.end();
        if (is_newer && !is_damaged && is_whole(inventory, found)) return found;
      }
    }
  }
  return std::nullopt;
}

constexpr int inventories = 100'000;

TEST(NewestWholeStepProperty, IsThatOfTheDefinition) {
  RandomInventory random(20261124);
  int found = 0;
  for (int i = 0; i < inventories; ++i) {
    const Inventory inventory = random.inventory();
    const std::optional<SnapshotStep> newest = inventory.newest();
    ASSERT_EQ(newest, newest_by_definition(inventory)) << "inventory " << i;
    found += newest.has_value() ? 1 : 0;
  }
  EXPECT_GT(found, inventories / 5);
  EXPECT_LT(found, inventories - inventories / 5);
}

// All ranks come to the same step, and what is offered besides changes nothing about it.
TEST(NewestWholeStepProperty, DoesNotDependOnWhoOffersAndOnlyGrowsWithWhatIsOffered) {
  RandomInventory random(20261125);
  const auto age = [](const std::optional<SnapshotStep>& step) {
    return step.has_value() ? std::tuple(step->generation, step->step, step->writer)
                            : std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>();
  };
  for (int i = 0; i < inventories; ++i) {
    const Inventory inventory = random.inventory();
    const std::optional<SnapshotStep> newest = inventory.newest();
    Inventory elsewhere = inventory;
    for (std::vector<SnapshotIdentity>& offer : elsewhere.offers) offer.clear();
    for (const std::vector<SnapshotIdentity>& offer : inventory.offers)
      for (const SnapshotIdentity& each : offer) random.anywhere(elsewhere).push_back(each);
    for (std::vector<SnapshotIdentity>& offer : elsewhere.offers)
      std::ranges::shuffle(offer, random.generator());
    ASSERT_EQ(elsewhere.newest(), newest) << "inventory " << i;
    Inventory more = inventory;
    random.anywhere(more).push_back(random.identity());
    ASSERT_GE(age(more.newest()), age(newest)) << "inventory " << i;
  }
}

// As a start does that finds one damaged after the other: each is older than the one before, until none is
// left.
TEST(NewestWholeStepProperty, GoesDownUntilNothingIsLeft) {
  RandomInventory random(20261126);
  for (int i = 0; i < inventories / 4; ++i) {
    Inventory inventory = random.inventory();
    std::optional<SnapshotStep> before;
    while (const std::optional<SnapshotStep> newest = inventory.newest()) {
      const auto age = [](const SnapshotStep& step) {
        return std::tuple(step.generation, step.step, step.writer);
      };
      ASSERT_TRUE(!before.has_value() || age(*newest) < age(*before)) << "inventory " << i;
      before = newest;
      inventory.damaged.push_back(*newest);
    }
  }
}

}  // namespace
}  // namespace holdfast::test
