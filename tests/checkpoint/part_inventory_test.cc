// Which checkpoints hosts have together, and when their directories are not of one run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "checkpoint/part_inventory.h"
#include "runtime/core/record.h"

namespace holdfast::test {
namespace {

constexpr const char* parted_run = "11111111111111111111111111111111";

std::vector<ShardFile> shards_of_three(std::uint32_t crc) {
  return {
      {.name = "shard-00000.hfs", .bytes = 10, .index_crc32c = crc, .piece_count = 1, .hosts = {"n0", "n1"}},
      {.name = "shard-00001.hfs", .bytes = 10, .index_crc32c = crc, .piece_count = 1, .hosts = {"n1", "n2"}},
      {.name = "shard-00002.hfs", .bytes = 10, .index_crc32c = crc, .piece_count = 1, .hosts = {"n2", "n0"}}};
}

CheckpointPart part_of(std::uint64_t generation, std::uint64_t step, std::vector<int> present,
                       std::uint32_t crc = 7) {
  CheckpointPart part{.run_id = parted_run,
                      .state = {.generation = generation, .step = step},
                      .content = content_of(shards_of_three(crc)),
                      .directory = "/disk/checkpoints/step",
                      .named = shards_of_three(crc)};
  for (const int shard : present) part.present.push_back(part.named[static_cast<std::size_t>(shard)].name);
  return part;
}

// Returns one of a run that had one directory at the time.
CheckpointPart part_of_one_directory(std::vector<int> present) {
  CheckpointPart part = part_of(0, 20, std::move(present));
  for (ShardFile& shard : part.named) shard.hosts.clear();
  return part;
}

PartInventory host(const std::string& name, std::vector<CheckpointPart> parts, Lineage lineage = {}) {
  return {.host = name, .shm_run_id = "m", .lineage = std::move(lineage), .parts = std::move(parts)};
}

TEST(PartInventory, ACheckpointCountsWhenEveryShardIsSomewhere) {
  struct Case {
    std::string what;
    std::vector<PartInventory> hosts;
    std::optional<std::uint64_t> whole;  // step
    bool is_lost;                        // what is missing of the newest
  };
  const std::vector<Case> cases = {
      {"all hosts are there",
       {host("n0", {part_of(0, 20, {0, 2}), part_of(0, 10, {0, 2})}), host("n1", {part_of(0, 20, {1, 0})}),
        host("n2", {part_of(0, 20, {2, 1})})},
       20,
       false},
      {"one is lost",
       {host("n0", {part_of(0, 20, {0, 2})}), host("n1", {part_of(0, 20, {1, 0})})},
       20,
       false},
      {"two are lost", {host("n0", {part_of(0, 20, {0, 2})})}, std::nullopt, true},
      {"one of them is there again, with a new disk",
       {host("n0", {part_of(0, 20, {0, 2})}), {.host = "n1"}},
       std::nullopt,
       true},
      {"the newest was not published everywhere",
       {host("n0", {part_of(0, 20, {0, 2}), part_of(0, 10, {0, 2})}), host("n1", {part_of(0, 10, {1, 0})}),
        host("n2", {part_of(0, 10, {2, 1})})},
       10,
       false},
      {"a shard is gone on the hosts that have published it",
       {host("n0", {part_of(0, 20, {0, 2})}), host("n1", {part_of(0, 20, {0})}),
        host("n2", {part_of(0, 20, {2})})},
       std::nullopt,
       true},
      {"it is gone on one of them, and the other never published",
       {host("n0", {part_of(0, 20, {0, 2})}), host("n1", {part_of(0, 20, {0})}), host("n2", {})},
       std::nullopt,
       true},
      {"one may have published it, and is away",
       {host("n0", {part_of(0, 20, {0, 2})}), host("n2", {})},
       std::nullopt,
       true},
      {"nobody but the first has published",
       {host("n0", {part_of(0, 20, {0, 2})}), host("n1", {}), host("n2", {})},
       std::nullopt,
       false},
      {"the other's lineage says that it had published",
       {host("n0", {part_of(0, 20, {0, 2})}),
        host("n1", {}, {.run_id = parted_run, .newest_checkpoint = ParentCheckpoint{0, 20}})},
       std::nullopt,
       true},
      {"the other's lineage ends before it",
       {host("n0", {part_of(0, 20, {0, 2})}),
        host("n1", {}, {.run_id = parted_run, .newest_checkpoint = ParentCheckpoint{0, 10}}), host("n2", {})},
       std::nullopt,
       false},
      {"it was whole in one directory", {host("n0", {part_of_one_directory({0, 1})})}, std::nullopt, true},
      {"two layouts saved one step",
       {host("n0", {part_of(0, 20, {0, 2}, 8)}), host("n1", {part_of(0, 20, {1, 0})}),
        host("n2", {part_of(0, 20, {2, 1})})},
       20,
       false},
      {"a newer generation is newer",
       {host("n0", {part_of(1, 5, {0, 1, 2}), part_of(0, 20, {0, 1, 2})})},
       5,
       false},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    const Result<Lineage> lineage = merge_lineages(each.hosts);
    ASSERT_TRUE(lineage.ok());
    const std::vector<FoundParts> found = find_parts(each.hosts, *lineage);
    ASSERT_FALSE(found.empty());
    const auto whole =
        std::ranges::find_if(found, [](const FoundParts& parts) { return parts.missing().empty(); });
    ASSERT_EQ(whole != found.end(), each.whole.has_value());
    if (each.whole.has_value()) {
      EXPECT_EQ(whole->state.step, *each.whole);
    }
    if (!found.front().missing().empty()) {
      EXPECT_EQ(is_lost(found.front(), each.hosts), each.is_lost);
      EXPECT_THAT(why_not_whole(found.front()), testing::HasSubstr("is not whole"));
    }
  }
}

TEST(PartInventory, WhatWasNeverWholeIsForgotten) {
  const auto forgotten = [](const std::vector<PartInventory>& hosts, std::size_t never_whole) {
    const Result<Lineage> lineage = merge_lineages(hosts);
    EXPECT_TRUE(lineage.ok());
    std::vector<FoundParts> found = find_parts(hosts, *lineage);
    const std::vector<FoundParts> gone = take_never_whole(found, hosts);
    EXPECT_EQ(gone.size(), never_whole);
    return forget(*lineage, gone, found, hosts);
  };
  const Lineage of_20 = {.run_id = parted_run, .newest_checkpoint = ParentCheckpoint{0, 20}};
  const Lineage of_10 = {.run_id = parted_run, .newest_checkpoint = ParentCheckpoint{0, 10}};
  const CheckpointPart first = part_of(0, 20, {0, 2}), whole = part_of(0, 10, {0, 1, 2});
  const std::vector<PartInventory> others = {host("n1", {}), host("n2", {})};

  EXPECT_EQ(forgotten({host("n0", {first}, of_20), others[0], others[1]}, 1), Lineage())
      << "it was the first";
  EXPECT_EQ(forgotten({host("n0", {first, whole}, of_20), others[0], others[1]}, 1), of_10);
  EXPECT_EQ(forgotten({host("n0", {first, whole}, of_20), others[0]}, 0), of_20) << "n2 is away";
  EXPECT_EQ(forgotten({host("n0", {whole}, of_20), others[0], others[1]}, 0), of_20) << "somebody removed it";
  PartInventory damaged = host("n1", {});
  damaged.unreadable = {{.step = 20, .why = "damaged"}};
  EXPECT_EQ(forgotten({host("n0", {first}, of_20), damaged, others[1]}, 0), of_20);
  damaged.unreadable.front().step = 10;
  EXPECT_EQ(forgotten({host("n0", {first}, of_20), damaged, others[1]}, 1), (Lineage{.run_id = parted_run}));
}

TEST(PartInventory, TravelsAsARecord) {
  PartInventory there = host("n0", {part_of(2, 20, {0, 2})},
                             {.run_id = parted_run, .newest_checkpoint = ParentCheckpoint{2, 20}});
  there.unreadable = {{.step = 30, .why = "it has no manifest"}};
  const std::string text = record_to_text(there);
  const PartInventory here = record_from_text<PartInventory>(text).value();
  EXPECT_EQ(record_to_text(here), text);
  EXPECT_EQ(here.parts.front().state, there.parts.front().state);
  EXPECT_EQ(here.parts.front().present, there.parts.front().present);
  EXPECT_EQ(here.lineage, there.lineage);
  EXPECT_EQ(here.unreadable, there.unreadable);
}

TEST(PartInventory, LineagesMergeUnlessTheyPart) {
  const Generation begun = {
      .number = 1, .parent = {.generation = 0, .step = 10}, .settings = "a", .reason = ""};
  Generation begun_otherwise = begun;
  begun_otherwise.settings = "b";
  const Lineage old = {.run_id = parted_run, .newest_checkpoint = ParentCheckpoint{0, 20}};
  const Lineage newer = {
      .run_id = parted_run, .generations = {begun}, .newest_checkpoint = ParentCheckpoint{1, 12}};
  const Lineage other = {.run_id = parted_run, .generations = {begun_otherwise}};

  const std::vector<PartInventory> away = {host("n0", {part_of(0, 20, {0})}, old), host("n1", {}, newer)};
  const Result<Lineage> merged = merge_lineages(away);
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(*merged, newer);
  EXPECT_TRUE(find_parts(away, *merged).empty()) << "step 20 is of a future that was left";

  const Result<Lineage> parted =
      merge_lineages(std::vector<PartInventory>{host("n0", {}, newer), host("n1", {}, other)});
  ASSERT_FALSE(parted.ok());
  EXPECT_EQ(parted.error().code, ExitCode::config);
  EXPECT_THAT(parted.error().message, testing::HasSubstr("n0 and n1 have gone different ways"));

  CheckpointPart foreign = part_of(0, 20, {1});
  foreign.run_id = "22222222222222222222222222222222";
  const Result<Lineage> mixed =
      merge_lineages(std::vector<PartInventory>{host("n0", {part_of(0, 20, {0})}), host("n1", {foreign})});
  ASSERT_FALSE(mixed.ok());
  EXPECT_THAT(mixed.error().message, testing::HasSubstr("n0 and n1 are of different runs"));
}

}  // namespace
}  // namespace holdfast::test
