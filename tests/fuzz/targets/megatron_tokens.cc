// The index of a Megatron dataset, behind two bytes that say how long its file of tokens is.
#include <cstring>

#include "tests/fuzz/targets/token_input.h"

namespace holdfast::fuzz {
namespace {

bool run_megatron_tokens(Input input) {
  std::uint16_t data_bytes = 0;
  if (input.size() < sizeof(data_bytes)) return false;
  std::memcpy(&data_bytes, input.data(), sizeof(data_bytes));
  std::vector<std::byte> data(std::min<std::size_t>(data_bytes, input.size()));
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i % 8 == 0 ? i * 7 : 0);
  FuzzEnv env;
  env.put("/train.bin", data);
  env.put("/train.idx", input.subspan(sizeof(data_bytes)));
  return read_tokens(env, "/train", "megatron");
}

std::vector<std::byte> index_of(std::uint8_t type, std::uint64_t width,
                                const std::vector<std::int32_t>& lengths,
                                const std::vector<std::int64_t>& documents, bool with_modes) {
  std::vector<std::byte> bytes;
  const auto put = [&](const auto& value) {
    const auto part = std::as_bytes(std::span(&value, 1));
    bytes.insert(bytes.end(), part.begin(), part.end());
  };
  std::vector<std::int64_t> offsets;
  std::int64_t end = 0;
  for (const std::int32_t length : lengths) {
    offsets.push_back(end);
    end += length * static_cast<std::int64_t>(width);
  }
  put(static_cast<std::uint16_t>(end));
  const auto magic = bytes_of_text(std::string_view("MMIDIDX\0\0", 9));
  bytes.insert(bytes.end(), magic.begin(), magic.end());
  put(std::uint64_t{1});
  put(type);
  put(std::uint64_t{lengths.size()});
  put(std::uint64_t{documents.size()});
  for (const std::int32_t length : lengths) put(length);
  for (const std::int64_t offset : offsets) put(offset);
  for (const std::int64_t document : documents) put(document);
  if (with_modes) bytes.resize(bytes.size() + lengths.size());
  return bytes;
}

std::vector<Seed> megatron_tokens_seeds() {
  return {{"u16", index_of(8, 2, {3, 0, 5, 1}, {0, 1, 2, 4}, false)},
          {"i64", index_of(5, 8, {1, 2}, {0, 2}, true)},
          {"u8", index_of(1, 1, {9, 9, 9}, {0, 1, 2, 3}, false)}};
}

}  // namespace

extern const Target megatron_tokens_target;
const Target megatron_tokens_target{.name = "megatron_tokens",
                                    .run = run_megatron_tokens,
                                    .seeds = megatron_tokens_seeds,
                                    .memory_per_byte = token_memory_per_byte,
                                    .memory_beside = token_memory_beside};

}  // namespace holdfast::fuzz
