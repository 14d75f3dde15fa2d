// RAM snapshots: what a slot says of itself, what damage does to it, which step is whole.
#include "checkpoint/snapshot_slot.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "checkpoint/ram_tier.h"
#include "runtime/core/block_digest.h"
#include "runtime/core/crc32c.h"
#include "runtime/core/memory_plan.h"
#include "tests/support/faulty_env.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

// Two pieces, the second with a short last block.
std::vector<ShardSpec> two_pieces() {
  return {{.tensor = "a", .kind = "weight", .global_shape = {4, 4096}, .first_block = 1, .block_count = 2},
          {.tensor = "b", .kind = "moment1", .global_shape = {5000}, .first_block = 0, .block_count = 2}};
}

Manifest manifest_at(std::uint64_t step) {
  Manifest manifest;
  manifest.run_id = std::string(32, '7');
  manifest.step = step;
  manifest.config = "x = \"y\"\n";
  return manifest;
}

SnapshotIdentity identity_at(std::uint64_t step, std::uint32_t rank = 0, std::uint32_t ranks = 1) {
  return {.run = digest_of(std::string(32, '7')),
          .host = digest_of(posix_env().host_id()),
          .writer = 9,
          .generation = 0,
          .step = step,
          .rank = rank,
          .ranks = ranks};
}

class SnapshotSlotTest : public testing::Test {
 protected:
  SnapshotSlotTest() {
    std::uint32_t value = 1;
    for (const ShardSpec& piece : specs_) {
      values_.emplace_back(piece.byte_count());
      for (std::byte& each : values_.back()) {
        value = value * 1664525 + 1013904223;
        each = static_cast<std::byte>(value >> 24);
      }
    }
  }
  std::span<std::byte> memory() { return {memory_.get(), bytes_}; }
  void copy_all() {
    slot_.begin();
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const std::span<const std::byte> all = values_[i];
      slot_.copy(i, 0, all.first(1000));
      slot_.copy(i, 1000, all.subspan(1000));
    }
  }
  void fill(std::uint64_t step) {
    copy_all();
    for (std::size_t i = 0; i < specs_.size(); ++i) std::ranges::fill(slot_.digests(i), std::byte{21});
    slot_.seal(identity_at(step), manifest_at(step), SnapshotSlot::Digests::filled);
  }
  // Ok when every byte that it gives is what was copied.
  Result<void> read_all() {
    HF_TRY(SnapshotReader reader, SnapshotReader::open(memory(), "slot"));
    for (std::size_t i = 0; i < values_.size(); ++i) {
      HF_TRY(const std::span<const std::byte> piece, reader.piece(i));
      EXPECT_TRUE(std::ranges::equal(piece, values_[i]));
    }
    EXPECT_EQ(reader.pieces(), specs_);
    return {};
  }

  std::vector<ShardSpec> specs_ = two_pieces();
  std::vector<std::vector<std::byte>> values_;
  std::uint64_t bytes_ = SnapshotSlot::bytes_for(specs_, 1000);
  OwnedMemory memory_ = host_memory(MemoryKind::host_visible, bytes_).value();
  SnapshotSlot slot_{memory(), specs_};
};

TEST_F(SnapshotSlotTest, GivesBackWhatWasCopied) {
  for (const std::uint64_t step : {7u, 8u}) {
    fill(step);
    const Result<SnapshotReader> reader = SnapshotReader::open(memory(), "slot");
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    EXPECT_EQ(reader->identity().step, step);
    EXPECT_EQ(reader->identity().writer, 9u);
    EXPECT_EQ(reader->manifest().step, step);
    EXPECT_EQ(reader->manifest().config, "x = \"y\"\n");
    EXPECT_TRUE(read_all().ok());
  }
}

// A slot that knows no digests is like one of a program that had none.
TEST_F(SnapshotSlotTest, KeepsTheBlockDigestsThatAreKnown) {
  for (const bool known : {true, false, true}) {
    copy_all();
    std::vector<std::span<std::byte>> digests;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      digests.push_back(slot_.digests(i));
      EXPECT_EQ(digests[i].size(), specs_[i].kind == "weight" ? 8 * specs_[i].block_count : 0);
      std::ranges::fill(digests[i], static_cast<std::byte>(7 + i));
    }
    slot_.seal(identity_at(7), manifest_at(7),
               known ? SnapshotSlot::Digests::filled : SnapshotSlot::Digests::unknown);
    Result<SnapshotReader> reader = SnapshotReader::open(memory(), "slot");
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      EXPECT_TRUE(reader->piece(i).ok());
      EXPECT_TRUE(std::ranges::equal(reader->digests_of(i), known ? digests[i] : std::span<std::byte>()));
    }
    EXPECT_TRUE(read_all().ok());
  }
}

// Chunks in any order, by several threads; of any alignment, which the copy makes no use of where it cannot.
TEST(SnapshotSlot, ThreadsShareTheChunksOut) {
  const std::vector<ShardSpec> specs = {
      {.tensor = "a", .kind = "weight", .global_shape = {3'300'001}, .first_block = 0, .block_count = 806}};
  std::vector<std::byte> values(specs[0].byte_count() + 1);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
  const std::uint64_t bytes = SnapshotSlot::bytes_for(specs, 1000);
  const OwnedMemory memory = host_memory(MemoryKind::host_visible, bytes).value();
  SnapshotSlot slot({memory.get(), bytes}, specs);
  for (const std::size_t shift : {0u, 1u}) {
    const std::span<const std::byte> state = std::span(values).subspan(shift, specs[0].byte_count());
    slot.begin();
    {
      std::vector<std::jthread> threads;
      for (const std::size_t odd : {1u, 0u}) {
        threads.emplace_back([&slot, state, odd] {
          for (std::size_t at = odd * SnapshotSlot::chunk_bytes; at < state.size();
               at += 2 * SnapshotSlot::chunk_bytes) {
            slot.copy(0, at,
                      state.subspan(at, std::min<std::size_t>(SnapshotSlot::chunk_bytes, state.size() - at)));
          }
        });
      }
    }
    slot.seal(identity_at(7), manifest_at(7));
    Result<SnapshotReader> reader = SnapshotReader::open({memory.get(), bytes}, "slot");
    ASSERT_TRUE(reader.ok());
    const Result<std::span<const std::byte>> piece = reader->piece(0);
    ASSERT_TRUE(piece.ok()) << piece.error().message;
    EXPECT_TRUE(std::ranges::equal(*piece, state));
    const StatePiece& copied = slot.pieces()[0];
    ASSERT_EQ(copied.chunk_crc32c.size(), 13u);
    EXPECT_EQ(copied.chunk_crc32c[1],
              crc32c(state.subspan(SnapshotSlot::chunk_bytes, SnapshotSlot::chunk_bytes)));
  }
}

// A slot whose pieces were not copied by copy(): two trained weights, the second with a short last block, one that is frozen.
class WrittenSlotTest : public testing::TestWithParam<DType> {
 protected:
  WrittenSlotTest() {
    std::uint32_t value = 1;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      for (std::byte& each : slot_.room(i)) {
        value = value * 1664525 + 1013904223;
        each = static_cast<std::byte>(value >> 24);
      }
    }
    slot_.begin();
    for (const auto& [weight, first_moment] : {std::pair(0, 3), std::pair(1, 4), std::pair(2, -1)})
      leave_digests(weight, first_moment);
    seal();
  }
  static std::vector<ShardSpec> specs() {
    std::vector<ShardSpec> specs;
    for (const char* kind : {"weight", "moment1", "moment2"}) {
      const DType dtype = std::string_view(kind) == "weight" ? DType::fp32 : GetParam();
      specs.push_back({.tensor = "a",
                       .kind = kind,
                       .dtype = dtype,
                       .global_shape = {4, 4096},
                       .first_block = 1,
                       .block_count = 2});
      specs.push_back(
          {.tensor = "b", .kind = kind, .dtype = dtype, .global_shape = {5000}, .block_count = 2});
      if (dtype == DType::fp32 && specs.size() == 2)
        specs.push_back({.tensor = "frozen", .kind = kind, .global_shape = {4096}, .block_count = 1});
    }
    specs.push_back(
        {.tensor = "b", .kind = "ema", .dtype = DType::fp32, .global_shape = {5000}, .block_count = 2});
    return specs;
  }
  void leave_digests(int weight, int moment) {
    const auto index = static_cast<std::size_t>(weight), first = static_cast<std::size_t>(moment);
    const auto* const values = reinterpret_cast<const float*>(slot_.room(index).data());
    const std::uint64_t elements = specs_[index].element_count();
    for (std::uint64_t at = 0; at < elements; at += block_elements) {
      const auto of_moment = [&](std::size_t number) -> const void* {
        return moment < 0 ? nullptr : slot_.room(first + number).data() + at * bytes_of(GetParam());
      };
      const std::uint64_t digest =
          state_digest(values + at, of_moment(0), of_moment(2),
                       static_cast<std::int64_t>(std::min(block_elements, elements - at)), GetParam(),
                       weight == 1 ? reinterpret_cast<const float*>(slot_.room(7).data()) + at : nullptr);
      std::memcpy(slot_.digests(index).data() + at / block_elements * sizeof(digest), &digest,
                  sizeof(digest));
    }
  }
  void seal() { slot_.seal(identity_at(7), manifest_at(7), SnapshotSlot::Digests::alone); }
  std::span<std::byte> memory() { return {memory_.get(), bytes_}; }
  Result<void> read_all() {
    HF_TRY(SnapshotReader reader, SnapshotReader::open(memory(), "slot"));
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      HF_TRY(const std::span<const std::byte> piece, reader.piece(i));
      EXPECT_TRUE(std::ranges::equal(piece, slot_.room(i)));
      EXPECT_EQ(reader.digests_of(i).size(), slot_.digests(i).size());
    }
    return {};
  }

  std::vector<ShardSpec> specs_ = specs();
  std::uint64_t bytes_ = SnapshotSlot::bytes_for(specs_, 1000);
  OwnedMemory memory_ = host_memory(MemoryKind::host_visible, bytes_).value();
  SnapshotSlot slot_{memory(), specs_};
};

TEST_P(WrittenSlotTest, ItsDigestsFindEveryBitThatChanges) {
  ASSERT_TRUE(read_all().ok()) << read_all().error().message;
  for (std::size_t piece = 0; piece < specs_.size(); ++piece) {
    for (const std::span<std::byte> bytes : {slot_.room(piece), slot_.digests(piece)}) {
      const std::size_t stride = bytes.size() > 100 ? 97 : 1;
      for (std::size_t at = 0; at < bytes.size(); at += stride) {
        bytes[at] ^= std::byte{1} << (at % 8);
        Result<SnapshotReader> reader = SnapshotReader::open(memory(), "slot");
        ASSERT_TRUE(reader.ok());
        const Result<std::span<const std::byte>> read = reader->piece(piece);
        ASSERT_FALSE(read.ok()) << "piece " << piece << ", byte " << at;
        ASSERT_EQ(read.error().code, ExitCode::checkpoint);
        bytes[at] ^= std::byte{1} << (at % 8);
      }
    }
  }
  EXPECT_TRUE(read_all().ok());
}

// One block vouches for a weight and both of its moments: damage of any is damage of all, and of no other tensor.
TEST_P(WrittenSlotTest, DamageOfAMomentIsThatOfItsTensor) {
  slot_.room(5)[3] ^= std::byte{16};
  Result<SnapshotReader> reader = SnapshotReader::open(memory(), "slot");
  ASSERT_TRUE(reader.ok());
  for (std::size_t piece = 0; piece < specs_.size(); ++piece) {
    EXPECT_EQ(reader->piece(piece).ok(), specs_[piece].tensor != "a") << piece;
    EXPECT_EQ(reader->has_verified(piece), specs_[piece].tensor != "a") << piece;
  }
  EXPECT_THAT(reader->piece(0).error().message, HasSubstr("tensor 'a'"));
}

TEST_P(WrittenSlotTest, ReplicasOfItAreVerified) {
  const OwnedMemory room = host_memory(MemoryKind::host_visible, bytes_).value();
  SnapshotReplica replica({room.get(), bytes_});
  const std::uint64_t sealed = SnapshotReader::sealed_bytes(memory(), "slot").value();
  const auto receive = [&] {
    replica.begin(sealed);
    std::ranges::copy(memory().subspan(4096, replica.body().size()), replica.body().begin());
    return replica.seal(memory().first(4096), identity_at(7), "replica");
  };
  EXPECT_TRUE(receive().ok());
  slot_.room(1)[0] ^= std::byte{1};
  EXPECT_FALSE(receive().ok());
}

INSTANTIATE_TEST_SUITE_P(Moments, WrittenSlotTest, testing::Values(DType::fp32, DType::bf16),
                         [](const auto& each) { return std::string(name_of(each.param)); });

// A piece that no digest vouches for is none of a slot without checksums.
TEST(SnapshotSlot, HasNoPieceThatNothingVouchesFor) {
  const std::vector<std::vector<ShardSpec>> cases = {
      two_pieces(),  // a moment without its weight
      {{.tensor = "a", .kind = "weight", .global_shape = {4096}, .block_count = 1},
       {.tensor = "a", .kind = "moment2", .global_shape = {4096}, .block_count = 1}},
      {{.tensor = "a", .kind = "weight", .global_shape = {4096}, .block_count = 1},
       {.tensor = "a", .kind = "weight", .global_shape = {4096}, .block_count = 1}},
      {{.tensor = "a", .kind = "weight", .dtype = DType::bf16, .global_shape = {4096}, .block_count = 1}},
      {{.tensor = "a", .kind = "weight", .global_shape = {8192}, .block_count = 2},
       {.tensor = "a", .kind = "moment1", .global_shape = {8192}, .block_count = 1},
       {.tensor = "a", .kind = "moment2", .global_shape = {8192}, .block_count = 2}},
      {{.tensor = "a", .kind = "ema", .global_shape = {4096}, .block_count = 1}},
      {{.tensor = "a", .kind = "weight", .global_shape = {4096}, .block_count = 1},
       {.tensor = "a", .kind = "ema", .dtype = DType::bf16, .global_shape = {4096}, .block_count = 1}},
      {{.tensor = "a", .kind = "weight", .global_shape = {8192}, .block_count = 2},
       {.tensor = "a", .kind = "ema", .global_shape = {8192}, .block_count = 1}},
  };
  for (const std::vector<ShardSpec>& specs : cases) {
    const std::uint64_t bytes = SnapshotSlot::bytes_for(specs, 1000);
    const OwnedMemory memory = host_memory(MemoryKind::host_visible, bytes).value();
    SnapshotSlot slot({memory.get(), bytes}, specs);
    slot.begin();
    slot.seal(identity_at(7), manifest_at(7), SnapshotSlot::Digests::alone);
    const Result<SnapshotReader> reader = SnapshotReader::open({memory.get(), bytes}, "slot");
    ASSERT_FALSE(reader.ok()) << specs.size();
    EXPECT_THAT(reader.error().message, HasSubstr("its index is none of this program's"));
  }
}

// As a rule that keeps one moment leaves it.
TEST(SnapshotSlot, HasWeightsWithOneMoment) {
  const std::vector<ShardSpec> specs = {
      {.tensor = "a", .kind = "weight", .global_shape = {4096}, .block_count = 1},
      {.tensor = "a", .kind = "moment1", .dtype = DType::bf16, .global_shape = {4096}, .block_count = 1}};
  const std::uint64_t bytes = SnapshotSlot::bytes_for(specs, 1000);
  const OwnedMemory memory = host_memory(MemoryKind::host_visible, bytes).value();
  SnapshotSlot slot({memory.get(), bytes}, specs);
  slot.begin();
  for (std::size_t piece = 0; piece < specs.size(); ++piece)
    std::ranges::fill(slot.room(piece), static_cast<std::byte>(17 * (piece + 1)));
  const std::uint64_t digest = state_digest(reinterpret_cast<const float*>(slot.room(0).data()),
                                            slot.room(1).data(), nullptr, 4096, DType::bf16);
  std::memcpy(slot.digests(0).data(), &digest, sizeof(digest));
  slot.seal(identity_at(7), manifest_at(7), SnapshotSlot::Digests::alone);
  const auto read = [&] {
    Result<SnapshotReader> reader = SnapshotReader::open({memory.get(), bytes}, "slot");
    EXPECT_TRUE(reader.ok());
    return reader->piece(0).ok() && reader->piece(1).ok();
  };
  EXPECT_TRUE(read());
  for (std::size_t piece = 0; piece < specs.size(); ++piece) {
    slot.room(piece)[100] ^= std::byte{4};
    EXPECT_FALSE(read()) << piece;
    slot.room(piece)[100] ^= std::byte{4};
  }
}

TEST_F(SnapshotSlotTest, IsNothingUntilItIsSealed) {
  EXPECT_FALSE(SnapshotReader::open(memory(), "slot").ok());
  fill(7);
  copy_all();  // of another step: what was sealed is gone from the first byte on
  const Result<SnapshotReader> reader = SnapshotReader::open(memory(), "slot");
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, ExitCode::checkpoint);
}

// Of every byte that means something; padding means nothing.
TEST_F(SnapshotSlotTest, EveryDamagedByteIsFound) {
  fill(7);
  ASSERT_TRUE(read_all().ok());
  const Result<SnapshotReader> whole = SnapshotReader::open(memory(), "slot");
  ASSERT_TRUE(whole.ok());
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges = {{0, 104}, {4096, 4096 + values_[0].size()}};
  const std::uint64_t second = 4096 + (values_[0].size() + 4095) / 4096 * 4096;
  ranges.emplace_back(second, second + values_[1].size());
  const std::uint64_t digests = second + (values_[1].size() + 4095) / 4096 * 4096;
  ranges.emplace_back(digests, digests + slot_.digests(0).size());
  const std::uint64_t index = digests + 4096;
  ranges.emplace_back(index, index + 300);
  for (const auto& [begin, end] : ranges) {
    const std::uint64_t stride = end - begin > 1000 ? 97 : 1;
    for (std::uint64_t at = begin; at < end; at += stride) {
      memory()[at] ^= std::byte{1} << (at % 8);
      const Result<void> read = read_all();
      ASSERT_FALSE(read.ok()) << at;
      ASSERT_EQ(read.error().code, ExitCode::checkpoint) << at;
      memory()[at] ^= std::byte{1} << (at % 8);
    }
  }
  EXPECT_TRUE(read_all().ok());
}

// Down to the begin of the index; behind it there is unused room.
TEST_F(SnapshotSlotTest, EveryTruncationIsFound) {
  fill(7);
  const std::uint64_t index = SnapshotSlot::bytes_for(specs_, 0) / 4096 * 4096 - 4096;
  for (std::uint64_t bytes = 0; bytes <= index; bytes += 1 + bytes / 7)
    EXPECT_FALSE(SnapshotReader::open(memory().first(bytes), "slot").ok()) << bytes;
}

SnapshotIdentity offered(std::uint64_t writer, std::uint64_t step, std::uint32_t rank, std::uint32_t ranks) {
  SnapshotIdentity identity = identity_at(step, rank, ranks);
  identity.writer = writer;
  return identity;
}

TEST(NewestWholeStep, IsTheNewestOfWhichNoPartIsMissing) {
  const SnapshotStep after{.writer = 0, .generation = 0, .step = 10};
  const auto newest = [&](const std::vector<std::vector<SnapshotIdentity>>& offers) -> std::uint64_t {
    const std::optional<SnapshotStep> step = newest_whole_step(offers, after);
    return step.has_value() ? step->step : 0;
  };
  EXPECT_EQ(newest({{}}), 0u);
  EXPECT_EQ(newest({{offered(1, 11, 0, 1)}}), 11u);
  EXPECT_EQ(newest({{offered(1, 10, 0, 1)}}), 0u) << "the disk has it";
  EXPECT_EQ(newest({{offered(1, 11, 0, 2)}}), 0u) << "the other part is missing";
  EXPECT_EQ(newest({{offered(1, 11, 0, 2), offered(1, 11, 1, 2)}}), 11u);
  EXPECT_EQ(newest({{offered(1, 11, 0, 2)}, {offered(1, 11, 1, 2)}}), 11u) << "two hosts";
  EXPECT_EQ(newest({{offered(1, 11, 0, 2), offered(1, 11, 1, 2), offered(1, 12, 0, 2)}}), 11u)
      << "12 was not sealed by all";
  EXPECT_EQ(newest({{offered(1, 12, 0, 2), offered(2, 12, 1, 2)}}), 0u) << "of two starts";
  EXPECT_EQ(newest({{}, {offered(1, 11, 0, 1)}}), 11u) << "the host of rank 0 has none";
  EXPECT_EQ(newest({{offered(1, 11, 0, 1)}, {offered(1, 12, 0, 1)}}), 12u)
      << "the host of rank 0 has an older one";
  EXPECT_EQ(newest({{offered(1, 11, 0, 2), offered(1, 11, 0, 2)}}), 0u) << "a replica is the same part";
  const std::vector<SnapshotStep> damaged = {{.writer = 1, .generation = 0, .step = 12}};
  const std::vector<SnapshotIdentity> both = {offered(1, 11, 0, 1), offered(1, 12, 0, 1)};
  EXPECT_EQ(newest({both}), 12u);
  EXPECT_EQ(newest_whole_step({{both}}, after, damaged)->step, 11u);
}

class RamTierTest : public testing::Test {
 protected:
  void make(const std::string& name, bool sealed, std::uint64_t writer = 9) {
    const std::vector<ShardSpec> specs = two_pieces();
    Result<std::unique_ptr<SharedMemory>> memory =
        posix_env().create_shared_memory(name, SnapshotSlot::bytes_for(specs, 1000));
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    SnapshotSlot slot((*memory)->bytes(), specs);
    slot.begin();
    const std::vector<std::byte> zeros(specs[0].byte_count());
    for (std::size_t i = 0; i < specs.size(); ++i)
      slot.copy(i, 0, std::span(zeros).first(specs[i].byte_count()));
    SnapshotIdentity identity = identity_at(7);
    identity.run = run_;
    identity.writer = writer;
    if (sealed) slot.seal(identity, manifest_at(7));
  }
  ~RamTierTest() override { static_cast<void>(remove_snapshots(posix_env(), run_).ok()); }
  Digest run_{.high = posix_env().random_u64(), .low = 1};
};

TEST_F(RamTierTest, FindsWhatIsSealedAndRemovesAll) {
  make(snapshot_name(run_, 1, 0, 0), true, 1);
  make(snapshot_name(run_, 1, 0, 1), false, 1);
  make(replica_name(run_, 1, 0, 0), true, 1);
  make(snapshot_name(run_, 2, 0, 0), true, 2);
  const std::vector<FoundSnapshot> found = list_snapshots(posix_env(), run_);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].name, snapshot_name(run_, 1, 0, 0));
  EXPECT_EQ(found[1].name, replica_name(run_, 1, 0, 0)) << "behind the rank's own";
  EXPECT_EQ(found[0].identity.step, 7u);
  FaultyEnv elsewhere(posix_env());
  elsewhere.move_to_host("another");
  EXPECT_TRUE(list_snapshots(elsewhere, run_).empty());
  FaultyEnv of_the_same_name(posix_env());
  of_the_same_name.move_to_machine("another boot, or another /dev/shm");
  EXPECT_TRUE(list_snapshots(of_the_same_name, run_).empty());
  EXPECT_EQ(remove_snapshots(posix_env(), run_, 2)->count, 3u);
  EXPECT_EQ(list_snapshots(posix_env(), run_).size(), 1u);
  EXPECT_EQ(remove_snapshots(posix_env(), run_)->count, 1u);
  EXPECT_EQ(remove_snapshots(posix_env(), run_)->count, 0u);
}

TEST_F(RamTierTest, OneWhoseHeaderSaysAnotherThanItsNameIsNone) {
  make(snapshot_name(run_, 9, 0, 0), true);
  make(snapshot_name(run_, 8, 0, 0), true);  // of another writer
  make(snapshot_name(run_, 9, 1, 0), true);  // of another rank
  make(replica_name(run_, 9, 1, 0), true);
  make(snapshot_name({.high = run_.high, .low = 2}, 9, 0, 0), true);  // of another run
  const std::vector<FoundSnapshot> found = list_snapshots(posix_env(), run_);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, snapshot_name(run_, 9, 0, 0));
  EXPECT_TRUE(list_snapshots(posix_env(), {.high = run_.high, .low = 2}).empty());
  EXPECT_EQ(needed_snapshots(posix_env(), run_, step_of(found[0].identity)), std::set{found[0].name});
  SnapshotSet set = SnapshotSet::open(posix_env(), run_, step_of(found[0].identity));
  EXPECT_THAT(set.ranks(), testing::ElementsAre(0));
  EXPECT_EQ(remove_snapshots(posix_env(), {.high = run_.high, .low = 2})->count, 1u);
  EXPECT_EQ(remove_snapshots(posix_env(), run_)->count, 4u) << "they go with the run's";
}

TEST_F(RamTierTest, AReplicaStandsForADamagedSlot) {
  const std::string own = snapshot_name(run_, 9, 0, 0), replica = replica_name(run_, 9, 0, 0);
  make(own, true);
  make(replica, true);
  const std::vector<ShardSpec> specs = two_pieces();
  const auto damage = [](const std::string& name, std::uint64_t at) {
    posix_env().open_shared_memory(name).value()->bytes()[at] ^= std::byte{1};
  };
  const auto read = [&] {
    SnapshotSet set = SnapshotSet::open(posix_env(), run_, {.writer = 9, .generation = 0, .step = 7});
    std::vector<std::byte> first(specs[0].byte_count(), std::byte{1}), second(specs[1].byte_count());
    const std::vector<Checkpoint::Wanted> wanted = {{specs[0], first}, {specs[1], second}};
    const Result<void> outcome =
        set.empty() ? Result<void>(fail(ExitCode::checkpoint, "empty")) : set.read(wanted);
    EXPECT_TRUE(!outcome.ok() || first == std::vector<std::byte>(first.size()));
    return std::pair(outcome.ok(), set.damages().size());
  };
  EXPECT_EQ(read(), std::pair(true, std::size_t{0}));
  damage(own, 5000);
  EXPECT_EQ(read(), std::pair(true, std::size_t{1})) << "a piece of the slot";
  EXPECT_THAT(SnapshotSet::open(posix_env(), run_, {.writer = 9, .step = 7}).drop_damaged(specs),
              testing::IsEmpty());
  damage(replica, 5000);
  EXPECT_EQ(read().first, false) << "the same piece of both";
  EXPECT_THAT(SnapshotSet::open(posix_env(), run_, {.writer = 9, .step = 7}).drop_damaged(specs),
              testing::ElementsAre(0));
  EXPECT_THAT(SnapshotSet::open(posix_env(), run_, {.writer = 9, .step = 7}).drop_damaged({specs[1]}),
              testing::IsEmpty())
      << "what is not wanted is not read";
  damage(replica, 5000);
  damage(own, 20);
  EXPECT_EQ(read(), std::pair(true, std::size_t{0})) << "the slot is not even listed";
}

TEST_F(RamTierTest, ShowsThatItReads) {
  make(snapshot_name(run_, 9, 0, 0), true);
  const std::vector<ShardSpec> specs = two_pieces();
  std::vector<std::byte> first(specs[0].byte_count()), second(specs[1].byte_count());
  const std::uint64_t bytes = first.size() + second.size();
  std::uint64_t shown = 0;
  SnapshotSet set = SnapshotSet::open(posix_env(), run_, {.writer = 9, .generation = 0, .step = 7},
                                      [&](std::uint64_t part) { shown += part; });
  EXPECT_THAT(set.drop_damaged(specs), testing::IsEmpty());
  EXPECT_EQ(shown, bytes) << "verified";
  ASSERT_TRUE(set.read(std::vector<Checkpoint::Wanted>{{specs[0], first}, {specs[1], second}}).ok());
  EXPECT_EQ(shown, 2 * bytes) << "and copied";
}

TEST(PacedParts, GoThroughAllOfItInOrder) {
  constexpr std::uint64_t bytes = (40 << 20) + 5;
  std::uint64_t done = 0;
  std::vector<std::uint64_t> shown;
  in_paced_parts(
      bytes, [&](std::uint64_t part) { shown.push_back(part); },
      [&](std::uint64_t offset, std::uint64_t part) {
        EXPECT_EQ(offset, done);
        done += part;
      });
  EXPECT_THAT(shown, testing::ElementsAre(16 << 20, 16 << 20, (8 << 20) + 5));
  EXPECT_EQ(done, bytes);
}

TEST_F(RamTierTest, WhatAnotherHostHasSentStandsForWhatIsDamagedHere) {
  const std::string own = snapshot_name(run_, 9, 0, 0);
  make(own, true);
  posix_env().open_shared_memory(own).value()->bytes()[5000] ^= std::byte{1};
  const SnapshotStep step{.writer = 9, .generation = 0, .step = 7};
  const std::vector<ShardSpec> specs = two_pieces();
  SnapshotSet set = SnapshotSet::open(posix_env(), run_, step);
  EXPECT_TRUE(set.holds(specs)) << "as far as its index says";
  EXPECT_THAT(set.drop_damaged(specs), testing::ElementsAre(0));
  EXPECT_TRUE(set.empty());
  EXPECT_FALSE(set.holds(specs));
  EXPECT_THAT(set.why_empty(posix_env(), step).message, HasSubstr("wrong checksum"));
  std::vector<std::byte> first(specs[0].byte_count()), second(specs[1].byte_count());
  const std::vector<Checkpoint::Wanted> wanted = {{specs[0], first}, {specs[1], second}};
  const Result<void> missing = set.read(wanted);
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message, HasSubstr("wrong checksum"));
  for (const ShardSpec& spec : specs) {
    Result<OwnedMemory> bytes = host_memory(MemoryKind::host_visible, spec.byte_count());
    ASSERT_TRUE(bytes.ok());
    std::fill_n(bytes->get(), spec.byte_count(), std::byte{3});
    set.add(spec, std::move(bytes).value());
  }
  EXPECT_TRUE(set.holds(specs));
  ASSERT_TRUE(set.read(wanted).ok());
  EXPECT_EQ(first, std::vector<std::byte>(first.size(), std::byte{3}));
  EXPECT_EQ(second, std::vector<std::byte>(second.size(), std::byte{3}));
}

TEST_F(RamTierTest, SaysWhichStepAHostDoesNotHave) {
  make(snapshot_name(run_, 9, 0, 0), true);
  const SnapshotStep other{.writer = 9, .generation = 0, .step = 8};
  SnapshotSet set = SnapshotSet::open(posix_env(), run_, other);
  EXPECT_THAT(set.why_empty(posix_env(), other).message, HasSubstr("has no RAM snapshot of step 8"));
  std::vector<std::byte> first(two_pieces()[0].byte_count());
  EXPECT_FALSE(set.read(std::vector<Checkpoint::Wanted>{{two_pieces()[0], first}}).ok());
}

TEST_F(RamTierTest, OneCopyOfAPartOfTheResumedStepIsNeeded) {
  make(snapshot_name(run_, 9, 0, 0), true);
  make(snapshot_name(run_, 9, 0, 1), false);
  make(replica_name(run_, 9, 0, 0), true);
  const SnapshotStep step{.writer = 9, .generation = 0, .step = 7};
  const OldSnapshots old = count_old_snapshots(posix_env(), run_, step);
  EXPECT_EQ(old.resumed.count, 1U);
  EXPECT_EQ(old.unneeded.count, 2U);
  EXPECT_EQ(old.unneeded.bytes, 2 * old.resumed.bytes);
  EXPECT_EQ(count_old_snapshots(posix_env(), run_, std::nullopt).unneeded.count, 3U);
}

TEST(SnapshotPieces, AreTheSameWhenTheyAreReadFromTheirText) {
  EXPECT_EQ(specs_from_text(to_text(two_pieces())), two_pieces());
}

}  // namespace
}  // namespace holdfast::test
