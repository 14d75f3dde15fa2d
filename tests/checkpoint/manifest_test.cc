#include "checkpoint/manifest.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/core/crc32c.h"
#include "runtime/core/random.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

Manifest full_manifest() {
  Manifest manifest;
  manifest.run_id = "00112233445566778899aabbccddeeff";
  manifest.generation = 3;
  manifest.step = 18446744073709551615u;
  manifest.epoch = 12;
  manifest.identity = "a5";
  manifest.config = "# comment\n[run]\ndirectory = \"r\xc3\xa4ume \\\"x\\\"\"\n";
  manifest.values = {{"data_cursor", "123"}, {"loss_digest", ""}, {"with\nnewline", "tab\t"}};
  manifest.shards = {
      {.name = "shard-00000.hfs", .bytes = 1u << 31, .index_crc32c = 0xffffffffu, .piece_count = 7},
      {.name = "shard-00001.hfs", .bytes = 8192, .index_crc32c = 0, .piece_count = 0}};
  manifest.parent = {.generation = 2, .step = 77};
  ShardSpec tensor{
      .tensor = "up.weight", .kind = "moment1", .dtype = DType::bf16, .global_shape = {6, 5000}, .slices = 2};
  tensor.block_count = tensor.slice_blocks();
  manifest.tensors = {tensor};
  return manifest;
}

// The text with `from` replaced by `to` and a checksum line that fits again.
std::string forged(const Manifest& manifest, const std::string& from, const std::string& to) {
  std::string body = encode_manifest(manifest);
  body.resize(body.size() - 16);
  const std::size_t at = body.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  body.replace(at, from.size(), to);
  return body + fmt::format("crc32c {:08x}\n", crc32c(std::as_bytes(std::span(body.data(), body.size()))));
}

TEST(ManifestTest, EverythingComesBack) {
  const Manifest manifest = full_manifest();
  const Result<Manifest> decoded = decode_manifest(encode_manifest(manifest), "here");
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_EQ(decoded.value().run_id, manifest.run_id);
  EXPECT_EQ(decoded.value().generation, manifest.generation);
  EXPECT_EQ(decoded.value().step, manifest.step);
  EXPECT_EQ(decoded.value().epoch, manifest.epoch);
  EXPECT_EQ(decoded.value().identity, manifest.identity);
  EXPECT_EQ(decoded.value().config, manifest.config);
  EXPECT_EQ(decoded.value().values, manifest.values);
  ASSERT_EQ(decoded.value().shards.size(), 2u);
  EXPECT_EQ(decoded.value().shards[0].name, "shard-00000.hfs");
  EXPECT_EQ(decoded.value().shards[0].bytes, 1u << 31);
  EXPECT_EQ(decoded.value().shards[0].index_crc32c, 0xffffffffu);
  EXPECT_EQ(decoded.value().shards[0].piece_count, 7u);
  EXPECT_EQ(decoded.value().parent, manifest.parent);
  EXPECT_EQ(decoded.value().tensors, manifest.tensors);
  EXPECT_EQ(encode_manifest(decoded.value()), encode_manifest(manifest));
}

TEST(ManifestTest, ProgramsBeforeClaimsWroteNoEpoch) {
  Manifest manifest = full_manifest();
  manifest.epoch = 0;
  const std::string text = encode_manifest(manifest);
  EXPECT_EQ(text.find("epoch"), std::string::npos);
  EXPECT_EQ(decode_manifest(text, "here").value().epoch, 0u);
  const Result<Manifest> mistyped =
      decode_manifest(forged(full_manifest(), "\"epoch\": 12", "\"epoch\": -1"), "here");
  ASSERT_FALSE(mistyped.ok());
  EXPECT_THAT(mistyped.error().message, HasSubstr("'epoch'"));
}

// With a checksum that fits: a sentence or a manifest, never anything else.
TEST(ManifestTest, RandomMutationsWithAFittingChecksumDoNoHarm) {
  const RandomStream random(11, 3);
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t end) { return random.bits(draw++) % end; };
  std::string original = encode_manifest(full_manifest());
  original.resize(original.size() - 16);
  const std::string likely = "0123456789-.eE\"\\{}[]:, \nnulltrue\xff";
  for (int round = 0; round < 30'000; ++round) {
    std::string body = original;
    for (std::uint64_t changes = 1 + below(4); changes > 0; --changes) {
      const std::uint64_t at = 24 + below(body.size() - 24);  // behind the magic key
      if (below(4) == 0) {
        body.erase(at, 1 + below(20));
      } else if (below(3) == 0) {
        body.insert(at, 1 + below(3), likely[below(likely.size())]);
      } else {
        body[at] = likely[below(likely.size())];
      }
    }
    const Result<Manifest> decoded = decode_manifest(
        body + fmt::format("crc32c {:08x}\n", crc32c(std::as_bytes(std::span(body)))), "here");
    if (!decoded.ok()) {
      ASSERT_EQ(decoded.error().code, ExitCode::checkpoint);
    }
  }
}

TEST(ManifestTest, EveryTruncationIsRefusedByName) {
  const std::string text = encode_manifest(full_manifest());
  for (std::size_t length = 0; length < text.size(); ++length) {
    const Result<Manifest> decoded =
        decode_manifest(std::string_view(text).substr(0, length), "run/manifest.json");
    ASSERT_FALSE(decoded.ok()) << length;
    ASSERT_EQ(decoded.error().code, ExitCode::checkpoint);
    ASSERT_THAT(decoded.error().message, HasSubstr("run/manifest.json"));
  }
}

TEST(ManifestTest, EveryFlippedBitIsRefused) {
  std::string text = encode_manifest(full_manifest());
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    const char original = text[bit / 8];
    text[bit / 8] = static_cast<char>(original ^ (1 << (bit % 8)));
    ASSERT_FALSE(decode_manifest(text, "here").ok()) << "bit " << bit;
    text[bit / 8] = original;
  }
}

TEST(ManifestTest, AppendedTextIsRefused) {
  const std::string text = encode_manifest(full_manifest());
  for (const char* tail : {"\n", " ", "x", "crc32c 00000000\n"})
    EXPECT_FALSE(decode_manifest(text + tail, "here").ok());
  EXPECT_FALSE(decode_manifest(text + text, "here").ok());
}

TEST(ManifestTest, ForeignFilesAreNotCalledDamaged) {
  for (const char* text : {"", "{}", "[1, 2]\n", "{\"weight_map\": {}}",
                           "\x7f"
                           "ELF",
                           "crc32c 00000000\n"}) {
    const Result<Manifest> decoded = decode_manifest(text, "dir/manifest.json");
    ASSERT_FALSE(decoded.ok());
    EXPECT_THAT(decoded.error().message, HasSubstr("dir/manifest.json is not a Holdfast manifest"));
  }
}

TEST(ManifestTest, AnotherVersionIsNamed) {
  for (const int version : {1, 9}) {
    const Result<Manifest> decoded =
        decode_manifest(forged(full_manifest(), "\"holdfast_manifest\": 2,",
                               fmt::format("\"holdfast_manifest\": {},", version)),
                        "here");
    ASSERT_FALSE(decoded.ok());
    EXPECT_THAT(
        decoded.error().message,
        HasSubstr(fmt::format("here has manifest format version {}, this program reads version 2", version)));
  }
}

TEST(ManifestTest, MissingAndMistypedMembersAreNamed) {
  const Manifest manifest = full_manifest();
  const std::vector<std::array<std::string, 3>> forgeries = {
      {"\"run_id\"", "\"run\"", "'run_id'"},
      {"\"generation\": 3", "\"generation\": -3", "'generation'"},
      {"\"values\": {", "\"other\": {", "'values'"},
      {"\"bytes\": 8192", "\"bytes\": \"x\"", "'shards: bytes'"},
      {"\"piece_count\": 7", "\"piece_count\": 4294967296", "'shards: piece_count'"},
      {"\"123\"", "123", "'values: data_cursor'"},
      {"\"step\": 77", "\"stop\": 77", "'parent: step'"},
      {"\"bf16\"", "\"fp17\"", "'tensors: type'"},
      {"5000", "-5000", "'tensors: shape'"},
      {"\"slices\": 2", "\"slices\": 7", "'tensors: slices'"},
      {"\"slices\": 2", "\"slices\": 4000000000", "'tensors: slices'"}};
  for (const auto& [from, to, expected] : forgeries) {
    const Result<Manifest> decoded = decode_manifest(forged(manifest, from, to), "here");
    ASSERT_FALSE(decoded.ok()) << from;
    EXPECT_THAT(decoded.error().message, HasSubstr(expected));
  }
}

TEST(ManifestTest, ShardNamesStayInTheDirectory) {
  for (const char* name : {"../shard-00000.hfs", "/etc/passwd", "", ".."}) {
    const Result<Manifest> decoded =
        decode_manifest(forged(full_manifest(), "shard-00000.hfs", name), "here");
    ASSERT_FALSE(decoded.ok()) << name;
    EXPECT_THAT(decoded.error().message, HasSubstr("no name for a shard file"));
  }
}

// It gets to commands, and into names in shared memory.
TEST(ManifestTest, TheIdOfTheRunIsOne) {
  for (const char* id : {"", "run", "00112233445566778899aabbccddeef;", "00112233445566778899AABBCCDDEEFF"}) {
    const Result<Manifest> decoded =
        decode_manifest(forged(full_manifest(), "00112233445566778899aabbccddeeff", id), "here");
    ASSERT_FALSE(decoded.ok()) << id;
    EXPECT_THAT(decoded.error().message,
                HasSubstr(fmt::format("here names the run \"{}\", expected 32 digits", id)));
  }
}

TEST(ManifestTest, NamesHoldNothingThatATerminalObeys) {
  for (const char* text : {"shard-\\u001b[2J.hfs", "shard-\\u009b31m.hfs", "shard-\\n.hfs"}) {
    EXPECT_FALSE(decode_manifest(forged(full_manifest(), "shard-00000.hfs", text), "here").ok()) << text;
  }
}

TEST(ManifestTest, BytesThatAreNoUtf8AreReplaced) {
  Manifest manifest = full_manifest();
  manifest.values["path"] =
      "a\xff"
      "b";
  const Result<Manifest> decoded = decode_manifest(encode_manifest(manifest), "here");
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value().values.at("path"),
            "a\xef\xbf\xbd"
            "b");
}

}  // namespace
}  // namespace holdfast::test
