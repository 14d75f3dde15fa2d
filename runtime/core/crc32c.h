// CRC32C (Castagnoli, polynomial 0x1EDC6F41 reflected), the checksum of everything on disk.
// crc32c("123456789") == 0xe3069283. Uses SSE4.2 where the processor has it, a table otherwise; same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace holdfast::core {

// Returns the crc of the bytes. `seed` is the crc of the bytes before: crc32c(b, crc32c(a)) == crc32c(a
// followed by b).
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// Returns the crc of a followed by b, from crc32c(a), crc32c(b) and the length of b: for parts that several
// threads processed.
std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes);

namespace detail {

// Computes the crc by a table, for processors without the instruction and for the test that both agree.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t seed);

}  // namespace detail
}  // namespace holdfast::core
