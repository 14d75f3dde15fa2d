#include "runtime/train/corruption.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "runtime/core/check.h"
#include "runtime/core/random.h"

namespace holdfast::train {
namespace {

int bit_count(DType dtype) {
  return static_cast<int>(8 * bytes_of(dtype));
}

float value_of(std::uint32_t bits, DType dtype) {
  return dtype == DType::bf16 ? to_float(BFloat16{static_cast<std::uint16_t>(bits)})
                              : std::bit_cast<float>(bits);
}

const char* kind_of(NumberMemory memory) {
  switch (memory) {
    case NumberMemory::moment1:
      return "moment1";
    case NumberMemory::moment2:
      return "moment2";
    case NumberMemory::ema:
      return "ema";
    default:
      return "weight";
  }
}

std::vector<NumberRegion> owned_state(ShardedOptimizer& optimizer, NumberMemory memory) {
  std::vector<NumberRegion> regions;
  for (const OwnedState& piece : optimizer.state()) {
    if (piece.spec.kind != kind_of(memory)) continue;
    regions.push_back({.tensor = piece.spec.tensor,
                       .memory = piece.data,
                       .elements = piece.spec.element_count(),
                       .dtype = piece.spec.dtype});
  }
  return regions;
}

// Padding between tensors is left out, as is a tied bucket, whose parameters are those of another one.
std::vector<NumberRegion> parameters(const StepParts& parts) {
  const DType dtype = parts.workload().spec.dtype;
  std::vector<NumberRegion> regions;
  std::set<std::uint64_t> seen;
  for (const Bucket& bucket : parts.workload().buckets.buckets()) {
    for (const BucketTensor& tensor : bucket.tensors) {
      if (!seen.insert(tensor.parameter_offset).second) continue;
      regions.push_back({.tensor = tensor.name,
                         .memory = parts.stage.parameters() + tensor.parameter_offset * bytes_of(dtype),
                         .elements = tensor.elements(),
                         .dtype = dtype});
    }
  }
  return regions;
}

std::vector<NumberRegion> lane_gradients(const StepParts& parts) {
  std::vector<NumberRegion> regions;
  const BucketPlan& plan = parts.workload().buckets;
  for (int bucket = 0; bucket < plan.local_count(); ++bucket) {
    for (const BucketTensor& tensor : plan.buckets()[static_cast<std::size_t>(bucket)].tensors) {
      regions.push_back(
          {.tensor = tensor.name,
           .memory = reinterpret_cast<std::byte*>(parts.stage.gradients() + tensor.gradient_offset),
           .elements = tensor.elements()});
    }
  }
  return regions;
}

std::vector<NumberRegion> received_gradients(const StepParts& parts) {
  const LaneReduction::Received& received = parts.update.reduction.last_received();
  return {{.tensor = fmt::format("gradients from rank {}", received.source),
           .memory = reinterpret_cast<std::byte*>(received.values.data()),
           .elements = received.values.size()}};
}

std::vector<NumberRegion> summed_gradients(const StepParts& parts) {
  std::vector<NumberRegion> regions;
  const ReducedGradients reduced = parts.update.reduction.reduced();
  for (const Segment& segment : parts.update.optimizer.segments()) {
    regions.push_back({.tensor = parts.workload().buckets.tensor(segment).name,
                       .memory = reinterpret_cast<std::byte*>(reduced.of(segment)),
                       .elements = segment.elements});
  }
  return regions;
}

std::vector<NumberRegion> regions_of(NumberMemory memory, StepParts& parts, LaneRunner& lanes) {
  switch (memory) {
    case NumberMemory::weights:
    case NumberMemory::moment1:
    case NumberMemory::moment2:
    case NumberMemory::ema:
      return owned_state(parts.update.optimizer, memory);
    case NumberMemory::parameters:
      return parameters(parts);
    case NumberMemory::lane_gradients:
      return lane_gradients(parts);
    case NumberMemory::received_gradients:
      return received_gradients(parts);
    case NumberMemory::summed_gradients:
      return summed_gradients(parts);
    case NumberMemory::activations:
    case NumberMemory::run_state:
      break;
  }
  const DType dtype = parts.workload().spec.dtype;
  const std::span<std::byte> activation = lanes.boundary_activation();
  return {{.tensor = "activation",
           .memory = activation.data(),
           .elements = activation.size() / bytes_of(dtype),
           .dtype = dtype}};
}

// Flips a bit of a word of the state that is no tensor, which no device has.
CorruptedNumber corrupt(const Corruption& corruption, RunState& state) {
  struct Word {
    const char* name;
    std::uint64_t* word;
  };
  const std::array<Word, 3> words = {
      {{"step", &state.step}, {"data_cursor", &state.data_cursor}, {"loss_digest", &state.loss_digest.low}}};
  const RandomStream draw(corruption.draw, 0);
  const std::uint64_t element = corruption.element.value_or(draw.bits(0)) % words.size();
  const std::uint64_t bit = corruption.bit.value_or(draw.bits(1)) % 64;
  std::uint64_t& word = *words[element].word;
  const std::uint64_t before = word;
  word ^= std::uint64_t{1} << bit;
  return {.tensor = words[element].name,
          .element = element,
          .bit = bit,
          .old_value = std::to_string(before),
          .new_value = std::to_string(word),
          .numbers = 1};
}

// Returns as many different bits as the corruption flips: the one that it names, or drawn ones.
std::uint32_t mask_of(const Corruption& corruption, DType dtype) {
  const RandomStream draw(corruption.draw, 0);
  const auto width = static_cast<std::uint64_t>(bit_count(dtype));
  std::uint32_t mask = 1U << (corruption.bit.value_or(draw.bits(1)) % width);
  for (std::uint64_t i = 2; std::cmp_less(std::popcount(mask), std::min(corruption.bits, width)); ++i)
    mask |= 1U << (draw.bits(i) % width);
  return mask;
}

ChosenNumber number_at(std::uint64_t element_of_memory, const Corruption& corruption,
                       std::span<const NumberRegion> regions) {
  ChosenNumber chosen{.element = element_of_memory, .element_of_memory = element_of_memory};
  for (; chosen.element >= regions[chosen.region].elements; ++chosen.region)
    chosen.element -= regions[chosen.region].elements;
  chosen.mask = mask_of(corruption, regions[chosen.region].dtype);
  return chosen;
}

// Changes one number and returns what it was and is.
CorruptedNumber change(const ChosenNumber& chosen, NumberChange how, const NumberRegion& region,
                       HostAccess& access) {
  const std::size_t bytes = bytes_of(region.dtype);
  const std::span<std::byte> number{region.memory + chosen.element * bytes, bytes};
  std::uint32_t old_bits = 0;
  std::memcpy(&old_bits, access.to_read(number).data(), bytes);
  const std::uint32_t new_bits = changed_bits(old_bits, region.dtype, how, chosen.mask);
  std::memcpy(access.to_write(number).data(), &new_bits, bytes);
  access.flush();
  return {.tensor = region.tensor,
          .element = chosen.element_of_memory,
          .bit = how == NumberChange::to_nan ? 0 : static_cast<std::uint64_t>(std::countr_zero(chosen.mask)),
          .old_value = fmt::format("{}", value_of(old_bits, region.dtype)),
          .new_value = fmt::format("{}", value_of(new_bits, region.dtype)),
          .numbers = old_bits != new_bits ? 1U : 0U};
}

}  // namespace

std::vector<ChosenNumber> choose_numbers(const Corruption& corruption,
                                         std::span<const NumberRegion> regions) {
  std::uint64_t total = 0;
  for (const NumberRegion& region : regions) total += region.elements;
  HF_CHECK(total > 0, "there is no number to choose from");
  std::uint64_t element = corruption.element.value_or(RandomStream(corruption.draw, 0).bits(0)) % total;
  std::vector<ChosenNumber> chosen;
  for (; chosen.size() < corruption.numbers && element < total; element += corruption.stride)
    chosen.push_back(number_at(element, corruption, regions));
  return chosen;
}

std::uint32_t changed_bits(std::uint32_t bits, DType dtype, NumberChange change, std::uint32_t mask) {
  HF_CHECK(dtype == DType::fp32 || (dtype == DType::bf16 && mask < 1U << 16));
  switch (change) {
    case NumberChange::flip:
      return bits ^ mask;
    case NumberChange::stuck_at_0:
      return bits & ~mask;
    case NumberChange::stuck_at_1:
      return bits | mask;
    case NumberChange::to_nan:
      break;
  }
  return dtype == DType::bf16 ? 0x7fc0U : 0x7fc00000U;
}

CorruptedNumber corrupt(const Corruption& corruption, std::span<const NumberRegion> regions,
                        HostAccess& access) {
  const bool empty =
      std::ranges::all_of(regions, [](const NumberRegion& each) { return each.elements == 0; });
  if (empty) return {};
  std::optional<CorruptedNumber> first;
  for (const ChosenNumber& chosen : choose_numbers(corruption, regions)) {
    CorruptedNumber each = change(chosen, corruption.change, regions[chosen.region], access);
    each.numbers += first.has_value() ? first->numbers : 0;
    if (!first.has_value() || first->numbers == 0) {
      first = std::move(each);
    } else {
      first->numbers = each.numbers;
    }
  }
  return *std::move(first);
}

CorruptedNumber corrupt(const Corruption& corruption, StepParts& parts, LaneRunner& lanes) {
  const NumberMemory memory = corruption.memory;
  if (memory == NumberMemory::run_state) return corrupt(corruption, parts.state);
  if (memory == NumberMemory::weights || memory == NumberMemory::parameters)
    static_cast<void>(parts.update.gather.finish().ok());
  return corrupt(corruption, regions_of(memory, parts, lanes), parts.rank.host_access);
}

}  // namespace holdfast::train
