#include "runtime/bench/checksum_case.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <vector>

#include "runtime/core/crc32c.h"
#include "runtime/core/random.h"
#include "runtime/core/text_table.h"
#include "runtime/core/units.h"
#include "runtime/measure/report.h"
#include "runtime/measure/samples.h"

namespace holdfast {
namespace {

using Checksum = std::uint32_t (*)(std::span<const std::byte> bytes, std::uint32_t seed);
struct Method {
  const char* name;
  Checksum checksum;
};
constexpr std::array<Method, 2> methods = {
    {{"crc32c", crc32c}, {"crc32c without instructions", detail::crc32c_by_table}}};

// In the first cache, in the second, and in memory.
constexpr std::array<std::uint64_t, 3> sizes = {16 << 10, 1 << 20, 256 << 20};

// Bytes per second, the median of passes that take `milliseconds` together.
double rate_of(Env& env, Checksum checksum, std::span<const std::byte> bytes, std::int64_t milliseconds) {
  std::vector<double> rates;
  const std::int64_t end_ns = env.monotonic_ns() + milliseconds * 1'000'000;
  // Short ones many at a time, for the clock's sake.
  const std::uint64_t passes = std::max<std::uint64_t>(1, (std::uint64_t{4} << 20) / bytes.size());
  std::uint32_t crc = 0;
  for (std::int64_t now_ns = env.monotonic_ns(); rates.empty() || now_ns < end_ns;) {
    for (std::uint64_t pass = 0; pass < passes; ++pass) crc = checksum(bytes, crc);
    const std::int64_t after_ns = env.monotonic_ns();
    rates.push_back(static_cast<double>(passes * bytes.size()) * 1e9 /
                    static_cast<double>(after_ns - now_ns));
    now_ns = after_ns;
  }
  return median(rates);
}

}  // namespace

Result<Json> run_checksum_case(Env& env, const ChecksumCaseOptions& options) {
  std::vector<float> values(sizes.back() / sizeof(float));
  RandomStream(1, 1).fill_normals(0, 1.0F, values);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  fmt::print("{}\none thread; GB/s (10^9 bytes), medians over {} ms\n\n", machine_line(env),
             options.milliseconds);
  TextTable table({"", format_bytes(sizes[0]), format_bytes(sizes[1]), format_bytes(sizes[2])}, 1);
  Json result;
  for (const Method& method : methods) {
    std::vector<std::string> row = {method.name};
    for (const std::uint64_t size : sizes) {
      const double rate = rate_of(env, method.checksum, bytes.first(size), options.milliseconds);
      row.push_back(digits(rate * 1e-9));
      result[method.name][std::to_string(size)] = rate;
    }
    table.add(std::move(row));
  }
  fmt::print("{}", table.text());
  return result;
}

}  // namespace holdfast
