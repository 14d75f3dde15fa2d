#include "checkpoint/shard_file.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include "checkpoint/shard_format.h"
#include "runtime/os/io_queue.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t step = 42;
const std::string run_id = "0123456789abcdef0123456789abcdef";

class ShardFileTest : public testing::Test {
 protected:
  ShardFile write(const std::vector<StateTensor>& state, const ShardWriteOptions& options = {}) {
    Result<ShardFile> shard = write_shard_file(posix_env(), directory.path(), "shard-00000.hfs", step, run_id,
                                               pieces_of(state, 0, 1), {}, options);
    EXPECT_TRUE(shard.ok());
    return std::move(shard).value();
  }
  Result<ShardReader> open(const ShardFile& shard) {
    return ShardReader::open(posix_env(), directory.path(), shard, step, run_id);
  }
  // Every chunk of every piece.
  void expect_holds(const ShardReader& reader, const std::vector<StateTensor>& state) {
    ASSERT_EQ(reader.pieces().size(), state.size());
    ChunkScratch scratch;
    for (std::size_t i = 0; i < state.size(); ++i) {
      EXPECT_EQ(reader.pieces()[i].spec, state[i].spec);
      std::vector<std::byte> bytes;
      for (std::size_t chunk = 0; chunk < reader.pieces()[i].chunks.size(); ++chunk) {
        const auto read = reader.read_chunk(i, chunk, scratch);
        HF_ASSERT_OK(read);
        bytes.insert(bytes.end(), read.value().begin(), read.value().end());
      }
      EXPECT_TRUE(bytes == state[i].bytes) << i;
    }
  }
  std::string path() const { return directory / "shard-00000.hfs"; }

  TemporaryDirectory directory;
};

// The mantissas of noise, the exponents of a few numbers: what compression is for.
std::vector<StateTensor> compressible_state() {
  std::vector<StateTensor> state = mixed_state(1);
  for (StateTensor& tensor : state) {
    const std::size_t element_bytes = bytes_of(tensor.spec.dtype);
    for (std::size_t i = element_bytes - 1; i < tensor.bytes.size(); i += element_bytes)
      tensor.bytes[i] = std::byte{0x3c};
  }
  return state;
}

TEST_F(ShardFileTest, WhatIsWrittenIsReadWhateverTheCompression) {
  for (const std::vector<StateTensor>& state : {mixed_state(1), compressible_state()}) {
    for (const Compression compression : {Compression::automatic, Compression::none, Compression::always}) {
      const ShardFile shard = write(state, {.compression = compression});
      Result<ShardReader> reader = open(shard);
      HF_ASSERT_OK(reader);
      expect_holds(reader.value(), state);
      std::filesystem::remove(path());
    }
  }
}

TEST_F(ShardFileTest, OnlyWhatCompressesIsCompressedAndTheFileGetsShorter) {
  const std::vector<StateTensor> state = compressible_state();
  const std::uint64_t plain_bytes = write(state, {.compression = Compression::none}).bytes;
  EXPECT_EQ(std::filesystem::file_size(path()), plain_bytes);
  std::filesystem::remove(path());
  const ShardFile shard = write(state, {.compression = Compression::always});
  EXPECT_EQ(std::filesystem::file_size(path()), shard.bytes);
  EXPECT_LT(static_cast<double>(shard.bytes), 0.8 * static_cast<double>(plain_bytes));
  Result<ShardReader> reader = open(shard);
  HF_ASSERT_OK(reader);
  for (const IndexedPiece& piece : reader.value().pieces()) {
    for (const StoredChunk& chunk : piece.chunks) {
      EXPECT_EQ(chunk.codec == ChunkCodec::planes, piece.spec.tensor != "norm.weight");  // of 14 bytes
      EXPECT_EQ(chunk.offset_bytes % 4096, 0u);
    }
  }
}

// Memory at multiples of 4 KiB is written from where it is, between pieces that are copied.
TEST_F(ShardFileTest, AlignedMemoryIsWrittenFromWhereItIs) {
  std::vector<StateTensor> state;
  for (std::uint64_t i = 0; i < 6; ++i) {
    const std::uint64_t elements = i % 2 == 0 ? 9 * shard_format::chunk_bytes / 4 + 1024 * i : 333 * i;
    state.push_back(make_tensor(fmt::format("t{}", i), "weight", DType::fp32, {elements}, i));
  }
  std::vector<AlignedBuffer> memory;
  std::vector<StatePiece> pieces = pieces_of(state, 0, 1);
  for (StatePiece& piece : pieces) {
    const std::span<std::byte> bytes = memory.emplace_back(piece.bytes.size() + 4096).bytes();
    std::ranges::copy(piece.bytes, bytes.begin());
    piece.bytes = bytes.first(piece.bytes.size());
  }
  for (const Compression compression : {Compression::none, Compression::automatic, Compression::always}) {
    FaultyEnv env(posix_env());
    const Result<ShardFile> shard = write_shard_file(env, directory.path(), "shard-00000.hfs", step, run_id,
                                                     pieces, {}, {.compression = compression});
    HF_ASSERT_OK(shard);
    Result<ShardReader> reader = open(shard.value());
    HF_ASSERT_OK(reader);
    expect_holds(reader.value(), state);
    if (compression == Compression::none) {
      EXPECT_EQ(env.count(Operation::write), 3 * 3u + 4u);  // 9 chunks are 4 + 4 + 1; and what is between
    }
    std::filesystem::remove(path());
  }
}

// Whoever copied the state took its checksums: what happens to the copy before it is written is found.
TEST_F(ShardFileTest, ChecksumsThatAreThereAreUsed) {
  const std::vector<StateTensor> state = {
      make_tensor("t", "weight", DType::fp32, {5 * shard_format::chunk_bytes / 8 + 100}, 1)};
  for (const Compression compression : {Compression::none, Compression::always}) {
    std::vector<StatePiece> pieces = pieces_of(state, 0, 1);
    std::vector<std::byte> copy(pieces[0].bytes.begin(), pieces[0].bytes.end());
    std::vector<std::uint32_t> checksums;
    for (std::size_t begin = 0; begin < copy.size(); begin += shard_format::chunk_bytes)
      checksums.push_back(crc32c(std::span(copy).subspan(
          begin, std::min<std::size_t>(shard_format::chunk_bytes, copy.size() - begin))));
    pieces[0].bytes = copy;
    pieces[0].chunk_crc32c = checksums;
    for (const bool changed : {false, true}) {
      if (changed) copy[shard_format::chunk_bytes + 7] ^= std::byte{1};
      const Result<ShardFile> shard = write_shard_file(posix_env(), directory.path(), "shard-00000.hfs", step,
                                                       run_id, pieces, {}, {.compression = compression});
      HF_ASSERT_OK(shard);
      const Result<ShardReader> reader = open(shard.value());
      HF_ASSERT_OK(reader);
      ChunkScratch scratch;
      for (std::size_t chunk = 0; chunk < checksums.size(); ++chunk)
        EXPECT_EQ(reader.value().read_chunk(0, chunk, scratch).ok(), !changed || chunk != 1) << chunk;
      std::filesystem::remove(path());
    }
  }
}

TEST_F(ShardFileTest, ThePaceIsAskedAfterEveryChunk) {
  const std::vector<StateTensor> state = mixed_state(1);
  std::uint64_t bytes = 0, calls = 0;
  write(state, {.pace = [&](std::uint64_t chunk) {
          bytes += chunk;
          ++calls;
        }});
  std::uint64_t expected = 0;
  for (const StateTensor& tensor : state) expected += tensor.bytes.size();
  EXPECT_EQ(bytes, expected);
  EXPECT_EQ(calls, state.size() + 2);  // the last tensor has three chunks
}

TEST_F(ShardFileTest, BytesAreWhereTheFormatSays) {
  const std::vector<StateTensor> state = tiny_state(1);
  const ShardFile shard = write(state);
  const std::string file = read_file(path());
  ASSERT_EQ(file.size(), shard.bytes);
  ASSERT_EQ(file.size(), 16384u);
  EXPECT_EQ(file.substr(0, 8), std::string("HFSHARD\0", 8));
  EXPECT_EQ(file[8], 2);
  EXPECT_EQ(std::memcmp(file.data() + 16, &step, 8), 0);
  EXPECT_EQ(std::memcmp(file.data() + 4096, state[0].bytes.data(), state[0].bytes.size()), 0);
  EXPECT_EQ(std::memcmp(file.data() + 8192, state[1].bytes.data(), state[1].bytes.size()), 0);
  const std::uint64_t index_offset = 12288;
  EXPECT_EQ(std::memcmp(file.data() + file.size() - 64, &index_offset, 8), 0);
  EXPECT_EQ(file.substr(file.size() - 16, 8), std::string("HFSHEND\0", 8));
  // Record, one extent, names and padding, one chunk.
  const std::uint64_t index_bytes = 2 * (48 + 8 + 24 + 48);
  EXPECT_EQ(std::memcmp(file.data() + file.size() - 56, &index_bytes, 8), 0);
  const std::uint32_t checksum = crc32c(state[0].bytes);
  EXPECT_EQ(std::memcmp(file.data() + 12288 + 48 + 8 + 24 + 24, &checksum, 4), 0);
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
    HF_ASSERT_OK(open(shard->value()));
  }
}

TEST_F(ShardFileTest, DamagedChunkIsNamedAndOthersStillRead) {
  const std::vector<StateTensor> state = compressible_state();
  for (const Compression compression : {Compression::none, Compression::always}) {
    const ShardFile shard = write(state, {.compression = compression});
    Result<ShardReader> reader = open(shard);
    HF_ASSERT_OK(reader);
    const std::size_t last = state.size() - 1;
    const StoredChunk chunk = reader.value().pieces()[last].chunks[1];
    flip_bit(path(), chunk.offset_bytes + 12345, 3);
    ChunkScratch scratch;
    HF_ASSERT_OK(reader.value().read_chunk(last, 0, scratch));
    HF_ASSERT_OK(reader.value().read_chunk(last, 2, scratch));
    const auto read = reader.value().read_chunk(last, 1, scratch);
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ExitCode::checkpoint);
    EXPECT_THAT(read.error().message, HasSubstr(path()));
    EXPECT_THAT(read.error().message, HasSubstr("'head.bias' (moment2)"));
    EXPECT_THAT(read.error().message, HasSubstr(fmt::format("at offset {}", chunk.offset_bytes)));
    std::filesystem::remove(path());
  }
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
  for (std::size_t length = 0; length < file.size(); length += length < 12288 ? 61 : 7) {
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
  EXPECT_EQ(failures, 6u);  // create, reserve, queue, the one write, sync, directory
}

}  // namespace
}  // namespace holdfast::test
