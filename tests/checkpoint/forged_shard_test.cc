// Shard files with fitting checksums and wrong numbers: nobody writes these by accident, and still none of
// the numbers is believed. What is refused is refused with a sentence; what is not, is read without touching
// anything outside and without memory that the file does not account for.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include "checkpoint/shard_format.h"
#include "tests/checkpoint/largest_allocation.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/memory_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using namespace shard_format;

constexpr std::uint64_t forged_step = 42;
const std::string forged_run_id = "0123456789abcdef0123456789abcdef";
const std::string name = "shard-00000.hfs";

class ForgedShardTest : public testing::Test {
 protected:
  void SetUp() override {
    const TemporaryDirectory directory;
    std::vector<StateTensor> state = tiny_state(1);
    state.push_back(make_tensor("flat.weight", "weight", DType::fp32, {5000}, 3));
    std::ranges::fill(state.back().bytes, std::byte{7});
    const Result<ShardFile> written =
        write_shard_file(posix_env(), directory.path(), name, forged_step, forged_run_id,
                         pieces_of(state, 0, 1), {}, {.compression = Compression::always});
    HF_ASSERT_OK(written);
    shard = written.value();
    original = read_file(directory / name);
    std::memcpy(&trailer, original.data() + original.size() - sizeof(Trailer), sizeof(Trailer));
  }

  // Makes all checksums fit the content, as the manifest's would.
  ShardFile reseal(std::string& file, Trailer forged) const {
    const auto bytes = std::as_bytes(std::span(file));
    const std::uint64_t begin = std::min<std::uint64_t>(forged.index_offset, file.size());
    const std::uint64_t length = std::min<std::uint64_t>(forged.index_bytes, file.size() - begin);
    ShardFile expected = shard;
    expected.bytes = file.size();
    expected.piece_count = forged.piece_count;
    expected.index_crc32c = forged.index_crc32c = crc32c(bytes.subspan(begin, length));
    forged.crc32c = checksum_of(forged);
    std::memcpy(file.data() + file.size() - sizeof(Trailer), &forged, sizeof(Trailer));
    return expected;
  }
  void put(const std::string& file) {
    const auto bytes = std::as_bytes(std::span(file));
    env.put_file("/d/" + name, std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end()));
  }
  // Whether it could be opened and all of its chunks be read.
  bool reads(const std::string& file, const ShardFile& expected) {
    put(file);
    const Result<ShardReader> reader = ShardReader::open(env, "/d", expected, forged_step, forged_run_id);
    if (!reader.ok()) {
      EXPECT_EQ(reader.error().code, ExitCode::checkpoint);
      return false;
    }
    ChunkScratch scratch;
    for (std::size_t piece = 0; piece < reader.value().pieces().size(); ++piece) {
      const std::vector<StoredChunk>& chunks = reader.value().pieces()[piece].chunks;
      for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
        if (!reader.value().read_chunk(piece, chunk, scratch).ok()) return false;
      }
    }
    return true;
  }
  std::uint64_t largest_allocation_allowed() const {
    // The index in memory is about as long as in the file; a chunk is at most a chunk.
    return std::max<std::uint64_t>(2 * original.size(), ChunkCoder::memory_bytes_max);
  }

  ShardFile shard;
  std::string original;
  Trailer trailer{};
  MemoryEnv env;
};

TEST_F(ForgedShardTest, TheSameBytesAreRead) {
  std::string same = original;
  const ShardFile expected = reseal(same, trailer);
  EXPECT_EQ(same, original);
  EXPECT_TRUE(reads(same, expected));
}

TEST_F(ForgedShardTest, ImpossibleNumbersInTheIndexAreRefused) {
  const LargestAllocation allocation;
  for (std::size_t field = 0; field < trailer.index_bytes; field += 4) {
    for (const std::uint32_t value : {0u, 1u, 2u, 3u, 4095u, 4096u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
      std::string forged = original;
      std::memcpy(forged.data() + trailer.index_offset + field, &value, 4);
      if (forged == original) continue;
      const ShardFile expected = reseal(forged, trailer);
      // Names, digests, and a type of the same size may be anything: nothing here contradicts them.
      static_cast<void>(reads(forged, expected));
    }
  }
  // The numbers of the first record, one by one.
  const std::vector<std::size_t> numbers = {
      offsetof(PieceRecord, byte_count),        offsetof(PieceRecord, first_block),
      offsetof(PieceRecord, block_count),       offsetof(PieceRecord, dimension_count),
      offsetof(PieceRecord, chunk_count),       offsetof(PieceRecord, slice),
      offsetof(PieceRecord, tensor_name_bytes), offsetof(PieceRecord, kind_bytes)};
  for (const std::size_t field : numbers) {
    for (const std::uint32_t value : {2u, 4096u, 0x7fffffffu, 0xffffffffu}) {
      std::string forged = original;
      std::memcpy(forged.data() + trailer.index_offset + field, &value, 4);
      const ShardFile expected = reseal(forged, trailer);
      EXPECT_FALSE(reads(forged, expected)) << "field " << field << " value " << value;
    }
  }
  EXPECT_LE(allocation.bytes(), largest_allocation_allowed());
}

TEST_F(ForgedShardTest, ImpossibleNumbersInTheTrailerAreRefused) {
  const LargestAllocation allocation;
  for (const std::uint64_t value :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4096}, original.size() + 4096, ~std::uint64_t{0},
        ~std::uint64_t{4095}, std::uint64_t{1} << 63}) {
    for (int field = 0; field < 5; ++field) {
      Trailer forged = trailer;
      if (field == 0) forged.index_offset = value;
      if (field == 1) forged.index_bytes = value;
      if (field == 2) forged.file_bytes = value;
      if (field == 3) forged.piece_count = static_cast<std::uint32_t>(value >> 1);
      if (field == 4) forged.base_count = static_cast<std::uint32_t>(value | 1);
      std::string file = original;
      const ShardFile expected = reseal(file, forged);
      EXPECT_FALSE(reads(file, expected)) << "field " << field << " value " << value;
    }
  }
  EXPECT_LE(allocation.bytes(), largest_allocation_allowed());
}

TEST_F(ForgedShardTest, AnotherVersionIsNamed) {
  for (const std::uint32_t version : {1U, 3U}) {
    std::string forged = original;
    Header header{};
    std::memcpy(&header, forged.data(), sizeof(header));
    header.version = version;
    header.crc32c = checksum_of(header);
    std::memcpy(forged.data(), &header, sizeof(header));
    put(forged);
    const Result<ShardReader> reader = ShardReader::open(env, "/d", shard, forged_step, forged_run_id);
    ASSERT_FALSE(reader.ok());
    EXPECT_THAT(reader.error().message,
                testing::HasSubstr(
                    fmt::format("has shard format version {}, this program reads version 2", version)));
  }
}

// Mutations at random: bytes and words of the index and of the stored chunks, pieces of the index moved over
// others, with every checksum made to fit.
class Mutation {
 public:
  explicit Mutation(std::uint64_t seed) : random_(seed, 9) {}
  std::uint64_t below(std::uint64_t end) { return random_.bits(draw_++) % end; }

  void apply(std::string& file, std::uint64_t begin, std::uint64_t length) {
    static constexpr std::array<std::uint64_t, 8> favourites = {
        0, 1, 4096, 0xffff, 0xffffffff, 0x7fffffffffffffff, 0xfffffffffffff000, 0xffffffffffffffff};
    for (std::uint64_t changes = 1 + below(4); changes > 0; --changes) {
      const std::uint64_t width = std::uint64_t{1} << below(4);
      const std::uint64_t at = begin + below(length - width);
      const std::uint64_t value =
          below(2) == 0 ? favourites[below(favourites.size())] : below(~std::uint64_t{0});
      std::memcpy(file.data() + at, &value, width);
      if (below(8) == 0) {
        const std::uint64_t moved = 1 + below(std::min<std::uint64_t>(64, length - 1));
        const std::string part = file.substr(begin + below(length - moved), moved);
        file.replace(begin + below(length - moved), moved, part);
      }
    }
  }

 private:
  RandomStream random_;
  std::uint64_t draw_ = 0;
};

TEST_F(ForgedShardTest, RandomMutationsWithFittingChecksumsDoNoHarm) {
  const LargestAllocation allocation;
  std::uint64_t read = 0;
  for (std::uint64_t seed = 0; seed < 100'000; ++seed) {
    Mutation mutation(seed);
    std::string forged = original;
    Trailer forged_trailer = trailer;
    mutation.apply(forged, trailer.index_offset, trailer.index_bytes);
    if (mutation.below(4) == 0) forged_trailer.piece_count = static_cast<std::uint32_t>(mutation.below(5));
    if (mutation.below(4) == 0) forged_trailer.base_count = static_cast<std::uint32_t>(mutation.below(3));
    const ShardFile expected = reseal(forged, forged_trailer);
    if (reads(forged, expected)) ++read;
  }
  EXPECT_LT(read, 50'000u);  // most are found out: it is numbers that were changed
  EXPECT_LE(allocation.bytes(), largest_allocation_allowed());
}

// The stored bytes of the compressed chunk, with checksums that fit them: zstd sees them, and what comes out
// is not what was saved.
TEST_F(ForgedShardTest, ForgedCompressedBytesAreFoundOut) {
  put(original);
  const Result<ShardReader> reader = ShardReader::open(env, "/d", shard, forged_step, forged_run_id);
  HF_ASSERT_OK(reader);
  const StoredChunk chunk = reader.value().pieces()[2].chunks[0];
  ASSERT_EQ(chunk.codec, ChunkCodec::planes);
  const std::uint64_t record = trailer.index_offset + trailer.index_bytes - sizeof(ChunkRecord);
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    Mutation mutation(seed);
    std::string forged = original;
    mutation.apply(forged, chunk.offset_bytes, chunk.stored_bytes);
    if (forged == original) continue;
    const std::uint32_t stored_crc32c =
        crc32c(std::as_bytes(std::span(forged)).subspan(chunk.offset_bytes, aligned(chunk.stored_bytes)));
    std::memcpy(forged.data() + record + offsetof(ChunkRecord, stored_crc32c), &stored_crc32c, 4);
    const ShardFile expected = reseal(forged, trailer);
    put(forged);
    const Result<ShardReader> opened = ShardReader::open(env, "/d", expected, forged_step, forged_run_id);
    HF_ASSERT_OK(opened);
    ChunkScratch scratch;
    const auto back = opened.value().read_chunk(2, 0, scratch);
    // Another spelling of the same planes is possible, other content is not.
    if (back.ok()) {
      ASSERT_EQ(crc32c(back.value()), chunk.raw_crc32c) << seed;
    }
  }
}

}  // namespace
}  // namespace holdfast::test
