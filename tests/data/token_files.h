// Files of tokens for the data tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/data/loader.h"

namespace holdfast {

#define HF_ASSERT_OK(...)                                       \
  do {                                                          \
    const auto& hf_outcome = (__VA_ARGS__);                     \
    ASSERT_TRUE(hf_outcome.ok()) << hf_outcome.error().message; \
  } while (false)

inline std::string write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

// An llm.c shard; Token is std::uint16_t or std::uint32_t.
template <typename Token>
std::string llmc_bytes(const std::vector<Token>& tokens, std::int32_t magic, std::int32_t version,
                       std::int64_t claimed_tokens = -1) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(claimed_tokens < 0 ? static_cast<std::int64_t>(tokens.size())
                                                           : claimed_tokens);
  std::string bytes(1024 + tokens.size() * sizeof(Token), '\0');
  std::memcpy(bytes.data(), header.data(), 1024);
  if (!tokens.empty()) std::memcpy(bytes.data() + 1024, tokens.data(), tokens.size() * sizeof(Token));
  return bytes;
}
inline std::string llmc_v1(const std::vector<std::uint16_t>& tokens) {
  return llmc_bytes(tokens, 20240520, 1);
}
inline std::string llmc_v7(const std::vector<std::uint32_t>& tokens) {
  return llmc_bytes(tokens, 20240801, 7);
}

// Text without a period, so that every window of it is different.
inline std::string varied_text(std::size_t bytes, std::uint32_t seed = 1) {
  std::string text(bytes, ' ');
  std::uint32_t x = seed * 2654435761u;
  for (char& c : text) {
    x = x * 1664525u + 1013904223u;
    c = static_cast<char>(x >> 24);
  }
  return text;
}

}  // namespace holdfast
