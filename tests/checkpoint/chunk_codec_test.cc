#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "checkpoint/chunk_codec.h"
#include "runtime/core/random.h"

namespace holdfast::test {
namespace {

constexpr std::uint64_t codec_chunk_bytes = std::uint64_t{1} << 20;

std::vector<std::byte> noise(std::uint64_t bytes, std::uint64_t seed) {
  const RandomStream random(seed, 1);
  std::vector<std::byte> values(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(random.bits(i));
  return values;
}

// As weights are: signs and mantissas of noise, exponents near each other.
std::vector<std::byte> weights(std::uint64_t count, std::uint64_t seed) {
  const RandomStream random(seed, 2);
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const double u = static_cast<double>(random.bits(2 * i) >> 11) * 0x1p-53 + 0x1p-60;
    const double v = static_cast<double>(random.bits(2 * i + 1) >> 11) * 0x1p-53;
    values[i] = static_cast<float>(0.02 * std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
  }
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Bytes `b` of every element of `element_bytes` repeat, the others are noise: what compresses, compresses
// there.
std::vector<std::byte> patterned(std::uint64_t bytes, std::uint64_t element_bytes, std::uint64_t seed) {
  std::vector<std::byte> values = noise(bytes, seed);
  for (std::uint64_t i = 0; i < bytes; i += element_bytes) {
    for (std::uint64_t b = 0; b < element_bytes; ++b) {
      if ((seed >> b & 1) != 0) values[i + b] = static_cast<std::byte>(i / 4096);
    }
  }
  return values;
}

struct Stored {
  EncodedChunk encoded;
  std::vector<std::byte> bytes;
};

Stored encode(ChunkCoder& coder, const std::vector<std::byte>& raw, std::uint64_t element_bytes,
              PlaneSet tried) {
  Stored stored{.encoded = {}, .bytes = std::vector<std::byte>(raw.size())};
  stored.encoded = coder.encode(raw, element_bytes, tried, stored.bytes);
  stored.bytes.resize(stored.encoded.stored_bytes);
  return stored;
}

void expect_comes_back(ChunkCoder& coder, const Stored& stored, const std::vector<std::byte>& raw,
                       std::uint64_t element_bytes) {
  std::vector<std::byte> back(raw.size(), std::byte{0xa5});
  ASSERT_TRUE(coder.decode(stored.encoded.codec, stored.bytes, element_bytes, back));
  ASSERT_TRUE(back == raw);
}

TEST(ChunkCodecTest, EveryLengthAndPatternComesBack) {
  ChunkCoder coder;
  for (const std::uint64_t element_bytes : {2u, 4u, 8u}) {
    for (const std::uint64_t count : {1u, 2u, 15u, 16u, 1023u, 1024u, 1025u, 4096u, 33333u}) {
      for (std::uint64_t seed = 0; seed < 16; ++seed) {
        const std::vector<std::byte> raw = patterned(count * element_bytes, element_bytes, seed);
        for (const PlaneSet tried : {PlaneSet{0}, PlaneSet{1}, all_planes(element_bytes)}) {
          const Stored stored = encode(coder, raw, element_bytes, tried);
          ASSERT_LE(stored.encoded.stored_bytes, raw.size());
          expect_comes_back(coder, stored, raw, element_bytes);
          if (tried == 0) {
            EXPECT_EQ(stored.encoded.codec, ChunkCodec::raw);
          }
        }
      }
    }
  }
}

// Every exponent, sign and the payloads of NaNs: bits are bits.
TEST(ChunkCodecTest, EveryKindOfNumberKeepsItsBits) {
  ChunkCoder coder;
  std::vector<std::byte> raw(codec_chunk_bytes);
  for (std::uint32_t i = 0; i < codec_chunk_bytes / 4; ++i) {
    const std::uint32_t bits = (i % 512) << 23 | (i * 2654435761u & 0x3u);
    std::memcpy(raw.data() + 4 * i, &bits, 4);
  }
  for (const std::uint64_t element_bytes : {2u, 4u, 8u}) {
    const Stored stored = encode(coder, raw, element_bytes, all_planes(element_bytes));
    EXPECT_EQ(stored.encoded.codec, ChunkCodec::planes);
    expect_comes_back(coder, stored, raw, element_bytes);
  }
}

TEST(ChunkCodecTest, WhatTrainedStateGains) {
  ChunkCoder coder;
  const std::vector<std::byte> raw = weights(codec_chunk_bytes / 4, 3);
  const Stored stored = encode(coder, raw, 4, all_planes(4));
  EXPECT_EQ(stored.encoded.codec, ChunkCodec::planes);
  EXPECT_EQ(stored.encoded.compressed, PlaneSet{8});  // the exponents alone
  EXPECT_LT(static_cast<double>(stored.encoded.stored_bytes), 0.87 * codec_chunk_bytes);
  expect_comes_back(coder, stored, raw, 4);
  // Only that plane tried: the same bytes.
  EXPECT_EQ(encode(coder, raw, 4, 8).bytes, stored.bytes);

  const std::vector<std::byte> zeros(codec_chunk_bytes);
  EXPECT_LT(encode(coder, zeros, 4, all_planes(4)).encoded.stored_bytes, 1024u);
}

TEST(ChunkCodecTest, NoiseIsStoredAsItIs) {
  ChunkCoder coder;
  const std::vector<std::byte> raw = noise(codec_chunk_bytes, 4);
  const Stored stored = encode(coder, raw, 4, all_planes(4));
  EXPECT_EQ(stored.encoded.codec, ChunkCodec::raw);
  EXPECT_EQ(stored.encoded.compressed, 0u);
  EXPECT_TRUE(stored.bytes == raw);
}

// The bytes that are stored are part of the format: the smallest planes chunk, by hand.
TEST(ChunkCodecTest, PlanesAreWhereTheFormatSays) {
  std::vector<std::byte> raw(8);
  const std::uint32_t first = 0x80000001u, second = 0x12345678u;
  std::memcpy(raw.data(), &first, 4);
  std::memcpy(raw.data() + 4, &second, 4);
  const std::uint32_t rotated = std::rotl(second, 1);
  std::vector<std::byte> stored(16 + 8);
  for (std::size_t plane = 0; plane < 4; ++plane) {
    stored[4 * plane] = std::byte{2};
    stored[16 + 2 * plane] = plane == 0 ? std::byte{3} : std::byte{0};  // 0x80000001 rotated is 3
    stored[16 + 2 * plane + 1] = static_cast<std::byte>(rotated >> (8 * plane));
  }
  ChunkCoder coder;
  std::vector<std::byte> back(8);
  ASSERT_TRUE(coder.decode(ChunkCodec::planes, stored, 4, back));
  EXPECT_EQ(back, raw);
}

// decode() trusts nobody: anything may come in, and only what has the right shape is said to be one. Run with
// AddressSanitizer, this is the test that nothing outside is touched.
TEST(ChunkCodecTest, ArbitraryBytesNeverReachOutside) {
  ChunkCoder coder;
  const RandomStream random(5, 5);
  std::uint64_t draw = 0;
  for (const std::uint64_t element_bytes : {2u, 4u, 8u}) {
    const std::vector<std::byte> raw = patterned(element_bytes * 8192, element_bytes, 0xaa);
    const Stored good = encode(coder, raw, element_bytes, all_planes(element_bytes));
    ASSERT_EQ(good.encoded.codec, ChunkCodec::planes);
    std::vector<std::byte> back(raw.size());
    for (int round = 0; round < 3000; ++round) {
      std::vector<std::byte> bad = good.bytes;
      const std::uint64_t changes = 1 + random.bits(draw++) % 4;
      for (std::uint64_t i = 0; i < changes; ++i) {
        // Half of the changes hit the table of lengths.
        const std::uint64_t reach = random.bits(draw++) % 2 == 0 ? 4 * element_bytes : bad.size();
        const std::uint64_t at = random.bits(draw++) % reach;
        bad[at] = static_cast<std::byte>(random.bits(draw++));
      }
      if (round % 3 == 0) bad.resize(random.bits(draw++) % (bad.size() + 1));
      static_cast<void>(coder.decode(ChunkCodec::planes, bad, element_bytes, back));
    }
    EXPECT_FALSE(coder.decode(ChunkCodec::raw, good.bytes, element_bytes, back));  // another length
    EXPECT_FALSE(coder.decode(static_cast<ChunkCodec>(7), good.bytes, element_bytes, back));
    for (std::size_t length = 0; length < good.bytes.size(); length += length < 100 ? 1 : 37) {
      ASSERT_FALSE(coder.decode(ChunkCodec::planes, std::span(good.bytes).first(length), element_bytes, back))
          << length;
    }
    expect_comes_back(coder, good, raw, element_bytes);  // it works on after all of that
  }
}

// The choice by table: disks and processors are numbers here.

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
