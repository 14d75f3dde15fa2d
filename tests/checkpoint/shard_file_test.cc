#include "checkpoint/shard_file.h"

#include <gmock/gmock.h>

#include "checkpoint/shard_format.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t step = 42;
const std::string run_id = "0123456789abcdef0123456789abcdef";

class ShardFileTest : public testing::Test {
 protected:
  ShardFile write(const std::vector<StateTensor>& state) {
    Result<ShardFile> shard = write_shard_file(posix_env(), directory.path(), "shard-00000.hfs", step, run_id,
                                               pieces_of(state, 0, 1));
    EXPECT_TRUE(shard.ok());
    return std::move(shard).value();
  }
  Result<ShardReader> open(const ShardFile& shard) {
    return ShardReader::open(posix_env(), directory.path(), shard, step, run_id);
  }
  std::string path() const { return directory / "shard-00000.hfs"; }

  TemporaryDirectory directory;
};

TEST_F(ShardFileTest, ReadsAnyRangeAcrossChunks) {
  const std::vector<StateTensor> state = mixed_state(1);
  Result<ShardReader> reader = open(write(state));
  HF_ASSERT_OK(reader);
  ASSERT_EQ(reader.value().pieces().size(), state.size());
  HF_ASSERT_OK(reader.value().verify());
  const StateTensor& large = state.back();
  EXPECT_EQ(reader.value().pieces().back(), large.spec);
  const std::uint64_t elements = large.spec.element_count();
  const std::uint64_t chunk_elements = shard_format::chunk_bytes / 4;
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges = {{0, elements},
                                                                       {0, 1},
                                                                       {elements - 1, 1},
                                                                       {chunk_elements - 1, 2},
                                                                       {chunk_elements, chunk_elements},
                                                                       {elements, 0},
                                                                       {5, elements - 9},
                                                                       {chunk_elements, 3}};
  for (const auto& [first, count] : ranges) {
    std::vector<std::byte> bytes(count * 4);
    HF_ASSERT_OK(reader.value().read(state.size() - 1, first, bytes));
    EXPECT_TRUE(std::ranges::equal(bytes, std::span(large.bytes).subspan(first * 4, count * 4))) << first;
  }
}

TEST_F(ShardFileTest, BytesAreWhereTheFormatSays) {
  const std::vector<StateTensor> state = tiny_state(1);
  const ShardFile shard = write(state);
  const std::string file = read_file(path());
  ASSERT_EQ(file.size(), shard.bytes);
  EXPECT_EQ(file.substr(0, 8), std::string("HFSHARD\0", 8));
  EXPECT_EQ(std::memcmp(file.data() + 16, &step, 8), 0);
  EXPECT_EQ(std::memcmp(file.data() + 4096, state[0].bytes.data(), state[0].bytes.size()), 0);
  EXPECT_EQ(std::memcmp(file.data() + 8192, state[1].bytes.data(), state[1].bytes.size()), 0);
  const std::uint64_t index_offset = 12288;
  EXPECT_EQ(std::memcmp(file.data() + file.size() - 56, &index_offset, 8), 0);
  EXPECT_EQ(file.substr(file.size() - 16, 8), std::string("HFSHEND\0", 8));
  // Record, one extent, names, padding, one checksum, padding.
  EXPECT_EQ(file.size(), 12288u + (56 + 8 + 24 + 8) + (56 + 8 + 24 + 8) + 56);
  const std::uint32_t checksum = crc32c(state[0].bytes);
  EXPECT_EQ(std::memcmp(file.data() + 12288 + 56 + 8 + 24, &checksum, 4), 0);
}

TEST_F(ShardFileTest, EmptyPiecesAndNoPiecesAreFine) {
  std::vector<StateTensor> state = tiny_state(1);
  const std::vector<StatePiece> pieces =
      pieces_of(state, 0, 2);  // one block for two ranks: nothing for the first
  ASSERT_EQ(pieces[0].bytes.size(), 0u);
  const Result<ShardFile> empty = write_shard_file(posix_env(), directory.path(), "a", step, run_id, pieces);
  const Result<ShardFile> none = write_shard_file(posix_env(), directory.path(), "b", step, run_id, {});
  for (const Result<ShardFile>* shard : {&empty, &none}) {
    HF_ASSERT_OK(*shard);
    Result<ShardReader> reader = open(shard->value());
    HF_ASSERT_OK(reader);
    HF_ASSERT_OK(reader.value().verify());
  }
}

TEST_F(ShardFileTest, DamagedChunkIsNamedAndOthersStillRead) {
  const std::vector<StateTensor> state = mixed_state(1);
  const ShardFile shard = write(state);
  const std::string file = read_file(path());
  const std::size_t at = file.find(std::string(reinterpret_cast<const char*>(state.back().bytes.data()), 64));
  flip_bit(path(), at + shard_format::chunk_bytes + 12345, 3);
  Result<ShardReader> reader = open(shard);
  HF_ASSERT_OK(reader);
  std::vector<std::byte> bytes(shard_format::chunk_bytes);
  HF_ASSERT_OK(reader.value().read(state.size() - 1, 0, bytes));
  for (const std::uint64_t first : {shard_format::chunk_bytes / 4, shard_format::chunk_bytes / 4 - 1}) {
    const Result<void> read = reader.value().read(state.size() - 1, first, std::span(bytes).first(8));
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ExitCode::checkpoint);
    EXPECT_THAT(read.error().message, HasSubstr(path()));
    EXPECT_THAT(read.error().message, HasSubstr("'head.bias' (moment2)"));
    EXPECT_THAT(read.error().message, HasSubstr(fmt::format("at offset {}", at + shard_format::chunk_bytes)));
  }
  EXPECT_FALSE(reader.value().verify().ok());
}

TEST_F(ShardFileTest, FileOfAnotherStepOrRunIsNamedAsSuch) {
  const ShardFile shard = write(tiny_state(1));
  const Result<ShardReader> other_step =
      ShardReader::open(posix_env(), directory.path(), shard, step + 1, run_id);
  ASSERT_FALSE(other_step.ok());
  EXPECT_THAT(other_step.error().message,
              HasSubstr("was written at step 42, the manifest beside it is of step 43"));
  const Result<ShardReader> other_run =
      ShardReader::open(posix_env(), directory.path(), shard, step, "another");
  ASSERT_FALSE(other_run.ok());
  EXPECT_THAT(other_run.error().message, HasSubstr("belongs to another run"));
}

TEST_F(ShardFileTest, EveryTruncationAndAppendedBytesAreRefused) {
  const ShardFile shard = write(tiny_state(1));
  const std::string file = read_file(path());
  for (std::size_t length = 0; length < file.size(); length += length < 12288 ? 61 : 1) {
    write_file(path(), std::string_view(file).substr(0, length));
    ASSERT_FALSE(open(shard).ok()) << length;
    ShardFile shorter = shard;  // even if the manifest were wrong in the same way
    shorter.bytes = length;
    ASSERT_FALSE(open(shorter).ok()) << length;
  }
  write_file(path(), file + "x");
  EXPECT_FALSE(open(shard).ok());
  write_file(path(), file);
  EXPECT_TRUE(open(shard).ok());
}

TEST_F(ShardFileTest, ForeignFileIsNotCalledDamaged) {
  const ShardFile shard = write(tiny_state(1));
  write_file(path(), std::string(shard.bytes, 'x'));
  const Result<ShardReader> reader = open(shard);
  ASSERT_FALSE(reader.ok());
  EXPECT_THAT(reader.error().message, HasSubstr("is not a Holdfast shard file"));
}

// Files with fitting checksums but impossible numbers: refused, never believed.
TEST_F(ShardFileTest, ImpossibleNumbersWithRightChecksumsAreRefused) {
  const ShardFile shard = write(tiny_state(1));
  const std::string file = read_file(path());
  const std::size_t index_offset = 12288;
  const std::size_t trailer_offset = file.size() - sizeof(shard_format::Trailer);
  const auto reseal = [&](std::string& forged) {
    const auto bytes = std::as_bytes(std::span(forged.data(), forged.size()));
    ShardFile expected = shard;
    expected.index_crc32c = crc32c(bytes.subspan(index_offset, trailer_offset - index_offset));
    std::memcpy(forged.data() + trailer_offset + 36, &expected.index_crc32c, 4);
    const std::uint32_t own = crc32c(bytes.subspan(trailer_offset, 52));
    std::memcpy(forged.data() + trailer_offset + 52, &own, 4);
    write_file(path(), forged);
    return expected;
  };
  std::string same = file;
  ASSERT_TRUE(open(reseal(same)).ok());
  for (std::size_t field = 0; field < 64; field += 4) {  // the first record and its extent
    for (const std::uint32_t value : {0u, 1u, 2u, 0x7fffffffu, 0xffffffffu}) {
      std::string forged = file;
      std::memcpy(forged.data() + index_offset + field, &value, 4);
      const bool other_type_of_same_size = field == offsetof(shard_format::PieceRecord, dtype) && value == 2;
      if (forged == file || other_type_of_same_size) continue;
      EXPECT_FALSE(open(reseal(forged)).ok()) << "field " << field << " value " << value;
    }
  }
  for (const std::size_t field : {0u, 4u, 8u, 12u}) {  // index offset and length in the trailer
    std::string forged = file;
    const std::uint32_t value = 0xfffffff0u;
    std::memcpy(forged.data() + trailer_offset + field, &value, 4);
    EXPECT_FALSE(open(reseal(forged)).ok()) << "trailer " << field;
  }
}

TEST_F(ShardFileTest, NothingIsOverwritten) {
  write_file(path(), "precious");
  const Result<ShardFile> shard = write_shard_file(posix_env(), directory.path(), "shard-00000.hfs", step,
                                                   run_id, pieces_of(tiny_state(1), 0, 1));
  EXPECT_FALSE(shard.ok());
  EXPECT_EQ(read_file(path()), "precious");
}

TEST_F(ShardFileTest, EveryFailingOperationIsReportedAndLeavesNoFile) {
  const std::vector<StateTensor> state = tiny_state(1);
  std::uint64_t failures = 0;
  for (std::uint64_t at = 1;; ++at) {
    FaultyEnv env(posix_env());
    env.inject({.at = at, .short_write = true, .reason = ENOSPC});
    const Result<ShardFile> shard =
        write_shard_file(env, directory.path(), "shard-00000.hfs", step, run_id, pieces_of(state, 0, 1));
    if (env.failure_count() == 0) {
      HF_ASSERT_OK(shard);
      break;
    }
    ++failures;
    ASSERT_FALSE(shard.ok()) << at;
    EXPECT_EQ(shard.error().code, ExitCode::checkpoint);
    EXPECT_THAT(shard.error().message, HasSubstr(directory.path()));
    EXPECT_THAT(shard.error().message, HasSubstr("the disk is full"));
    EXPECT_FALSE(std::filesystem::exists(path())) << at;
  }
  // create, reserve, header, two pieces, index, trailer, sync, directory
  EXPECT_EQ(failures, 9u);
}

}  // namespace
}  // namespace holdfast
