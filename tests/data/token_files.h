// Files of tokens for the data tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/data/loader.h"

namespace holdfast::test {

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

// An llmq shard; `mask`: whether each token counts as a target, empty = no mask.
inline std::string llmq_bytes(const std::vector<std::int32_t>& tokens, std::int32_t version = 2,
                              const std::vector<bool>& mask = {}, std::int32_t vocabulary = 100'000) {
  std::string bytes(1024, '*');  // what the fields of a version do not fill
  std::vector<std::int32_t> fields = {version, 4, static_cast<std::int32_t>(tokens.size())};
  if (version == 2) fields.insert(fields.end(), {vocabulary, mask.empty() ? 0 : 1});
  std::memcpy(bytes.data(), "BIN.TOK\n", 8);
  std::memcpy(bytes.data() + 8, fields.data(), fields.size() * 4);
  bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4);
  std::string bits((mask.size() + 7) / 8, '\0');
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (mask[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << i % 8);
  }
  return bytes + bits;
}

// The index of a Megatron dataset, field by field, so that a test can damage any.
struct MegatronIndex {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t type = 8;  // u16
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> offsets;    // in bytes
  std::vector<std::int64_t> documents;  // first sequence of each, then the number of sequences
  std::string modes;

  std::string bytes() const {
    std::string bytes = magic;
    const auto put = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
    put(version);
    put(type);
    put(std::uint64_t{lengths.size()});
    put(std::uint64_t{documents.size()});
    for (const std::int32_t length : lengths) put(length);
    for (const std::int64_t offset : offsets) put(offset);
    for (const std::int64_t document : documents) put(document);
    return bytes + modes;
  }
};

// An index of sequences of these lengths, each a document of its own.
inline MegatronIndex megatron_index(std::uint8_t type, std::int64_t width,
                                    const std::vector<std::int32_t>& lengths) {
  MegatronIndex index{.type = type, .lengths = lengths, .offsets = {}, .documents = {0}, .modes = {}};
  std::int64_t offset = 0;
  for (const std::int32_t length : lengths) {
    index.offsets.push_back(offset);
    offset += length * width;
    index.documents.push_back(static_cast<std::int64_t>(index.offsets.size()));
  }
  return index;
}

template <typename Token>
std::string raw_bytes(const std::vector<Token>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token)};
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

}  // namespace holdfast::test
