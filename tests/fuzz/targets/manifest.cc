// The manifest of a checkpoint, as it is and with a checksum that fits.
#include <fmt/core.h>

#include <array>

#include "checkpoint/manifest.h"
#include "runtime/core/crc32c.h"
#include "tests/fuzz/fuzz.h"

namespace holdfast::fuzz {
namespace {

bool read_manifest(const std::string& text) {
  const Result<Manifest> manifest = decode_manifest(text, "/manifest.json");
  if (!manifest.ok()) {
    require_sentence(manifest.error(), {ExitCode::checkpoint});
    return false;
  }
  const std::string written = encode_manifest(*manifest);
  const Result<Manifest> again = decode_manifest(written, "/again.json");
  if (!again.ok()) fail_run("what was written is refused: " + again.error().message);
  require(encode_manifest(*again) == written, "what was written reads as another manifest");
  return true;
}

// With the checksum line that belongs to what is before it.
std::string sealed_text(std::string_view text) {
  const std::size_t line = text.rfind("crc32c ");
  std::string body(text.substr(0, line));
  if (!body.ends_with('\n')) body += '\n';
  return fmt::format("{}crc32c {:08x}\n", body, crc32c(std::as_bytes(std::span(body))));
}

bool run_manifest(Input input) {
  const std::string text = text_of(input);
  const bool accepted = read_manifest(text);
  const bool accepted_sealed = read_manifest(sealed_text(text));
  require(accepted_sealed || !accepted, "the same text with its checksum is refused");
  return accepted;
}

std::vector<Seed> manifest_seeds() {
  Manifest manifest;
  manifest.run_id = "0123456789abcdef0123456789abcdef";
  manifest.generation = 1;
  manifest.step = 42;
  manifest.parent = {.generation = 0, .step = 40};
  manifest.identity = "00ff";
  manifest.config = "[model]\nlayers = 2\n";
  manifest.values = {{"cursor", "17"}, {"digest", "a\tb\xc3\xa9"}};
  manifest.tensors = {
      {.tensor = "w", .kind = "weight", .global_shape = {4, 6}, .slices = 2, .block_count = 1}};
  manifest.shards = {{.name = "shard-00000.hfs", .bytes = 12288, .index_crc32c = 7, .piece_count = 1}};
  Manifest least;
  least.run_id = manifest.run_id;
  return {{"whole", bytes_of_text(encode_manifest(manifest))},
          {"empty", bytes_of_text(encode_manifest(least))}};
}

constexpr std::array<std::string_view, 16> manifest_words = {
    "\"shape\":", "[",    "]",        "{",        "}",       ",",       "\"values\":{",
    "null",       "true", "\"bf16\"", "\"fp64\"", "\\u0000", "\\ud800", "18446744073709551615",
    "../",        "-0"};

}  // namespace

extern const Target manifest_target;
const Target manifest_target{.name = "manifest",
                             .run = run_manifest,
                             .seeds = manifest_seeds,
                             .memory_per_byte = 256,
                             .memory_beside = 64 << 10,
                             .words = manifest_words};

}  // namespace holdfast::fuzz
