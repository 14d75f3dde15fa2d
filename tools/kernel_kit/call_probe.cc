#include "tools/kernel_kit/call_probe.h"

#include <fmt/format.h>

#include <span>
#include <string_view>

#include "kernels/number_errors.h"
#include "kernels/optimizer.h"
#include "tools/kernel_kit/counter_clock.h"

namespace holdfast::bench::kernel_kit {
namespace {

constexpr int places_of_array = 32;
// Two implementations that are right may be apart by more than each is from the reference.
constexpr double times_own = 8.0;

// Digests of what an update has written follow from its last bits, which are its own.
bool is_compared(const Implementation& kernel, const BenchMemory::Array& array) {
  return array.is_written && array.operand.access != Operand::Access::scratch &&
         (!is_update(kernel.op) || std::string_view(array.operand.name) != "block_digests");
}

// A millisecond or so, in which a thread of the kernel's own would get to work, and how many of them where it seems to have
// computed nothing.
constexpr std::uint64_t ticks_of_patience = 3'000'000, times_of_patience = 100;

}  // namespace

std::string problem_of_probe(const ProbedBytes& bytes, const std::string& difference,
                             std::int64_t right_before) {
  if (bytes.at_return != bytes.later)
    return "it goes on writing after launch() has returned: the work is done by a thread of its own, and is "
           "not in the time";
  if (difference.empty()) return {};
  if (bytes.later == bytes.before)
    return fmt::format("it leaves what was there before and computes nothing, after {} calls that were right",
                       right_before);
  if (bytes.later == bytes.last_call || bytes.later == bytes.first_call)
    return fmt::format(
        "it writes the results of an earlier call on the same memory, whose numbers were others: it "
        "remembers them ({})",
        difference);
  if (right_before == 0) return fmt::format("its numbers are wrong: {}", difference);
  return fmt::format("it was right in {} calls that were compared, and is wrong in a later one: {}",
                     right_before, difference);
}

CallProbe::CallProbe(KernelRunner& runner, const Implementation& usual, BenchMemory& memory,
                     BenchMemory& twin, QuickRandom& random)
    : runner_(runner), usual_(usual), memory_(memory), twin_(twin), random_(random) {
  for (std::size_t i = 0; i < memory.arrays().size(); ++i) {
    const BenchMemory::Array& array = memory.arrays()[i];
    if (!array.is_written || array.operand.access == Operand::Access::scratch) continue;
    const auto size = static_cast<std::size_t>(array.operand.element_bytes);
    // Not between rows, where an op may leave what is there.
    const auto columns = static_cast<std::uint64_t>(array.operand.has_gaps() ? array.operand.row_columns : 0);
    for (int place = 0; place < places_of_array; ++place) {
      std::uint64_t element = random_.below(array.bytes / size);
      if (columns > 0)
        element = random_.below(static_cast<std::uint64_t>(array.operand.rows)) *
                      static_cast<std::uint64_t>(array.operand.row_stride) +
                  random_.below(columns);
      places_.push_back({.array = i, .byte = element * size, .count = size});
    }
  }
}

std::vector<std::byte> CallProbe::bytes_at(const std::vector<Place>& places) const {
  std::vector<std::byte> bytes;
  for (const Place& place : places) {
    const auto content = memory_.arrays()[place.array].content().subspan(place.byte, place.count);
    bytes.insert(bytes.end(), content.begin(), content.end());
  }
  return bytes;
}

std::vector<std::byte> CallProbe::bytes_of_first_call(const std::vector<Place>& places) const {
  std::vector<std::byte> bytes;
  if (first_call_.empty()) return bytes;
  for (const Place& place : places) {
    const auto content = std::span(first_call_[place.array]).subspan(place.byte, place.count);
    bytes.insert(bytes.end(), content.begin(), content.end());
  }
  return bytes;
}

void CallProbe::keep_first_call() {
  for (const BenchMemory::Array& array : memory_.arrays()) {
    std::vector<std::byte>& kept = first_call_.emplace_back();
    if (array.is_written) kept.assign(array.content().begin(), array.content().end());
  }
}

std::string CallProbe::difference() const {
  for (std::size_t i = 0; i < memory_.arrays().size(); ++i) {
    const BenchMemory::Array& array = memory_.arrays()[i];
    if (!is_compared(usual_, array)) continue;
    const DType dtype = array.operand.dtype;
    const bool is_words = array.operand.content == Operand::Content::words;
    const NumberErrors errors =
        compare_numbers(array.content(), twin_.arrays()[i].content(), dtype, is_words);
    const double allowed = times_own * error_limits(dtype, is_words, {}).own;
    if (errors.wrong_kind == 0 && errors.relative() <= allowed) continue;
    return fmt::format("element {} of {} is {}, and {} has {}",
                       errors.wrong_kind > 0 ? errors.first_wrong_kind : errors.worst, array.operand.name,
                       errors.actual, usual_.name, errors.expected);
  }
  return {};
}

std::string CallProbe::probe(const Implementation& kernel, const How& how) {
  runner_.prepare(kernel, memory_.arguments());
  std::vector<Place> places = places_;
  ProbedBytes bytes{.last_call = bytes_at(places)};
  how.renews ? memory_.renew(random_) : memory_.touch(random_);
  const BenchMemory::Scrambled& scrambled = memory_.scrambled();
  places.insert(places.end(), scrambled.places.begin(), scrambled.places.end());
  bytes.last_call.insert(bytes.last_call.end(), scrambled.before.begin(), scrambled.before.end());
  bytes.first_call = bytes_of_first_call(places);
  twin_.copy_from(memory_);
  bytes.before = bytes_at(places);
  if (how.is_cold) memory_.flush();
  runner_.run_prepared(kernel, memory_.arguments());
  bytes.at_return = bytes_at(places);
  const std::uint64_t returned = CounterClock::now();
  runner_.prepare(usual_, twin_.arguments());
  runner_.run_prepared(usual_, twin_.arguments());
  while (CounterClock::now() - returned < ticks_of_patience) continue;
  bytes.later = bytes_at(places);
  const std::string difference = this->difference();
  if (!difference.empty() && bytes.later == bytes.at_return) {  // a thread that had no processor yet
    while (CounterClock::now() - returned < ticks_of_patience * times_of_patience) continue;
    bytes.later = bytes_at(places);
  }
  std::string problem = problem_of_probe(bytes, difference, right_);
  if (problem.empty() && right_++ == 0) keep_first_call();
  return problem;
}

}  // namespace holdfast::bench::kernel_kit
