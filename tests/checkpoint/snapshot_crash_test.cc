// What kills leave in shared memory: slots whose writer died at any point of filling and sealing them, and
// any mixture of slots of several starts, steps and generations, torn and missing ones. Whoever resumes gets
// a step that is sealed and whole, to the last byte, or none.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "checkpoint/ram_tier.h"
#include "runtime/core/memory_plan.h"

namespace holdfast::test {
namespace {

constexpr std::uint64_t manifest_bytes_max = 1000;

// Half of a tensor for each of two ranks, and one of each rank's own with a short last block.
std::vector<ShardSpec> pieces_of(std::uint32_t rank, std::uint32_t ranks) {
  const std::uint64_t blocks = 2 / ranks;
  return {{.tensor = "a",
           .kind = "weight",
           .global_shape = {2, 4096},
           .first_block = rank * blocks,
           .block_count = blocks},
          {.tensor = rank == 0 ? "b" : "c",
           .kind = "moment1",
           .global_shape = {33},
           .first_block = 0,
           .block_count = 1}};
}

// Another one for every identity and piece.
std::vector<std::byte> content_of(const SnapshotIdentity& identity, std::size_t piece, std::uint64_t bytes) {
  auto value = static_cast<std::uint32_t>(identity.writer * 1'000'003 + identity.generation * 10'007 +
                                          identity.step * 101 + identity.rank * 7 + piece);
  std::vector<std::byte> content(bytes);
  for (std::byte& each : content) {
    value = value * 1664525 + 1013904223;
    each = static_cast<std::byte>(value >> 24);
  }
  return content;
}

Manifest manifest_of(const SnapshotIdentity& identity) {
  Manifest manifest;
  manifest.run_id = std::string(32, '7');
  manifest.generation = identity.generation;
  manifest.step = identity.step;
  manifest.config = "x = \"y\"\n";
  return manifest;
}

void fill(SnapshotSlot& slot, const SnapshotIdentity& identity) {
  slot.begin();
  for (std::size_t i = 0; i < slot.pieces().size(); ++i) {
    slot.copy(i, 0, content_of(identity, i, slot.pieces()[i].bytes.size()));
    std::ranges::copy(content_of(identity, i, slot.digests(i).size()), slot.digests(i).begin());
  }
}

bool same(const SnapshotIdentity& one, const SnapshotIdentity& other) {
  return one.run == other.run && one.writer == other.writer && one.generation == other.generation &&
         one.step == other.step && one.rank == other.rank && one.ranks == other.ranks;
}

// A slot that held a sealed snapshot when the writer of the next one died.
class DyingWriter : public testing::Test {
 protected:
  static SnapshotIdentity identity_at(std::uint64_t step) {
    return {
        .run = digest_of("run"), .host = digest_of("host"), .writer = 9, .step = step, .rank = 0, .ranks = 1};
  }
  DyingWriter() {
    fill(slot_, old_);
    slot_.seal(old_, manifest_of(old_), SnapshotSlot::Digests::filled);
    before_ = bytes();
    slot_.begin();
    cleared_ = bytes();
    fill(slot_, new_);
    filled_ = bytes();
    slot_.seal(new_, manifest_of(new_), SnapshotSlot::Digests::filled);
    after_ = bytes();
  }
  std::vector<std::byte> bytes() const { return {memory_.get(), memory_.get() + size_}; }

  // What a reader takes from a slot with these bytes, every one of them: the old snapshot, the new one, or
  // none. Anything else fails the test.
  enum class Taken { old, none, new_ };
  Taken take(const std::vector<std::byte>& state) {
    std::ranges::copy(state, memory_.get());
    Result<SnapshotReader> reader = SnapshotReader::open({memory_.get(), size_}, "slot");
    if (!reader.ok()) return Taken::none;
    for (const auto& [identity, taken] : {std::pair(old_, Taken::old), std::pair(new_, Taken::new_)}) {
      if (!same(reader->identity(), identity)) continue;
      EXPECT_EQ(reader->manifest().step, identity.step);
      for (std::size_t i = 0; i < reader->pieces().size(); ++i) {
        const Result<std::span<const std::byte>> piece = reader->piece(i);
        if (!piece.ok()) return Taken::none;
        EXPECT_TRUE(std::ranges::equal(*piece, content_of(identity, i, piece->size()))) << "mixed";
      }
      return taken;
    }
    ADD_FAILURE() << "an identity that nobody has written";
    return Taken::none;
  }
  // Whose first bytes are `second`'s.
  static std::vector<std::byte> spliced(std::vector<std::byte> first, const std::vector<std::byte>& second,
                                        std::size_t count) {
    std::copy_n(second.begin(), count, first.begin());
    return first;
  }

  const SnapshotIdentity old_ = identity_at(7), new_ = identity_at(8);
  const std::vector<ShardSpec> specs_ = pieces_of(0, 1);
  const std::uint64_t size_ = SnapshotSlot::bytes_for(specs_, manifest_bytes_max);
  const OwnedMemory memory_ = host_memory(MemoryKind::host_visible, size_).value();
  SnapshotSlot slot_{{memory_.get(), size_}, specs_};
  std::vector<std::byte> before_, cleared_, filled_, after_;
};

constexpr std::size_t header_bytes = 104, page_bytes = 4096;

// Byte by byte in the order in which a writer works: the header is cleared, pieces are copied, the index is
// written, the header is. Memory that processes share has what was stored before a kill.
TEST_F(DyingWriter, AtEveryByteThatItWrites) {
  EXPECT_EQ(take(before_), Taken::old);
  for (std::size_t cut = 1; cut <= header_bytes; ++cut)
    EXPECT_NE(take(spliced(before_, cleared_, cut)), Taken::new_) << "clearing the header, byte " << cut;
  EXPECT_EQ(take(cleared_), Taken::none);
  for (std::size_t cut = page_bytes; cut <= size_; cut += cut % page_bytes < 300 ? 1 : 61) {
    std::vector<std::byte> state = spliced(cleared_, filled_, cut);
    EXPECT_EQ(take(state), Taken::none) << "copying, byte " << cut;
    std::copy_n(after_.begin() + page_bytes, cut - page_bytes, state.begin() + page_bytes);
    EXPECT_EQ(take(state), Taken::none) << "with the index, byte " << cut;
  }
  for (std::size_t cut = 0; cut < header_bytes; ++cut) {
    std::vector<std::byte> state = after_;
    std::fill_n(state.begin(), header_bytes, std::byte{});
    EXPECT_EQ(take(spliced(state, after_, cut)), Taken::none) << "writing the header, byte " << cut;
  }
  EXPECT_EQ(take(after_), Taken::new_);
}

// As if a writer's stores had come in any order: each header with each mixture of old and new in the pages
// behind it, and lines of one in the other.
TEST_F(DyingWriter, WithItsPagesInAnyMixture) {
  const std::size_t pages = size_ / page_bytes;
  ASSERT_LE(pages, 12U);
  for (const auto& [header, taken] : {std::pair(before_, Taken::old), std::pair(after_, Taken::new_)}) {
    const std::vector<std::byte>& other = taken == Taken::old ? after_ : before_;
    for (unsigned mixture = 0; mixture < 1U << (pages - 1); ++mixture) {
      std::vector<std::byte> state = header;
      for (std::size_t page = 1; page < pages; ++page) {
        const auto begin = static_cast<std::ptrdiff_t>(page * page_bytes);
        if ((mixture >> (page - 1) & 1) != 0)
          std::copy_n(other.begin() + begin, page_bytes, state.begin() + begin);
      }
      const Taken found = take(state);
      EXPECT_EQ(found, mixture == 0 ? taken : Taken::none) << "mixture " << mixture;
    }
    for (std::size_t line = page_bytes; line < size_; line += 64) {
      std::vector<std::byte> state = header;
      const auto begin = static_cast<std::ptrdiff_t>(line);
      std::copy_n(other.begin() + begin, 64, state.begin() + begin);
      const bool differs = state != header;
      const Taken found = take(state);
      EXPECT_EQ(found, differs ? Taken::none : taken) << "line at " << line;
    }
  }
}

// What is in one slot of one rank.
struct SlotState {
  enum class Kind { missing, torn, sealed } kind = Kind::missing;
  std::uint64_t writer = 0, generation = 0, step = 0;
};
constexpr SlotState slot_states[] = {
    {.kind = SlotState::Kind::missing},
    {.kind = SlotState::Kind::torn, .writer = 2, .step = 9},
    {.kind = SlotState::Kind::sealed, .writer = 1, .generation = 0, .step = 7},
    {.kind = SlotState::Kind::sealed, .writer = 1, .generation = 0, .step = 8},
    {.kind = SlotState::Kind::sealed, .writer = 2, .generation = 0, .step = 8},
    {.kind = SlotState::Kind::sealed, .writer = 2, .generation = 1, .step = 6}};
constexpr std::size_t states = std::size(slot_states), ranks = 2, slots = 2;

// Two slots of two ranks, in shared memory.
class MixedSlots : public testing::Test {
 protected:
  using Mixture = std::array<std::array<std::size_t, slots>, ranks>;  // numbers of slot_states

  MixedSlots() {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (const SlotState& state : slot_states) images_[rank].push_back(image_of(rank, state));
    }
  }
  ~MixedSlots() override { static_cast<void>(remove_snapshots(posix_env(), run_).ok()); }

  SnapshotIdentity identity_of(std::uint32_t rank, const SlotState& state) const {
    return {.run = run_,
            .host = digest_of(posix_env().host_id()),
            .writer = state.writer,
            .generation = state.generation,
            .step = state.step,
            .rank = rank,
            .ranks = ranks};
  }
  void put(const Mixture& mixture) {
    ASSERT_TRUE(remove_snapshots(posix_env(), run_).ok());
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t slot = 0; slot < slots; ++slot) {
        const SlotState& state = slot_states[mixture[rank][slot]];
        if (state.kind == SlotState::Kind::missing) continue;
        const std::vector<std::byte>& image = images_[rank][mixture[rank][slot]];
        const auto memory = posix_env().create_shared_memory(
            snapshot_name(run_, state.writer, static_cast<int>(rank), static_cast<int>(slot)), image.size());
        ASSERT_TRUE(memory.ok()) << memory.error().message;
        std::ranges::copy(image, (*memory)->bytes().begin());
      }
    }
  }
  // By the definition: the newest state that is sealed in some slot of every rank.
  static std::optional<SnapshotStep> expected(const Mixture& mixture, const SnapshotStep& after) {
    std::optional<SnapshotStep> best;
    for (const SlotState& state : slot_states) {
      const auto has_it = [&](const std::array<std::size_t, slots>& of_rank) {
        return std::ranges::any_of(of_rank,
                                   [&](std::size_t number) { return &slot_states[number] == &state; });
      };
      if (state.kind != SlotState::Kind::sealed || !std::ranges::all_of(mixture, has_it)) continue;
      const auto age = [](const auto& step) { return std::pair(step.generation, step.step); };
      if (age(state) <= age(after) || (best.has_value() && age(state) <= age(*best))) continue;
      best = {.writer = state.writer, .generation = state.generation, .step = state.step};
    }
    return best;
  }
  void expect_every_byte_of(const SnapshotStep& step) const {
    Result<SnapshotSet> set = SnapshotSet::open(posix_env(), run_, step);
    ASSERT_TRUE(set.ok()) << set.error().message;
    EXPECT_EQ(set->manifest().step, step.step);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const SnapshotIdentity identity =
          identity_of(rank, {.writer = step.writer, .generation = step.generation, .step = step.step});
      const std::vector<ShardSpec> specs = pieces_of(rank, ranks);
      for (std::size_t i = 0; i < specs.size(); ++i) {
        std::vector<std::byte> bytes(specs[i].byte_count());
        const Checkpoint::Wanted wanted{.spec = specs[i], .target = bytes};
        const Result<void> read = set->read(std::span(&wanted, 1));
        ASSERT_TRUE(read.ok()) << read.error().message;
        EXPECT_EQ(bytes, content_of(identity, i, bytes.size())) << "rank " << rank << ", piece " << i;
      }
    }
  }

  const Digest run_{.high = posix_env().random_u64(), .low = 3};

 private:
  std::vector<std::byte> image_of(std::uint32_t rank, const SlotState& state) const {
    const std::vector<ShardSpec> specs = pieces_of(rank, ranks);
    const std::uint64_t size = SnapshotSlot::bytes_for(specs, manifest_bytes_max);
    const OwnedMemory memory = host_memory(MemoryKind::host_visible, size).value();
    SnapshotSlot slot({memory.get(), size}, specs);
    fill(slot, identity_of(rank, state));
    if (state.kind == SlotState::Kind::sealed)
      slot.seal(identity_of(rank, state), manifest_of(identity_of(rank, state)),
                SnapshotSlot::Digests::filled);
    return {memory.get(), memory.get() + size};
  }
  std::array<std::vector<std::vector<std::byte>>, ranks> images_;
};

// All of them. What a disk may have already is nothing, an older step, and a step between.
TEST_F(MixedSlots, GiveTheNewestStepThatIsWholeOrNone) {
  std::size_t whole = 0, mixtures = 0;
  for (std::size_t number = 0; number < states * states * states * states; ++number) {
    const Mixture mixture = {{{number % states, number / states % states},
                              {number / (states * states) % states, number / (states * states * states)}}};
    SCOPED_TRACE(number);
    put(mixture);
    std::vector<SnapshotIdentity> offer;
    for (const FoundSnapshot& found : list_snapshots(posix_env(), run_)) offer.push_back(found.identity);
    for (const SnapshotStep& disk : {SnapshotStep{}, SnapshotStep{.generation = 0, .step = 7},
                                     SnapshotStep{.generation = 1, .step = 2}}) {
      const std::optional<SnapshotStep> found = newest_whole_step({offer}, disk);
      const std::optional<SnapshotStep> right = expected(mixture, disk);
      ASSERT_EQ(found.has_value(), right.has_value());
      if (!found.has_value()) continue;
      // Two starts may both have a step; either is whole, and its bits are the step's.
      ASSERT_EQ(found->generation, right->generation);
      ASSERT_EQ(found->step, right->step);
      if (disk == SnapshotStep{}) expect_every_byte_of(*found);
      ++whole;
    }
    ++mixtures;
    if (HasFailure()) return;
  }
  EXPECT_EQ(mixtures, 1296U);
  EXPECT_GT(whole, 100U);
}

}  // namespace
}  // namespace holdfast::test
