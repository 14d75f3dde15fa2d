// 128-bit content digests (XXH3-128): equal lines of `holdfast digest` mean equal bits. Not cryptographic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace holdfast::core {

struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const Digest&) const = default;
  // Adds modulo 2^128 in two independent halves: an order-free combination of digests that already contain
  // their position.
  Digest& operator+=(const Digest& other);
};

std::string to_hex(const Digest& digest);  // 32 lower-case digits
// A digest's digits without an allocation, for the training loop.
struct HexText {
  std::array<char, 32> digits;
  std::string_view view() const { return {digits.data(), digits.size()}; }
};
HexText hex_text(const Digest& digest);
bool from_hex(std::string_view text, Digest& digest);

Digest digest_of(std::span<const std::byte> bytes, std::uint64_t seed = 0);
inline Digest digest_of(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text.data(), text.size())));
}

// Computes a digest of content that is not contiguous in memory.
class DigestStream {
 public:
  DigestStream();
  ~DigestStream();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  void add(std::uint64_t value);  // little-endian
  Digest finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the next link of a running digest: H(previous, value). Used for the data digest and the loss digest
// of a run.
Digest chain(const Digest& previous, const Digest& value);

}  // namespace holdfast::core
