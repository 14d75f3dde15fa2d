#include "runtime/core/digest.h"

#include <fmt/core.h>
#include <xxhash.h>

#include "runtime/core/check.h"

namespace holdfast::core {
namespace {

Digest to_digest(const XXH128_hash_t& hash) {
  return Digest{.high = hash.high64, .low = hash.low64};
}

void store_little_endian(std::uint64_t value, std::byte* target) {
  for (int i = 0; i < 8; ++i) target[i] = static_cast<std::byte>(value >> (8 * i));
}

// The value of a hexadecimal digit, or -1.
int hex_value(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return -1;
}

}  // namespace

Digest& Digest::operator+=(const Digest& other) {
  high += other.high;
  low += other.low;
  return *this;
}

HexText hex_text(const Digest& digest) {
  HexText text{};
  fmt::format_to(text.digits.data(), "{:016x}{:016x}", digest.high, digest.low);
  return text;
}

std::string to_hex(const Digest& digest) {
  return std::string(hex_text(digest).view());
}

bool from_hex(std::string_view text, Digest& digest) {
  if (text.size() != 32) return false;
  std::array<std::uint64_t, 2> halves{};
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int value = hex_value(text[i]);
    if (value < 0) return false;
    halves[i / 16] = (halves[i / 16] << 4) | static_cast<std::uint64_t>(value);
  }
  digest = Digest{.high = halves[0], .low = halves[1]};
  return true;
}

Digest digest_of(std::span<const std::byte> bytes, std::uint64_t seed) {
  return to_digest(XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed));
}

struct DigestStream::State {
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> hash;
};

DigestStream::DigestStream() : state_(std::make_unique<State>()) {
  state_->hash.reset(XXH3_createState());
  HF_CHECK(state_->hash != nullptr, "no memory for a digest state");
  HF_CHECK(XXH3_128bits_reset(state_->hash.get()) == XXH_OK);
}

DigestStream::~DigestStream() = default;

void DigestStream::add(std::span<const std::byte> bytes) {
  HF_CHECK(XXH3_128bits_update(state_->hash.get(), bytes.data(), bytes.size()) == XXH_OK);
}

void DigestStream::add(std::string_view text) {
  add(std::as_bytes(std::span(text.data(), text.size())));
}

void DigestStream::add(std::uint64_t value) {
  std::array<std::byte, 8> bytes{};
  store_little_endian(value, bytes.data());
  add(std::span<const std::byte>(bytes));
}

Digest DigestStream::finish() const {
  return to_digest(XXH3_128bits_digest(state_->hash.get()));
}

Digest chain(const Digest& previous, const Digest& value) {
  std::array<std::byte, 32> bytes{};
  store_little_endian(previous.high, bytes.data());
  store_little_endian(previous.low, bytes.data() + 8);
  store_little_endian(value.high, bytes.data() + 16);
  store_little_endian(value.low, bytes.data() + 24);
  return digest_of(std::span<const std::byte>(bytes));
}

}  // namespace holdfast::core
