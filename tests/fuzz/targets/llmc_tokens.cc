// A token shard of llm.c.
#include <array>
#include <cstring>

#include "tests/fuzz/targets/token_input.h"

namespace holdfast::fuzz {
namespace {

bool run_llmc_tokens(Input input) {
  FuzzEnv env;
  env.put("/train.bin", input);
  return read_tokens(env, "/train.bin", "llmc");
}

template <typename Token>
std::vector<std::byte> shard_of(std::int32_t magic, std::int32_t version, const std::vector<Token>& tokens) {
  const std::array<std::int32_t, 256> header = {magic, version, static_cast<std::int32_t>(tokens.size())};
  std::vector<std::byte> bytes(sizeof(header) + tokens.size() * sizeof(Token));
  std::memcpy(bytes.data(), header.data(), sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), tokens.data(), tokens.size() * sizeof(Token));
  return bytes;
}

std::vector<Seed> llmc_tokens_seeds() {
  return {{"gpt2", shard_of<std::uint16_t>(20240520, 1, {50256, 1, 2, 3, 50256, 40000, 7, 8})},
          {"llama3", shard_of<std::uint32_t>(20240801, 7, {128000, 5, 127999, 128000, 9})}};
}

}  // namespace

extern const Target llmc_tokens_target;
const Target llmc_tokens_target{.name = "llmc_tokens",
                                .run = run_llmc_tokens,
                                .seeds = llmc_tokens_seeds,
                                .memory_per_byte = token_memory_per_byte,
                                .memory_beside = token_memory_beside};

}  // namespace holdfast::fuzz
