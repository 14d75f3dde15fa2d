#include "runtime/device/cpu/shadow_runner.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <type_traits>

#include "kernels/plugin.h"
#include "kernels/visit_op.h"
#include "runtime/os/env.h"

namespace holdfast::device {
namespace {

// Returns whether an op leaves some of what it writes as it finds it: a slice of the embedding has the rows of its own tokens.
template <typename Op>
bool leaves_some([[maybe_unused]] const Op& op) {
  if constexpr (Op::id == OpId::embedding_forward) return op.token_count > 0;
  return false;
}

// ShadowMemory places what a call writes in memory of its own: a copy of the op's struct points there.
class ShadowMemory {
 public:
  explicit ShadowMemory(const ShadowedCall& call) {
    visit_op(call.id, call.arguments, [this](const auto& op) {
      std::memcpy(bytes_.data(), &op, sizeof(op));
      find_regions(op);
    });
  }

  std::size_t bytes() const { return size_; }

  // Copies what the call also reads of it, and lets the struct point to the copy.
  const void* move_to(std::byte* memory, OpId id) {
    memory_ = memory;
    for (const Region& region : regions()) {
      if (!region.is_written) continue;
      constexpr int no_number = 0xff;  // what a candidate leaves out is found
      if (region.is_read) {
        std::memcpy(memory + region.offset, region.base, region.bytes);
      } else {
        std::memset(memory + region.offset, no_number, region.bytes);
      }
    }
    visit_op(id, bytes_.data(), [this](const auto& op) {
      // The bytes are this object's own, and no constant.
      redirect(const_cast<std::remove_cvref_t<decltype(op)>&>(op));
    });
    return bytes_.data();
  }

  // Calls visit(operand, chosen, shadow) for each array that the call has written.
  template <typename Visit>
  void visit_results(const ShadowedCall& call, const Visit& visit) const {
    visit_op(call.id, call.arguments, [&](const auto& op) {
      std::remove_cvref_t<decltype(op)>::visit_operands(op, [&](const auto& pointer, const Operand& operand) {
        if (pointer == nullptr || !operand.is_written() || operand.access == Operand::Access::scratch) return;
        const auto* const chosen = reinterpret_cast<const std::byte*>(pointer);
        visit(operand, chosen, memory_ + region_of(chosen)->offset);
      });
    });
  }

 private:
  static constexpr std::size_t most_regions = 16;
  struct Region {
    const std::byte* base = nullptr;
    std::size_t bytes = 0, offset = 0;
    bool is_read = false, is_written = false;
  };

  std::span<const Region> regions() const { return std::span(regions_).first(count_); }
  const Region* region_of(const std::byte* base) const {
    const auto found = std::ranges::find(regions(), base, &Region::base);
    return found == regions().end() ? nullptr : &*found;
  }

  template <typename Op>
  void find_regions(const Op& op) {
    Op::visit_operands(op, [this, &op](const auto& pointer, const Operand& operand) {
      const auto* const base = reinterpret_cast<const std::byte*>(pointer);
      // Arrays of one address are one; where a step is planned without memory, none are.
      std::size_t index = 0;
      while (index < count_ && (base == nullptr || regions_[index].base != base)) ++index;
      if (base == nullptr && operand.optional) return;
      HF_CHECK(index < most_regions, "an op with more than {} arrays", most_regions);
      count_ = std::max(count_, index + 1);
      Region& region = regions_[index];
      region.base = base;
      region.bytes = std::max(region.bytes, static_cast<std::size_t>(operand.extent * operand.element_bytes));
      region.is_read = region.is_read || operand.is_read() || leaves_some(op);
      region.is_written = region.is_written || operand.is_written();
    });
    constexpr std::size_t line = 64;
    for (Region& region : std::span(regions_).first(count_)) {
      if (!region.is_written) continue;
      region.offset = size_;
      size_ += (region.bytes + line - 1) / line * line;
    }
  }

  template <typename Op>
  void redirect(Op& op) const {
    Op::visit_operands(op, [this](auto& pointer, const Operand&) {
      if (pointer == nullptr) return;
      const Region* const region = region_of(reinterpret_cast<const std::byte*>(pointer));
      if (region->is_written)
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory_ + region->offset);
    });
  }

  alignas(16) std::array<std::byte, op_bytes_max> bytes_ = {};
  std::array<Region, most_regions> regions_ = {};
  std::size_t count_ = 0, size_ = 0;
  std::byte* memory_ = nullptr;
};

// Compares an array row by row where the op does not write what is between them.
void compare(const Operand& operand, const std::byte* chosen, const std::byte* shadow, ShadowResult& result) {
  const bool is_words = operand.content == Operand::Content::words;
  const bool has_rows = operand.has_gaps() && !operand.pads;
  const std::int64_t rows = has_rows ? operand.rows : 1;
  const std::int64_t columns = has_rows ? operand.row_columns : operand.extent;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t first = row * (has_rows ? operand.row_stride : 0);
    const auto of_row = [&](const std::byte* array) {
      return std::span(array + first * operand.element_bytes,
                       static_cast<std::size_t>(columns * operand.element_bytes));
    };
    result.add(compare_numbers(of_row(shadow), of_row(chosen), operand.dtype, is_words), operand.name, first);
  }
}

void with_report(const Implementation& candidate, const PluginReport& report, const auto& work) {
  const bool is_reported = report && candidate.plugin != nullptr;
  if (is_reported) report(candidate.plugin->line);
  work();
  if (is_reported) report({});
}

}  // namespace

const KernelRule* ShadowRunner::shadow_of(const KernelChoice& choice, const ShadowedCall& call,
                                          std::uint64_t step) {
  for (const KernelRule& shadow : choice.shadows) {
    const bool is_due = step == 0 || step % static_cast<std::uint64_t>(shadow.every) == 0;
    if (is_due && shadow.filter.has(call.place, call.arguments)) return &shadow;
  }
  return nullptr;
}

std::string ShadowRunner::plan(const KernelRule& shadow, const cpu::Context& context,
                               const ShadowedCall& call, const PluginReport& report) {
  const Implementation& candidate = shadow.first();
  std::string problem;
  with_report(candidate, report, [&] {
    if (!candidate.computes(call.arguments)) return;
    candidate.prepare_on(context, call.arguments);
    if (candidate.plugin == nullptr) return;
    const std::size_t bytes = kernels::workspace_bytes(candidate, context, call.arguments);
    problem = kernels::workspace_problem(*candidate.plugin, bytes);
  });
  scratch_.request_shared(ShadowMemory(call).bytes());
  return problem;
}

ShadowResult& ShadowRunner::result_of(const KernelRule& shadow, const ShadowedCall& call,
                                      const Implementation& chosen) {
  ShadowResult fresh{.op = name_of(call.id),
                     .kernel = shadow.first().name,
                     .chosen = chosen.name,
                     .layer = call.place.layer};
  const auto found =
      std::ranges::find_if(results_, [&](const ShadowResult& each) { return each.is_about(fresh); });
  if (found != results_.end()) return *found;
  results_.push_back(std::move(fresh));
  return results_.back();
}

void ShadowRunner::run(const KernelRule& shadow, const cpu::Context& context, const ShadowedCall& call,
                       const Implementation& chosen, const std::function<void()>& run_chosen,
                       const PluginReport& report) {
  const Implementation& candidate = shadow.first();
  ShadowMemory memory(call);
  const void* const arguments = memory.move_to(scratch_.shared(), call.id);
  std::int64_t shadow_ns = -1;  // it leaves the call to others
  const auto run_candidate = [&] {
    with_report(candidate, report, [&] {
      // Prepares as was planned, and for the copies as well, whose addresses are others.
      if (!candidate.computes(call.arguments) || !candidate.computes(arguments)) return;
      const std::int64_t begin_ns = posix_env().monotonic_ns();
      candidate.run_on(context, arguments);
      shadow_ns = posix_env().monotonic_ns() - begin_ns;
    });
  };
  const bool candidate_is_first = calls_++ % 2 == 0;
  if (candidate_is_first) run_candidate();
  const std::int64_t begin_ns = posix_env().monotonic_ns();
  run_chosen();
  const std::int64_t chosen_ns = posix_env().monotonic_ns() - begin_ns;
  if (!candidate_is_first) run_candidate();
  ShadowResult& result = result_of(shadow, call, chosen);
  if (shadow_ns < 0) return;
  ++result.calls;
  result.shadow_ns += shadow_ns;
  result.chosen_ns += chosen_ns;
  memory.visit_results(
      call, [&result](const Operand& operand, const std::byte* of_run, const std::byte* of_shadow) {
        compare(operand, of_run, of_shadow, result);
      });
}

void ShadowResult::add(const NumberErrors& errors, const char* output, std::int64_t first_index) {
  numbers += errors.count;
  ulp_sum += errors.ulp_sum;
  wrong_kind += errors.wrong_kind;
  if (errors.ulp_max > ulp_max) {
    ulp_max = errors.ulp_max;
    worst = fmt::format("{}[{}]", output, first_index + errors.worst);
  } else if (worst.empty() && errors.wrong_kind > 0) {
    worst = fmt::format("{}[{}]", output, first_index + errors.first_wrong_kind);
  }
}

void ShadowResult::add(const ShadowResult& other) {
  calls += other.calls;
  numbers += other.numbers;
  if (other.ulp_max > ulp_max || worst.empty()) worst = other.worst;
  ulp_max = std::max(ulp_max, other.ulp_max);
  ulp_sum += other.ulp_sum;
  wrong_kind += other.wrong_kind;
  chosen_ns += other.chosen_ns;
  shadow_ns += other.shadow_ns;
}

}  // namespace holdfast::device
