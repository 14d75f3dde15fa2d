#include "runtime/core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace holdfast::core {
namespace {

constexpr std::uint32_t polynomial = 0x82f63b78u;  // reflected

using Table = std::array<std::uint32_t, 256>;

// tables[k][n]: the crc of byte n followed by k zero bytes (Intel's slicing-by-8).
constexpr std::array<Table, 8> make_slice_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t n = 0; n < 256; ++n) {
    std::uint32_t crc = n;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1u) != 0 ? (crc >> 1) ^ polynomial : crc >> 1;
    tables[0][n] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t n = 0; n < 256; ++n) {
      tables[k][n] = (tables[k - 1][n] >> 8) ^ tables[0][tables[k - 1][n] & 0xffu];
    }
  }
  return tables;
}
constexpr std::array<Table, 8> slice_tables = make_slice_tables();

std::uint32_t update_by_table(std::uint32_t crc, const std::byte* bytes, std::size_t count) {
  for (; count >= 8; count -= 8, bytes += 8) {
    std::uint64_t word = 0;
    for (unsigned i = 0; i < 8; ++i) word |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    word ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= slice_tables[7 - i][(word >> (8 * i)) & 0xffu];
  }
  for (; count > 0; --count, ++bytes) {
    crc = (crc >> 8) ^ slice_tables[0][(crc ^ std::to_integer<std::uint32_t>(*bytes)) & 0xffu];
  }
  return crc;
}

// Returns a(x) * b(x) modulo the polynomial, reflected: the top bit is x^0.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1u) != 0 ? (b >> 1) ^ polynomial : b >> 1;
  }
  return product;
}

#if defined(__x86_64__)

// The instruction has a latency of three and a throughput of one, so three streams are kept in flight and
// joined by shifting a crc over the bytes after it (multiplication by x^(8 length) modulo the polynomial).
// Source: M. Adler, crc32c.c.
constexpr std::size_t long_bytes = 8192;
constexpr std::size_t short_bytes = 256;

// Returns x^(8 * bytes); `bytes` is a power of two.
constexpr std::uint32_t zeros_operator(std::size_t bytes) {
  std::uint32_t power = 1u << 23;  // x^8
  for (; bytes > 1; bytes >>= 1) power = multiply(power, power);
  return power;
}

constexpr std::array<Table, 4> make_shift_tables(std::size_t bytes) {
  const std::uint32_t shift = zeros_operator(bytes);
  std::array<Table, 4> tables{};
  for (std::uint32_t k = 0; k < 4; ++k) {
    for (std::uint32_t n = 0; n < 256; ++n) tables[k][n] = multiply(shift, n << (8 * k));
  }
  return tables;
}
constexpr std::array<Table, 4> shift_long = make_shift_tables(long_bytes);
constexpr std::array<Table, 4> shift_short = make_shift_tables(short_bytes);

std::uint64_t shifted(const std::array<Table, 4>& tables, std::uint64_t crc) {
  return tables[0][crc & 0xffu] ^ tables[1][(crc >> 8) & 0xffu] ^ tables[2][(crc >> 16) & 0xffu] ^
         tables[3][(crc >> 24) & 0xffu];
}

std::uint64_t load_word(const std::byte* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// Consumes as many groups of three times `part` bytes as there are.
__attribute__((target("sse4.2"))) std::uint64_t update_three_ways(std::uint64_t crc, const std::byte*& bytes,
                                                                  std::size_t& count, std::size_t part,
                                                                  const std::array<Table, 4>& tables) {
  while (count >= 3 * part) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < part; i += 8) {
      crc = _mm_crc32_u64(crc, load_word(bytes + i));
      second = _mm_crc32_u64(second, load_word(bytes + part + i));
      third = _mm_crc32_u64(third, load_word(bytes + 2 * part + i));
    }
    crc = shifted(tables, crc) ^ second;
    crc = shifted(tables, crc) ^ third;
    bytes += 3 * part;
    count -= 3 * part;
  }
  return crc;
}

__attribute__((target("sse4.2"))) std::uint32_t update_by_instruction(std::uint32_t seed,
                                                                      const std::byte* bytes,
                                                                      std::size_t count) {
  std::uint64_t crc = update_three_ways(seed, bytes, count, long_bytes, shift_long);
  crc = update_three_ways(crc, bytes, count, short_bytes, shift_short);
  for (; count >= 8; count -= 8, bytes += 8) crc = _mm_crc32_u64(crc, load_word(bytes));
  std::uint32_t result = static_cast<std::uint32_t>(crc);
  for (; count > 0; --count, ++bytes) result = _mm_crc32_u8(result, std::to_integer<std::uint8_t>(*bytes));
  return result;
}

#endif

}  // namespace

std::uint32_t detail::crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t seed) {
  return ~update_by_table(~seed, bytes.data(), bytes.size());
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~update_by_instruction(~seed, bytes.data(), bytes.size());
#endif
  return detail::crc32c_by_table(bytes, seed);
}

// The first crc becomes that of its bytes followed by as many zeros: multiplied by x^8 once for each.
std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) {
  std::uint32_t power = 1u << 23;  // x^8, then its square, and so on
  for (std::uint64_t bytes = second_bytes; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) first = multiply(power, first);
    power = multiply(power, power);
  }
  return first ^ second;
}

}  // namespace holdfast::core
