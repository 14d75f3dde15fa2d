#include "tools/bench_native/cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "runtime/core/crc32c.h"
#include "runtime/core/median.h"
#include "runtime/core/random.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/measure/report.h"
#include "runtime/os/sealed_session.h"
#include "runtime/os/secret.h"

namespace holdfast::bench {
namespace {

using BytePass = std::function<void(std::span<const std::byte> bytes)>;
struct Method {
  const char* name;
  BytePass pass;
};

// Both ends of a connection in one thread, without the network between them.
class SealedPair {
 public:
  explicit SealedPair(Env& env) : SealedPair(Secret::draw(env)) {}
  void pass(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      bytes = bytes.subspan(caller_.seal(bytes));
      move(caller_, listener_);
      while (listener_.take(taken_) > 0) {
      }
    }
  }

 private:
  explicit SealedPair(const Secret& secret)
      : caller_(secret, "bench", SealedSession::Role::caller),
        listener_(secret, "bench", SealedSession::Role::listener) {
    move(caller_, listener_);
    move(listener_, caller_);
    move(caller_, listener_);
  }
  static void move(SealedSession& from, SealedSession& to) {
    while (!from.outgoing().empty()) {
      const std::span<std::byte> awaited = to.awaited();
      const std::size_t count = std::min(awaited.size(), from.outgoing().size());
      std::ranges::copy(from.outgoing().first(count), awaited.begin());
      from.sent(count);
      HF_CHECK(to.arrived(count, "the other end").ok());
    }
  }

  SealedSession caller_, listener_;
  std::vector<std::byte> taken_ = std::vector<std::byte>(SealedSession::record_bytes_max);
};

// Sizes that fit the first cache, the second cache, and only memory.
constexpr std::array<std::uint64_t, 3> sizes = {16 << 10, 1 << 20, 256 << 20};

// Bytes per second, the median of passes that take `milliseconds` together.
double rate_of(Env& env, const BytePass& pass, std::span<const std::byte> bytes, std::int64_t milliseconds) {
  std::vector<double> rates;
  const std::int64_t end_ns = env.monotonic_ns() + milliseconds * 1'000'000;
  // Short ones many at a time, for the clock's sake.
  const std::uint64_t passes = std::max<std::uint64_t>(1, (std::uint64_t{4} << 20) / bytes.size());
  for (std::int64_t now_ns = env.monotonic_ns(); rates.empty() || now_ns < end_ns;) {
    for (std::uint64_t done = 0; done < passes; ++done) pass(bytes);
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
  std::uint32_t crc = 0;
  SealedPair sealed(env);
  const std::array<Method, 3> methods = {
      {{"crc32c", [&](std::span<const std::byte> part) { crc = crc32c(part, crc); }},
       {"crc32c without instructions",
        [&](std::span<const std::byte> part) { crc = core::detail::crc32c_by_table(part, crc); }},
       {"replica, both ends", [&](std::span<const std::byte> part) { sealed.pass(part); }}}};
  for (const Method& method : methods) {
    std::vector<std::string> row = {method.name};
    for (const std::uint64_t size : sizes) {
      const double rate = rate_of(env, method.pass, bytes.first(size), options.milliseconds);
      row.push_back(digits(rate * 1e-9));
      result[method.name][std::to_string(size)] = rate;
    }
    table.add(std::move(row));
  }
  fmt::print("{}", table.text());
  return result;
}

}  // namespace holdfast::bench
