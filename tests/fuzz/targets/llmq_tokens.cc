// A token shard of llmq.
#include <array>
#include <cstring>

#include "tests/fuzz/targets/token_input.h"

namespace holdfast::fuzz {
namespace {

bool run_llmq_tokens(Input input) {
  FuzzEnv env;
  env.put("/train.bin", input);
  return read_tokens(env, "/train.bin", "llmq");
}

std::vector<std::byte> shard_of(std::int32_t version, const std::vector<std::int32_t>& tokens,
                                const std::vector<std::byte>& mask) {
  const std::array<std::int32_t, 256> header = {
      0x2e4e4942, 0x0a4b4f54,          version, 4, static_cast<std::int32_t>(tokens.size()),
      1000,       mask.empty() ? 0 : 1};
  std::vector<std::byte> bytes(sizeof(header) + tokens.size() * 4);
  std::memcpy(bytes.data(), header.data(), sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), tokens.data(), tokens.size() * 4);
  bytes.insert(bytes.end(), mask.begin(), mask.end());
  return bytes;
}

std::vector<Seed> llmq_tokens_seeds() {
  return {{"version-1", shard_of(1, {1, 2, 3, 2000}, {})},
          {"masked", shard_of(2, {1, 999, 3, 4, 5, 6, 7, 8, 9}, {std::byte{0x5a}, std::byte{1}})}};
}

}  // namespace

extern const Target llmq_tokens_target;
const Target llmq_tokens_target{.name = "llmq_tokens",
                                .run = run_llmq_tokens,
                                .seeds = llmq_tokens_seeds,
                                .memory_per_byte = token_memory_per_byte,
                                .memory_beside = token_memory_beside};

}  // namespace holdfast::fuzz
