// Which checkpoints hosts have together, and when their directories are not of one run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "checkpoint/part_inventory.h"

namespace holdfast {
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

PartInventory host(const std::string& name, std::vector<CheckpointPart> parts, Lineage lineage = {}) {
  return {.host = name, .memory_id = "m", .lineage = std::move(lineage), .parts = std::move(parts)};
}

TEST(PartInventory, ACheckpointCountsWhenEveryShardIsSomewhere) {
  struct Case {
    std::string what;
    std::vector<PartInventory> hosts;
    std::optional<std::uint64_t> whole;  // step
    bool misses_a_host;                  // of the newest
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
      EXPECT_EQ(misses_a_host(found.front(), each.hosts), each.misses_a_host);
      EXPECT_THAT(why_not_whole(found.front()), testing::HasSubstr("is not whole"));
    }
  }
}

TEST(PartInventory, TravelsAsText) {
  const PartInventory there = host("n0", {part_of(2, 20, {0, 2})},
                                   {.run_id = parted_run, .newest_checkpoint = ParentCheckpoint{2, 20}});
  const PartInventory here = inventory_from_text(to_text(there));
  EXPECT_EQ(to_text(here), to_text(there));
  EXPECT_EQ(here.parts.front().present, there.parts.front().present);
  EXPECT_EQ(here.lineage, there.lineage);
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
}  // namespace holdfast
