#include "runtime/model/activations.h"

#include <algorithm>
#include <cmath>

namespace holdfast {
namespace {

std::int64_t rows_of_head_chunk(std::int64_t rows, std::int64_t padded_vocabulary) {
  constexpr std::int64_t chunk_elements = std::int64_t{4} << 20;
  constexpr std::int64_t efficient_rows = 256;  // fewer would read the whole head for little work
  return std::min(rows, std::max(efficient_rows, chunk_elements / padded_vocabulary / 64 * 64));
}

void* address(const MemoryArena& arena, MemoryPlan::Slot slot) {
  return slot.bytes == 0 ? nullptr : arena.at<std::byte>(slot);
}

float* floats(const MemoryArena& arena, MemoryPlan::Slot slot) {
  return static_cast<float*>(address(arena, slot));
}

}  // namespace

ActivationMemory::ActivationMemory(const ModelSpec& spec, BatchShapeBT largest, bool train, MemoryPlan& plan)
    : spec_(spec),
      largest_(largest),
      train_(train),
      head_rows_(rows_of_head_chunk(largest.rows(), spec.padded_vocabulary)) {
  const std::int64_t rows = largest.rows();
  const std::size_t element = bytes_of(spec.dtype);
  const std::int64_t distinct_layers = train ? spec.layers : 1;
  for (std::int64_t i = 0; i < (train ? spec.layers + 1 : 1); ++i) {
    residual_.push_back(reserve(plan, fmt::format("residual.{}", i), rows * spec.width, element));
  }
  for (std::int64_t layer = 0; layer < distinct_layers; ++layer)
    blocks_.push_back(reserve_block(layer, plan));
  const std::int64_t rotary_elements = spec.positions > 0 ? 0 : largest.sequence_length * spec.head_size / 2;
  branch_ = reserve(plan, "branch", rows * spec.width, element);
  cosine_ = reserve(plan, "rotary.cosine", rotary_elements, sizeof(float));
  sine_ = reserve(plan, "rotary.sine", rotary_elements, sizeof(float));
  final_ = reserve(plan, "final", rows * spec.width, element);
  final_mean_ = reserve(plan, "final.mean", rows, sizeof(float));
  final_rstd_ = reserve(plan, "final.rstd", rows, sizeof(float));
  logits_ = reserve(plan, "logits", head_rows_ * spec.padded_vocabulary, element);
  losses_ = reserve(plan, "losses", rows, sizeof(float));
  if (!train) return;
  dwide_ = reserve(plan, "dwide", rows * std::max(spec.up_width(), spec.qkv_width()), element);
  dinner_ = reserve(plan, "dinner", rows * std::max(spec.feed_forward, spec.attention_width()), element);
  delta_ = reserve(plan, "delta", rows * spec.heads, sizeof(float));
  d_ = reserve(plan, "dresidual", rows * spec.width, element);
  dfinal_ = reserve(plan, "dfinal", rows * spec.width, element);
}

MemoryPlan::Slot ActivationMemory::reserve(MemoryPlan& plan, const std::string& name, std::int64_t count,
                                           std::size_t element_bytes) const {
  if (count == 0) return {};
  return plan.reserve("activations." + name, MemoryClass::activations,
                      static_cast<std::uint64_t>(count) * element_bytes);
}

ActivationMemory::BlockSlots ActivationMemory::reserve_block(std::int64_t layer, MemoryPlan& plan) const {
  const std::int64_t rows = largest_.rows();
  const std::size_t element = bytes_of(spec_.dtype);
  const auto name = [layer](const char* part) { return fmt::format("layers.{}.{}", layer, part); };
  BlockSlots slots;
  for (int half = 0; half < 2; ++half) {
    slots.mean[half] = reserve(plan, name("mean"), rows, sizeof(float));
    slots.rstd[half] = reserve(plan, name("rstd"), rows, sizeof(float));
  }
  slots.normed = reserve(plan, name("normed"), rows * spec_.width, element);
  slots.qkv = reserve(plan, name("qkv"), rows * spec_.qkv_width(), element);
  slots.attention = reserve(plan, name("attention"), rows * spec_.attention_width(), element);
  slots.lse = reserve(plan, name("lse"), rows * spec_.heads, sizeof(float));
  slots.mid = reserve(plan, name("mid"), rows * spec_.width, element);
  slots.normed_mid = reserve(plan, name("normed_mid"), rows * spec_.width, element);
  slots.up = reserve(plan, name("up"), rows * spec_.up_width(), element);
  slots.active = reserve(plan, name("active"), rows * spec_.feed_forward, element);
  return slots;
}

Activations ActivationMemory::bind(const MemoryArena& arena) const {
  Activations result;
  for (std::int64_t i = 0; i <= spec_.layers; ++i) {
    result.residual_NC.push_back(address(arena, residual_[train_ ? static_cast<std::size_t>(i) : 0]));
  }
  for (std::int64_t layer = 0; layer < spec_.layers; ++layer) {
    const BlockSlots& s = blocks_[train_ ? static_cast<std::size_t>(layer) : 0];
    result.blocks.push_back({.x_NC = result.residual_NC[static_cast<std::size_t>(layer)],
                             .attention_norm = {floats(arena, s.mean[0]), floats(arena, s.rstd[0])},
                             .normed_NC = address(arena, s.normed),
                             .qkv = address(arena, s.qkv),
                             .attention = address(arena, s.attention),
                             .lse = floats(arena, s.lse),
                             .mid_NC = address(arena, s.mid),
                             .feed_forward_norm = {floats(arena, s.mean[1]), floats(arena, s.rstd[1])},
                             .normed_mid_NC = address(arena, s.normed_mid),
                             .up = address(arena, s.up),
                             .active = address(arena, s.active)});
  }
  result.scratch = {.branch_NC = address(arena, branch_),
                    .dwide = address(arena, dwide_),
                    .dinner = address(arena, dinner_),
                    .delta = floats(arena, delta_),
                    .cosine = floats(arena, cosine_),
                    .sine = floats(arena, sine_)};
  result.final_statistics = {floats(arena, final_mean_), floats(arena, final_rstd_)};
  result.final_NC = address(arena, final_);
  result.logits = address(arena, logits_);
  result.losses = floats(arena, losses_);
  result.d_NC = address(arena, d_);
  result.dfinal_NC = address(arena, dfinal_);
  fill_rotary_tables(arena);
  return result;
}

void ActivationMemory::fill_rotary_tables(const MemoryArena& arena) const {
  if (cosine_.bytes == 0) return;
  float* cosine = arena.at<float>(cosine_);
  float* sine = arena.at<float>(sine_);
  const std::int64_t half = spec_.head_size / 2;
  for (std::int64_t position = 0; position < largest_.sequence_length; ++position) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(spec_.head_size);
      const double angle = static_cast<double>(position) * std::pow(spec_.rope_theta, exponent);
      cosine[position * half + i] = static_cast<float>(std::cos(angle));
      sine[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace holdfast
