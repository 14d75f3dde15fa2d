// The choice by table: disks and processors are numbers here.
#include "checkpoint/compression_choice.h"

#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

constexpr std::uint64_t chunk_bytes = std::uint64_t{1} << 20;

struct Machine {
  double write_ns_per_byte;  // of the disk
  double cost_ns_per_byte;   // of trying all four planes, per byte of the chunk
  double gain;               // of the chunk, all of it in the exponents
};

// So many of `chunks` chunks of weights were compressed.
int compressed_of(CompressionChoice& choice, const Machine& machine, int chunks) {
  int compressed = 0;
  for (int i = 0; i < chunks; ++i) {
    const PlaneSet tried = choice.planes_for("weight", DType::fp32);
    EncodedChunk encoded{.codec = ChunkCodec::raw, .stored_bytes = chunk_bytes};
    if ((tried & 8u) != 0 && machine.gain > 0) {
      ++compressed;
      encoded.codec = ChunkCodec::planes;
      encoded.compressed = 8;
      encoded.saved_bytes = static_cast<std::uint64_t>(machine.gain * chunk_bytes);
      encoded.stored_bytes -= encoded.saved_bytes;
    }
    const double share = tried == 8u ? 0.25 : 1;
    if (tried != 0) {
      choice.saw_chunk("weight", DType::fp32, chunk_bytes, tried, encoded,
                       static_cast<std::int64_t>(machine.cost_ns_per_byte * share * chunk_bytes));
    }
    choice.saw_write(4 * chunk_bytes, static_cast<std::int64_t>(4 * machine.write_ns_per_byte * chunk_bytes));
  }
  return compressed;
}

TEST(CompressionChoiceTest, PaysOnASlowDiskAndNotOnAFastOne) {
  CompressionChoice slow(Compression::automatic), fast(Compression::automatic);
  // 100 MB/s and 3 GB/s; all planes at 600 MB/s; a fifth is gained.
  EXPECT_EQ(compressed_of(slow, {.write_ns_per_byte = 10, .cost_ns_per_byte = 1.6, .gain = 0.2}, 1000), 999);
  EXPECT_LT(compressed_of(fast, {.write_ns_per_byte = 0.33, .cost_ns_per_byte = 1.6, .gain = 0.2}, 1000), 10);
}

TEST(CompressionChoiceTest, NoiseIsTriedEverMoreRarely) {
  CompressionChoice choice(Compression::automatic);
  int tried = 0;
  for (int i = 0; i < 10000; ++i) {
    choice.saw_write(chunk_bytes, 10 * static_cast<std::int64_t>(chunk_bytes));
    const PlaneSet planes = choice.planes_for("moment1", DType::fp32);
    if (planes == 0) continue;
    ++tried;
    choice.saw_chunk("moment1", DType::fp32, chunk_bytes, planes,
                     {.codec = ChunkCodec::raw, .stored_bytes = chunk_bytes}, 1'600'000);
  }
  EXPECT_GE(tried, 5);
  EXPECT_LE(tried, 20);
}

TEST(CompressionChoiceTest, FollowsADiskThatBecomesSlow) {
  CompressionChoice choice(Compression::automatic);
  compressed_of(choice, {.write_ns_per_byte = 0.33, .cost_ns_per_byte = 1.6, .gain = 0.2}, 100);
  EXPECT_GT(compressed_of(choice, {.write_ns_per_byte = 10, .cost_ns_per_byte = 1.6, .gain = 0.2}, 1000),
            900);
}

TEST(CompressionChoiceTest, KindsAndTypesAreJudgedByThemselves) {
  CompressionChoice choice(Compression::automatic);
  compressed_of(choice, {.write_ns_per_byte = 10, .cost_ns_per_byte = 1.6, .gain = 0.2}, 50);
  EXPECT_EQ(choice.planes_for("weight", DType::fp32), 8u);
  EXPECT_EQ(choice.planes_for("moment2", DType::fp32), all_planes(4));  // never seen: tried
  EXPECT_EQ(choice.planes_for("weight", DType::bf16), all_planes(2));
}

TEST(CompressionChoiceTest, OrdersAreOrders) {
  CompressionChoice none(Compression::none), always(Compression::always);
  EXPECT_EQ(compressed_of(none, {.write_ns_per_byte = 1000, .cost_ns_per_byte = 0.1, .gain = 0.5}, 100), 0);
  EXPECT_EQ(compressed_of(always, {.write_ns_per_byte = 0.01, .cost_ns_per_byte = 9, .gain = 0.1}, 100), 100);
  EXPECT_EQ(compression_of("automatic"), Compression::automatic);
  EXPECT_EQ(compression_of("none"), Compression::none);
  EXPECT_EQ(compression_of("always"), Compression::always);
  EXPECT_EQ(compression_of("Always"), std::nullopt);
}

}  // namespace
}  // namespace holdfast::test
