#include "runtime/model/activations.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/host_access.h"

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

ActivationMemory::ActivationMemory(const ModelSpec& spec, BatchShapeBT largest, bool train,
                                   Recompute recompute, MemoryPlan& plan)
    : ActivationMemory(spec, largest, train, recompute, StageShape{.part = whole_model(spec)}, plan) {}

ActivationMemory::ActivationMemory(const ModelSpec& spec, BatchShapeBT largest, bool train,
                                   Recompute recompute, const StageShape& stage, MemoryPlan& plan)
    : spec_(spec),
      largest_(largest),
      stage_(stage),
      keeps_inputs_(train),
      keeps_cheap_(train && recompute == Recompute::none),
      keeps_costly_(train && recompute != Recompute::full),
      head_rows_(rows_of_head_chunk(largest.rows(), spec.padded_vocabulary)) {
  const std::int64_t rows = largest.rows();
  const std::size_t element = bytes_of(spec.dtype);
  for (int i = 0; i < stage.microbatches_in_flight; ++i) reserve_microbatch(i, plan);
  const int arriving = stage.microbatches_in_flight + 1;
  const int inputs = stage.part.has_embedding ? stage.microbatches_in_flight : arriving;
  if (!train) input_.push_back(microbatches_.front().residual.front());
  for (int i = 0; train && i < inputs; ++i)
    input_.push_back(reserve(plan, name_in(i, "input"), rows * spec.width, element));
  const int gradients = !train ? 0 : is_whole() ? 1 : arriving;
  for (int i = 0; i < gradients; ++i)
    d_.push_back(reserve(plan, name_in(i, "dresidual"), rows * spec.width, element));
  const std::int64_t rotary_elements = spec.positions > 0 ? 0 : largest.sequence_length * spec.head_size / 2;
  branch_ = reserve(plan, "branch", rows * spec.width, element);
  cosine_ = reserve(plan, "rotary.cosine", rotary_elements, sizeof(float));
  sine_ = reserve(plan, "rotary.sine", rotary_elements, sizeof(float));
  if (stage.part.has_head) reserve_ends(train, plan);
  if (!train) return;
  dwide_ = reserve(plan, "dwide", rows * std::max(spec.up_width(), spec.qkv_width()), element);
  dinner_ = reserve(plan, "dinner", rows * std::max(spec.feed_forward, spec.attention_width()), element);
  delta_ = reserve(plan, "delta", rows * spec.heads, sizeof(float));
}

// For the final norm, the head and the loss, which a microbatch goes through at the start of its backward.
void ActivationMemory::reserve_ends(bool train, MemoryPlan& plan) {
  const std::int64_t rows = largest_.rows();
  const std::size_t element = bytes_of(spec_.dtype);
  final_ = reserve(plan, "final", rows * spec_.width, element);
  final_mean_ = reserve(plan, "final.mean", rows, sizeof(float));
  final_rstd_ = reserve(plan, "final.rstd", rows, sizeof(float));
  logits_ = reserve(plan, "logits", head_rows_ * spec_.padded_vocabulary, element);
  losses_ = reserve(plan, "losses", rows, sizeof(float));
  if (train) dfinal_ = reserve(plan, "dfinal", rows * spec_.width, element);
}

std::string ActivationMemory::name_in(int microbatch, const std::string& name) const {
  if (is_whole()) return name;
  return fmt::format("microbatch.{}.{}", microbatch, name);
}

void ActivationMemory::reserve_microbatch(int microbatch, MemoryPlan& plan) {
  MicrobatchSlots& slots = microbatches_.emplace_back();
  for (std::int64_t i = 0; i < stage_.part.layers(); ++i) {
    const std::int64_t layer = stage_.part.first_layer + i;
    slots.residual.push_back(keeps_inputs_ || i == 0
                                 ? reserve(plan, name_in(microbatch, fmt::format("residual.{}", layer + 1)),
                                           largest_.rows() * spec_.width, bytes_of(spec_.dtype))
                                 : slots.residual.front());
    slots.blocks.push_back(reserve_block(microbatch, layer, plan));
  }
}

MemoryPlan::Slot ActivationMemory::reserve(MemoryPlan& plan, const std::string& name, std::int64_t count,
                                           std::size_t element_bytes) const {
  if (count == 0) return {};
  return plan.reserve("activations." + name, MemoryClass::activations,
                      static_cast<std::uint64_t>(count) * element_bytes);
}

ActivationMemory::BlockSlots ActivationMemory::reserve_block(int microbatch, std::int64_t layer,
                                                             MemoryPlan& plan) const {
  struct Part {
    MemoryPlan::Slot BlockSlots::*slot;
    const char* name;
    bool kept;             // by each block and microbatch; else all share the first one's
    std::int64_t columns;  // of a row
    std::size_t element_bytes = sizeof(float);
  };
  const std::size_t element = bytes_of(spec_.dtype);
  const bool cheap = keeps_cheap_, costly = keeps_costly_;
  const Part parts[] = {
      {&BlockSlots::attention_mean, "attention_norm.mean", costly, 1},
      {&BlockSlots::attention_rstd, "attention_norm.rstd", costly, 1},
      {&BlockSlots::normed, "normed", cheap, spec_.width, element},
      {&BlockSlots::qkv, "qkv", costly, spec_.qkv_width(), element},
      {&BlockSlots::attention, "attention", costly, spec_.attention_width(), element},
      {&BlockSlots::lse, "lse", costly, spec_.heads},
      {&BlockSlots::mid, "mid", costly, spec_.width, element},
      {&BlockSlots::feed_forward_mean, "feed_forward_norm.mean", costly, 1},
      {&BlockSlots::feed_forward_rstd, "feed_forward_norm.rstd", costly, 1},
      {&BlockSlots::normed_mid, "normed_mid", cheap, spec_.width, element},
      {&BlockSlots::up, "up", costly, spec_.up_width(), element},
      {&BlockSlots::active, "active", cheap, spec_.feed_forward, element},
  };
  const bool first = microbatch == 0 && layer == stage_.part.first_layer;
  BlockSlots slots;
  for (const Part& part : parts) {
    const std::string name = part.kept ? name_in(microbatch, fmt::format("layers.{}.{}", layer, part.name))
                                       : fmt::format("layers.{}", part.name);
    slots.*part.slot = part.kept || first
                           ? reserve(plan, name, largest_.rows() * part.columns, part.element_bytes)
                           : microbatches_.front().blocks.front().*part.slot;
  }
  return slots;
}

Activations ActivationMemory::bind(Device& device, const MemoryArena& arena) const {
  Activations result;
  for (const MemoryPlan::Slot& slot : input_) result.input_NC.push_back(address(arena, slot));
  for (const MemoryPlan::Slot& slot : d_) result.d_NC.push_back(address(arena, slot));
  for (const MicrobatchSlots& slots : microbatches_) {
    MicrobatchActivations& microbatch = result.microbatches.emplace_back();
    for (const MemoryPlan::Slot& slot : slots.residual)
      microbatch.residual_NC.push_back(address(arena, slot));
    for (const BlockSlots& s : slots.blocks) {
      microbatch.blocks.push_back(
          {.attention_norm = {floats(arena, s.attention_mean), floats(arena, s.attention_rstd)},
           .normed_NC = address(arena, s.normed),
           .qkv = address(arena, s.qkv),
           .attention = address(arena, s.attention),
           .lse = floats(arena, s.lse),
           .mid_NC = address(arena, s.mid),
           .feed_forward_norm = {floats(arena, s.feed_forward_mean), floats(arena, s.feed_forward_rstd)},
           .normed_mid_NC = address(arena, s.normed_mid),
           .up = address(arena, s.up),
           .active = address(arena, s.active)});
    }
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
  result.dfinal_NC = address(arena, dfinal_);
  fill_rotary_tables(device, arena);
  return result;
}

void ActivationMemory::fill_rotary_tables(Device& device, const MemoryArena& arena) const {
  if (cosine_.bytes == 0) return;
  std::vector<float> cosine(cosine_.bytes / sizeof(float)), sine(cosine.size());
  const std::int64_t half = spec_.head_size / 2;
  for (std::int64_t position = 0; position < largest_.sequence_length; ++position) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(spec_.head_size);
      const double angle = static_cast<double>(position) * std::pow(spec_.rope_theta, exponent);
      const auto element = static_cast<std::size_t>(position * half + i);
      cosine[element] = static_cast<float>(std::cos(angle));
      sine[element] = static_cast<float>(std::sin(angle));
    }
  }
  write_memory(device, arena.at<float>(cosine_), std::as_bytes(std::span(cosine)));
  write_memory(device, arena.at<float>(sine_), std::as_bytes(std::span(sine)));
}

}  // namespace holdfast
