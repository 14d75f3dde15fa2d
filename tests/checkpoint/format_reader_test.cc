// The writer writes what FORMAT.md says: tools/bench_peers/checkpoint.py, which shares nothing with
// this program, reads it. Every element type raw and in planes, slices, pieces of several ranks, and base
// files of a delta.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <tuple>

#include "tests/checkpoint/saved_state.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

struct Reading {
  int exit_status = 0;
  std::string text;  // of both streams
};

Reading read_with_python(const std::string& checkpoint) {
  const std::string command =
      fmt::format("PYTHONDONTWRITEBYTECODE=1 python3 {}/tools/bench_peers/checkpoint.py '{}' 2>&1",
                  HF_SOURCE_DIR, checkpoint);
  std::FILE* const pipe = popen(command.c_str(), "r");
  Reading reading;
  if (pipe == nullptr) return {.exit_status = -1, .text = "no process could be started"};
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    reading.text.append(buffer.data(), got);
  reading.exit_status = pclose(pipe);
  return reading;
}

// The lines that the reader prints of a checkpoint with this state.
std::string lines_of(const std::vector<StateTensor>& state) {
  std::map<std::tuple<std::string, std::string, std::uint32_t>, std::string> lines;
  for (const StateTensor& tensor : state) {
    const ShardSpec& spec = tensor.spec;
    lines[{spec.tensor, spec.kind, spec.slice}] =
        fmt::format("{} {} {} {} {} {} {}\n", spec.kind, spec.tensor, spec.slice, spec.slices,
                    name_of(spec.dtype), fmt::join(spec.global_shape, ","), to_hex(digest_of(tensor.bytes)));
  }
  std::string text;
  for (const auto& [key, line] : lines) text += line;
  return text;
}

// Numbers of like size, as weights are: their upper bytes compress.
template <typename Number>
void fill_with(StateTensor& tensor, const std::function<Number(float)>& number_of) {
  const RandomStream random(5, 8);
  for (std::size_t i = 0; i < tensor.bytes.size() / sizeof(Number); ++i) {
    const Number number = number_of(random.normal(i) * 0.02F);
    std::memcpy(tensor.bytes.data() + i * sizeof(Number), &number, sizeof(Number));
  }
}

std::vector<StateTensor> state_that_compresses() {
  std::vector<StateTensor> state;
  state.push_back(make_tensor("a.weight", "weight", DType::fp32, {300, 1000}, 1));  // two chunks
  fill_with<float>(state.back(), [](float value) { return value; });
  state.push_back(make_tensor("a.weight", "moment2", DType::fp64, {5, 3001}, 2));
  fill_with<double>(state.back(), [](float value) { return double{value} * value; });
  state.push_back(make_tensor("b.weight", "weight", DType::bf16, {30'000}, 3));
  fill_with<BFloat16>(state.back(), [](float value) { return to_bfloat16(value); });
  for (std::uint32_t slice = 0; slice < 2; ++slice) {
    state.push_back(make_tensor("c.counts", "weight", DType::int32, {20'000}, 4, slice, 2));
    fill_with<std::int32_t>(state.back(),
                            [](float value) { return static_cast<std::int32_t>(value * 1e4F); });
  }
  return state;
}

std::vector<StateTensor> state_of_noise() {
  std::vector<StateTensor> state = state_that_compresses();
  std::uint64_t seed = 100;
  for (StateTensor& tensor : state)
    tensor = make_tensor(tensor.spec.tensor, tensor.spec.kind, tensor.spec.dtype, tensor.spec.global_shape,
                         ++seed, tensor.spec.slice, tensor.spec.slices);
  return state;
}

// Codecs of the chunks by element type, and how many are in base files.
struct Chunks {
  std::map<DType, std::map<ChunkCodec, int>> codecs;
  int in_base_files = 0;
};

Chunks chunks_of(const std::string& directory) {
  Chunks chunks;
  const Result<Checkpoint> checkpoint = Checkpoint::open(posix_env(), directory);
  EXPECT_TRUE(checkpoint.ok());
  if (!checkpoint.ok()) return chunks;
  for (const ShardReader& shard : checkpoint->shards()) {
    for (const IndexedPiece& piece : shard.pieces()) {
      for (const StoredChunk& chunk : piece.chunks) {
        ++chunks.codecs[piece.spec.dtype][chunk.codec];
        chunks.in_base_files += chunk.file == 0 ? 0 : 1;
      }
    }
  }
  return chunks;
}

class FormatReaderTest : public testing::Test {
 protected:
  // Returns the checkpoint's directory.
  std::string saved(std::uint64_t step, const std::vector<StateTensor>& state, std::uint64_t ranks,
                    ShardWriteOptions options) {
    if (options.is_constant) options.parent_directory = store_.newest_directory();
    const Result<void> outcome =
        save_checkpoint(posix_env(), store_, state, manifest_of_step(step), ranks, options);
    EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    return store_.checkpoint_directory(step);
  }

  TemporaryDirectory directory_;
  FaultPoints faults_;
  CheckpointStore store_{posix_env(), faults_, directory_ / "run"};
};

void expect_reads(const std::string& checkpoint, const std::vector<StateTensor>& state) {
  const Reading reading = read_with_python(checkpoint);
  EXPECT_EQ(reading.exit_status, 0);
  EXPECT_EQ(reading.text, lines_of(state));
}

TEST_F(FormatReaderTest, ReadsEveryTypeAsItIs) {
  const std::vector<StateTensor> state = state_of_noise();
  for (const std::uint64_t ranks : {1u, 3u}) {
    const std::string checkpoint = saved(ranks, state, ranks, {.compression = Compression::always});
    const Chunks chunks = chunks_of(checkpoint);
    EXPECT_EQ(chunks.codecs.size(), 4u);
    for (const auto& [dtype, codecs] : chunks.codecs)
      EXPECT_FALSE(codecs.contains(ChunkCodec::planes)) << name_of(dtype);
    expect_reads(checkpoint, state);
  }
}

TEST_F(FormatReaderTest, ReadsEveryTypeInPlanes) {
  const std::vector<StateTensor> state = state_that_compresses();
  for (const std::uint64_t ranks : {1u, 2u}) {
    const std::string checkpoint = saved(ranks, state, ranks, {.compression = Compression::always});
    const Chunks chunks = chunks_of(checkpoint);
    EXPECT_EQ(chunks.codecs.size(), 4u);
    for (const auto& [dtype, codecs] : chunks.codecs)
      EXPECT_TRUE(codecs.contains(ChunkCodec::planes)) << name_of(dtype);
    expect_reads(checkpoint, state);
  }
}

TEST_F(FormatReaderTest, ReadsADeltaFromItsBaseFiles) {
  std::vector<StateTensor> state = state_that_compresses();
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const std::string checkpoint =
        saved(step, state, 2,
              {.compression = Compression::always, .is_constant = [](const ShardSpec&) { return true; }});
    EXPECT_GT(chunks_of(checkpoint).in_base_files, 0);
    expect_reads(checkpoint, state);
    state[step].bytes[0] ^= std::byte{0x3f};
  }
}

// One bit in each of the parts that a file has.
TEST_F(FormatReaderTest, FindsDamage) {
  const std::string checkpoint = saved(1, tiny_state(1), 1, {});
  const std::string shard = checkpoint + "/shard-00000.hfs";
  const std::uint64_t bytes = read_file(shard).size();
  const std::uint64_t header = 20, chunk = 4096 + 5, after_chunk = 2 * 4096 - 1, index = bytes - 4096 + 50,
                      before_trailer = bytes - 65, trailer = bytes - 30;
  for (const std::uint64_t offset : {header, chunk, after_chunk, index, before_trailer, trailer}) {
    flip_bit(shard, offset, 3);
    const Reading reading = read_with_python(checkpoint);
    EXPECT_NE(reading.exit_status, 0) << offset << ": " << reading.text;
    EXPECT_THAT(reading.text, testing::HasSubstr("shard-00000.hfs")) << offset;
    EXPECT_THAT(reading.text, testing::Not(testing::HasSubstr("Traceback"))) << offset;
    flip_bit(shard, offset, 3);
  }
  flip_bit(checkpoint + "/manifest.json", 100, 1);
  EXPECT_THAT(read_with_python(checkpoint).text, testing::HasSubstr("manifest.json does not have"));
}

}  // namespace
}  // namespace holdfast::test
