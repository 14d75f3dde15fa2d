#include "runtime/model/activations.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "runtime/device/host_access.h"
#include "runtime/model/adapter_spec.h"

namespace holdfast::model {
namespace {

void* address(const MemoryArena& arena, MemoryPlan::Slot slot) {
  return slot.bytes == 0 ? nullptr : arena.at<std::byte>(slot);
}

float* floats(const MemoryArena& arena, MemoryPlan::Slot slot) {
  return static_cast<float*>(address(arena, slot));
}

// Returns whether memory of the device has a content: a planner's device has no kernels (runtime/elastic/planned_rank.h).
bool has_kernels(const Device& device) {
  return !device.kernels()[static_cast<std::size_t>(OpId::rotary)].order.empty();
}

}  // namespace

std::int64_t head_chunk_rows(std::int64_t rows, const ModelSpec& spec) {
  if (spec.head_rows > 0) return std::min(rows, spec.head_rows);
  constexpr std::int64_t chunk_elements = std::int64_t{4} << 20;
  constexpr std::int64_t efficient_rows = 256;  // fewer would read the whole head for little work
  return std::min(rows, std::max(efficient_rows, chunk_elements / spec.padded_vocabulary / 64 * 64));
}

ActivationMemory::ActivationMemory(const ModelSpec& spec, BatchShapeBT largest, bool train,
                                   Recompute recompute, MemoryPlan& plan)
    : ActivationMemory(spec, largest, train, recompute, whole_stage(spec), plan) {}

ActivationMemory::ActivationMemory(const ModelSpec& spec, BatchShapeBT largest, bool train,
                                   Recompute recompute, const StageShape& stage, MemoryPlan& plan)
    : spec_(spec),
      slice_(spec.slice()),
      largest_(largest),
      stage_(stage),
      lowest_layer_(lowest_trained_layer(spec)),
      keeps_inputs_(train),
      keeps_cheap_(train && recompute == Recompute::none),
      keeps_costly_(train && recompute != Recompute::full),
      head_rows_(head_chunk_rows(largest.rows(), spec)) {
  HF_CHECK(stage.tensor.slices == spec.tensor_lanes && largest.rows() % stage.tensor.ranks() == 0);
  HF_CHECK(!train || largest.rows() % stage.tensor.slices == 0, "{} rows in {} slices", largest.rows(),
           stage.tensor.slices);
  const std::int64_t rows = largest.rows(), rows_here = own_rows(), slices = stage.tensor.count;
  const std::size_t element = bytes_of(spec.dtype);
  for (int i = 0; i < stage.microbatches_in_flight; ++i) reserve_microbatch(i, plan);
  const int arriving = stage.microbatches_in_flight + 1;
  const int inputs = stage.part.has_embedding ? stage.microbatches_in_flight : arriving;
  if (!train) input_.push_back(microbatches_.front().residual.front());
  for (int i = 0; train && i < inputs; ++i)
    input_.push_back(reserve(plan, name_in(i, "input"), rows_here * spec.width, element));
  if (train) reserve_boundary_gradients(plan);
  const std::int64_t rotary_elements = spec.positions > 0 ? 0 : largest.sequence_length * spec.head_size / 2;
  cosine_ = reserve(plan, "rotary.cosine", rotary_elements, sizeof(float));
  sine_ = reserve(plan, "rotary.sine", rotary_elements, sizeof(float));
  if (stage.part.has_head) reserve_ends(train, plan);
  if (stage.tensor.slices > 1) reserve_slices(train, plan);
  // Without tensor lanes the only sums are those of composed ops and of layers with adapters (is_summed()), of one part.
  const bool sums_one_part = !spec.composed.empty() || (spec.lora.is_on() && spec.dtype != DType::fp32);
  if (stage.tensor.slices == 1 && sums_one_part)
    parts_ = reserve(plan, "parts", rows * spec.width, sizeof(float));
  if (spec.lora.is_on()) reserve_adapters(train, plan);
  if (train && runs_through_frozen_norms())
    unused_norm_gradients_ = reserve(
        plan, "unused_norm_gradients",
        std::max(norm_vectors() * spec.width, spec.has_head_norms ? spec.head_size : 0), sizeof(float));
  if (!stage.splits_backward()) gradients_.push_back(reserve_whole_backward(train, plan));
  for (int i = 0; i < stage.weight_gradients_pending; ++i)
    gradients_.push_back(reserve_split_backward(i, plan));
  if (!train) return;
  dnormed_ = reserve(plan, "dnormed", rows_here * spec.width, element);
  const std::int64_t dactive_width = spec.activation == ActivationKind::swiglu ? slice_.feed_forward : 0;
  dinner_ =
      reserve(plan, "dinner", slices * rows * std::max(dactive_width, slice_.attention_width()), element);
  if (spec.has_head_norms)
    dheads_ = reserve(plan, "dheads", slices * rows * slice_.attention_width(), element);
  delta_ = reserve(plan, "delta", rows * slice_.heads, sizeof(float));
}

void ActivationMemory::reserve_boundary_gradients(MemoryPlan& plan) {
  const int places = is_whole() ? 1 : stage_.microbatches_in_flight + 1;
  const std::int64_t elements = own_rows() * spec_.width;
  for (int i = 0; i < places; ++i)
    doutput_.push_back(reserve(plan, name_in(i, "dresidual"), elements, bytes_of(spec_.dtype)));
  if (!stage_.splits_backward() || stage_.part.layers() == 0) return;
  for (int i = 0; i < places; ++i)
    dinput_.push_back(reserve(plan, name_in(i, "dinput"), elements, bytes_of(spec_.dtype)));
}

ActivationMemory::GradientSlots ActivationMemory::reserve_whole_backward(bool train, MemoryPlan& plan) const {
  const std::int64_t rows = largest_.rows(), slices = stage_.tensor.count;
  const std::size_t element = bytes_of(spec_.dtype);
  GradientSlots slots;
  if (stage_.part.has_head) {
    slots.final = reserve(plan, "final", rows * spec_.width, element);
    slots.logits = reserve(plan, "logits", slices * head_rows_ * slice_.padded_vocabulary, element);
  }
  if (!train) return slots;
  BlockGradientSlots shared;
  shared.dup = shared.dqkv =
      reserve(plan, "dwide", slices * rows * std::max(slice_.up_width(), slice_.qkv_width()), element);
  slots.blocks.assign(static_cast<std::size_t>(stage_.part.layers()), shared);
  return slots;
}

ActivationMemory::GradientSlots ActivationMemory::reserve_split_backward(int pending,
                                                                         MemoryPlan& plan) const {
  const std::int64_t own = own_rows(), all = largest_.rows(), sliced = all * stage_.tensor.count;
  const std::int64_t norm_sums = stage_.tensor.count * norm_vectors() * spec_.width;
  const std::int64_t head_sums = spec_.has_head_norms ? stage_.tensor.count * spec_.head_size : 0;
  const std::size_t element = bytes_of(spec_.dtype);
  const auto keep = [&](const std::string& name, std::int64_t count, std::size_t element_bytes) {
    return reserve(plan, fmt::format("pending.{}.{}", pending, name), count, element_bytes);
  };
  GradientSlots slots;
  if (stage_.part.has_head) {
    slots.final = keep("final", all * spec_.width, element);
    slots.logits = keep("logits", sliced * slice_.padded_vocabulary, element);
    slots.final_norm_sums = keep("final_norm", norm_sums, sizeof(float));
  }
  for (std::int64_t layer = stage_.part.first_layer; layer < stage_.part.end_layer; ++layer) {
    const std::string block = fmt::format("layers.{}.", layer);
    slots.blocks.push_back(
        {.dup = keep(block + "dup", sliced * slice_.up_width(), element),
         .dmid = keep(block + "dmid", own * spec_.width, element),
         .dqkv = keep(block + "dqkv", sliced * slice_.qkv_width(), element),
         .attention_norm_sums = keep(block + "attention_norm", norm_sums, sizeof(float)),
         .feed_forward_norm_sums = keep(block + "feed_forward_norm", norm_sums, sizeof(float)),
         .query_norm_sums = keep(block + "query_norm", head_sums, sizeof(float)),
         .key_norm_sums = keep(block + "key_norm", head_sums, sizeof(float))});
    if (layer + 1 < stage_.part.end_layer)
      slots.dresidual.push_back(keep(block + "dresidual", own * spec_.width, element));
  }
  return slots;
}

// Reserves what tensor lanes need in addition: partial sums, and the buffers for messages between the ranks
// of a group.
void ActivationMemory::reserve_slices(bool train, MemoryPlan& plan) {
  const std::int64_t elements = largest_.rows() * spec_.width;
  const bool alone = stage_.tensor.ranks() == 1;
  parts_ = reserve(plan, "slices.parts", stage_.tensor.count * elements, sizeof(float));
  if (!alone) arrivals_ = reserve(plan, "slices.arrivals", elements, sizeof(float));
  if (train && !alone) dgathered_ = reserve(plan, "dgathered", elements, bytes_of(spec_.dtype));
  if (!train) return;
  const std::int64_t norms = 2 * stage_.part.layers() + (stage_.part.has_head ? 1 : 0);
  const std::int64_t head_norms = spec_.has_head_norms ? 2 * stage_.part.layers() : 0;
  norm_slices_ =
      reserve(plan, "slices.norms",
              norms * norm_slice_elements(spec_.width) + head_norms * norm_slice_elements(spec_.head_size),
              sizeof(float));
}

// Reserves what adapters compute in, and with tensor lanes the slices' parts of the gradients that belong to no slice.
void ActivationMemory::reserve_adapters(bool train, MemoryPlan& plan) {
  const std::int64_t rows = largest_.rows(), rank = spec_.lora.rank;
  const std::size_t element = bytes_of(spec_.dtype);
  adapter_low_ = reserve(plan, "adapters.low", rows * rank, element);
  // In fp32 an adapter adds to what is there, but where a derivative of GELU comes between.
  const bool needs_delta = spec_.dtype != DType::fp32 || (train && spec_.activation == ActivationKind::gelu);
  if (needs_delta)
    adapter_delta_ =
        reserve(plan, "adapters.delta", rows * std::max(slice_.up_width(), slice_.qkv_width()), element);
  if (spec_.lora.is_scaled()) {
    adapter_scaled_ = reserve(plan, "adapters.scaled", rows * rank, element);
    adapter_scale_ = reserve(plan, "adapters.scale", rank * rank, element);
  }
  if (!train || spec_.tensor_lanes == 1) return;
  std::uint64_t shared = 0;
  for (std::int64_t layer = stage_.part.first_layer; layer < stage_.part.end_layer; ++layer) {
    for (const AdapterSpec& adapter : adapters_of(spec_, layer)) shared += adapter.shared_elements();
  }
  adapter_slices_ =
      reserve(plan, "slices.adapters", spec_.tensor_lanes * static_cast<std::int64_t>(shared), sizeof(float));
}

std::int64_t ActivationMemory::norm_vectors() const {
  return spec_.norm != NormKind::layer_norm ? 1 : spec_.biases == Biases::all ? 3 : 2;
}

std::int64_t ActivationMemory::norm_slice_elements(std::int64_t width) const {
  return spec_.tensor_lanes == 1 ? 0 : spec_.tensor_lanes * norm_vectors() * width;
}

// With tensor lanes a frozen norm has memory of its slices, as any other.
bool ActivationMemory::runs_through_frozen_norms() const {
  if (spec_.tensor_lanes > 1) return false;
  bool any = stage_.part.has_head && spec_.freeze.head;
  for (std::int64_t layer = stage_.part.first_layer; layer < stage_.part.end_layer; ++layer)
    any = any || (has_backward(layer) && spec_.freeze.has_layer(layer));
  return any;
}

// Reserves memory for the final norm, the head and the loss, which a microbatch computes at the start of its
// backward.
void ActivationMemory::reserve_ends(bool train, MemoryPlan& plan) {
  const std::int64_t rows = largest_.rows();
  const std::size_t element = bytes_of(spec_.dtype);
  final_mean_ = reserve(plan, "final.mean", own_rows(), sizeof(float));
  final_rstd_ = reserve(plan, "final.rstd", own_rows(), sizeof(float));
  losses_ = reserve(plan, "losses", rows, sizeof(float));
  if (train) dfinal_ = reserve(plan, "dfinal", own_rows() * spec_.width, element);
  if (stage_.tensor.slices == 1) return;
  softmax_slices_ =
      reserve(plan, "softmax.slices", stage_.tensor.slices * head_rows_, sizeof(SoftmaxStatistics));
  softmax_rows_ = reserve(plan, "softmax.rows", head_rows_, sizeof(SoftmaxStatistics));
}

std::string ActivationMemory::name_in(int microbatch, const std::string& name) const {
  if (is_whole()) return name;
  return fmt::format("microbatch.{}.{}", microbatch, name);
}

void ActivationMemory::reserve_microbatch(int microbatch, MemoryPlan& plan) {
  MicrobatchSlots& slots = microbatches_.emplace_back();
  for (std::int64_t i = 0; i < stage_.part.layers(); ++i) {
    const std::int64_t layer = stage_.part.first_layer + i;
    slots.residual.push_back((keeps_inputs_ && has_backward(layer + 1)) || i == 0
                                 ? reserve(plan, name_in(microbatch, fmt::format("residual.{}", layer + 1)),
                                           own_rows() * spec_.width, bytes_of(spec_.dtype))
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
    bool kept;              // by each block and microbatch; else all share the first one's
    std::int64_t elements;  // of all rows and slices that are here
    std::size_t element_bytes = sizeof(float);
  };
  const std::int64_t own = own_rows(), all = largest_.rows(), sliced = all * stage_.tensor.count;
  const std::size_t element = bytes_of(spec_.dtype);
  const bool cheap = keeps_cheap_ && has_backward(layer), costly = keeps_costly_ && has_backward(layer);
  const std::int64_t queries = spec_.has_head_norms ? sliced * slice_.heads : 0;  // heads of all rows
  const std::int64_t keys = spec_.has_head_norms ? sliced * slice_.kv_heads : 0;
  const Part parts[] = {
      {&BlockSlots::attention_mean, "attention_norm.mean", costly, own},
      {&BlockSlots::attention_rstd, "attention_norm.rstd", costly, own},
      {&BlockSlots::normed, "normed", cheap, all * spec_.width, element},
      {&BlockSlots::qkv, "qkv", costly, sliced * slice_.qkv_width(), element},
      {&BlockSlots::queries, "queries", costly, queries * spec_.head_size, element},
      {&BlockSlots::query_rstd, "query_norm.rstd", costly, queries},
      {&BlockSlots::keys, "keys", costly, keys * spec_.head_size, element},
      {&BlockSlots::key_rstd, "key_norm.rstd", costly, keys},
      {&BlockSlots::cache, "cache", /*kept=*/true,
       stage_.cached_sequences * largest_.sequence_length * stage_.tensor.count * 2 * slice_.kv_width(),
       element},
      {&BlockSlots::attention, "attention", costly, sliced * slice_.attention_width(), element},
      {&BlockSlots::lse, "lse", costly, sliced * slice_.heads},
      {&BlockSlots::mid, "mid", costly, own * spec_.width, element},
      {&BlockSlots::feed_forward_mean, "feed_forward_norm.mean", costly, own},
      {&BlockSlots::feed_forward_rstd, "feed_forward_norm.rstd", costly, own},
      {&BlockSlots::normed_mid, "normed_mid", cheap, all * spec_.width, element},
      {&BlockSlots::up, "up", costly, sliced * slice_.up_width(), element},
      {&BlockSlots::active, "active", cheap, sliced * slice_.feed_forward, element},
  };
  const bool first = microbatch == 0 && layer == stage_.part.first_layer;
  BlockSlots slots;
  for (const Part& part : parts) {
    const std::string name = part.kept ? name_in(microbatch, fmt::format("layers.{}.{}", layer, part.name))
                                       : fmt::format("layers.{}", part.name);
    slots.*part.slot = part.kept || first ? reserve(plan, name, part.elements, part.element_bytes)
                                          : microbatches_.front().blocks.front().*part.slot;
  }
  return slots;
}

Activations ActivationMemory::bind(Device& device, const MemoryArena& arena) const {
  Activations result;
  for (const MemoryPlan::Slot& slot : input_) result.input_NC.push_back(address(arena, slot));
  for (const MemoryPlan::Slot& slot : doutput_) result.doutput_NC.push_back(address(arena, slot));
  for (const MemoryPlan::Slot& slot : dinput_) result.dinput_NC.push_back(address(arena, slot));
  if (dinput_.empty()) result.dinput_NC = result.doutput_NC;
  for (const GradientSlots& slots : gradients_) result.gradients.push_back(bind_gradients(slots, arena));
  for (const MicrobatchSlots& slots : microbatches_) {
    MicrobatchActivations& microbatch = result.microbatches.emplace_back();
    for (const MemoryPlan::Slot& slot : slots.residual)
      microbatch.residual_NC.push_back(address(arena, slot));
    for (const BlockSlots& s : slots.blocks) {
      microbatch.blocks.push_back(
          {.attention_norm = {floats(arena, s.attention_mean), floats(arena, s.attention_rstd)},
           .normed_NC = address(arena, s.normed),
           .qkv = address(arena, s.qkv),
           .queries = address(arena, s.queries),
           .keys = address(arena, s.keys),
           .query_norm = {.rstd = floats(arena, s.query_rstd)},
           .key_norm = {.rstd = floats(arena, s.key_rstd)},
           .cache = address(arena, s.cache),
           .attention = address(arena, s.attention),
           .lse = floats(arena, s.lse),
           .mid_NC = address(arena, s.mid),
           .feed_forward_norm = {floats(arena, s.feed_forward_mean), floats(arena, s.feed_forward_rstd)},
           .normed_mid_NC = address(arena, s.normed_mid),
           .up = address(arena, s.up),
           .active = address(arena, s.active)});
    }
  }
  result.scratch = {.dnormed_NC = address(arena, dnormed_),
                    .dinner = address(arena, dinner_),
                    .dheads = address(arena, dheads_),
                    .delta = floats(arena, delta_),
                    .dgathered_NC = address(arena, dgathered_),
                    .sums = {.parts = floats(arena, parts_), .arrivals = floats(arena, arrivals_)},
                    .cosine = floats(arena, cosine_),
                    .sine = floats(arena, sine_),
                    .cache = {stage_.cached_sequences, largest_.sequence_length}};
  result.final_statistics = {floats(arena, final_mean_), floats(arena, final_rstd_)};
  result.head = bind_head(arena);
  result.norm_slices = floats(arena, norm_slices_);
  result.unused_norm_gradients = floats(arena, unused_norm_gradients_);
  result.adapters = {.low = address(arena, adapter_low_),
                     .scaled = address(arena, adapter_scaled_),
                     .delta = address(arena, adapter_delta_),
                     .scale = address(arena, adapter_scale_)};
  result.adapter_slices = floats(arena, adapter_slices_);
  fill_scale(device, arena);
  fill_rotary_tables(device, arena);
  return result;
}

MicrobatchGradients ActivationMemory::bind_gradients(const GradientSlots& slots, const MemoryArena& arena) {
  MicrobatchGradients result{.dresidual_NC = {},
                             .blocks = {},
                             .final_NC = address(arena, slots.final),
                             .logits = address(arena, slots.logits),
                             .final_norm_sums = floats(arena, slots.final_norm_sums)};
  for (const MemoryPlan::Slot& slot : slots.dresidual) result.dresidual_NC.push_back(address(arena, slot));
  for (const BlockGradientSlots& s : slots.blocks) {
    result.blocks.push_back({.dup = address(arena, s.dup),
                             .dmid_NC = address(arena, s.dmid),
                             .dqkv = address(arena, s.dqkv),
                             .attention_norm_sums = floats(arena, s.attention_norm_sums),
                             .feed_forward_norm_sums = floats(arena, s.feed_forward_norm_sums),
                             .query_norm_sums = floats(arena, s.query_norm_sums),
                             .key_norm_sums = floats(arena, s.key_norm_sums)});
  }
  return result;
}

HeadMemory ActivationMemory::bind_head(const MemoryArena& arena) const {
  return {.losses = floats(arena, losses_),
          .dfinal_NC = address(arena, dfinal_),
          .of_slices = static_cast<SoftmaxStatistics*>(address(arena, softmax_slices_)),
          .of_rows = static_cast<SoftmaxStatistics*>(address(arena, softmax_rows_))};
}

// Writes the matrix with the adapters' scale on its diagonal.
void ActivationMemory::fill_scale(Device& device, const MemoryArena& arena) const {
  if (adapter_scale_.bytes == 0 || !has_kernels(device)) return;
  const auto rank = static_cast<std::size_t>(spec_.lora.rank), element = bytes_of(spec_.dtype);
  std::vector<std::byte> matrix(rank * rank * element);
  const BFloat16 narrow = to_bfloat16(spec_.lora.scale);
  for (std::size_t i = 0; i < rank; ++i) {
    std::byte* const place = matrix.data() + i * (rank + 1) * element;
    if (spec_.dtype == DType::bf16) {
      std::memcpy(place, &narrow, sizeof(narrow));
    } else {
      std::memcpy(place, &spec_.lora.scale, sizeof(float));
    }
  }
  write_memory(device, arena.at<std::byte>(adapter_scale_), matrix);
}

void ActivationMemory::fill_rotary_tables(Device& device, const MemoryArena& arena) const {
  if (cosine_.bytes == 0 || !has_kernels(device)) return;
  std::vector<float> cosine(cosine_.bytes / sizeof(float)), sine(cosine.size());
  const std::int64_t half = spec_.head_size / 2;
  std::vector<double> frequencies(static_cast<std::size_t>(half));
  for (std::int64_t i = 0; i < half; ++i)
    frequencies[static_cast<std::size_t>(i)] = rotary_frequency(spec_, i);
  for (std::int64_t position = 0; position < largest_.sequence_length; ++position) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<std::size_t>(i)];
      const auto element = static_cast<std::size_t>(position * half + i);
      cosine[element] = static_cast<float>(std::cos(angle));
      sine[element] = static_cast<float>(std::sin(angle));
    }
  }
  write_memory(device, arena.at<float>(cosine_), std::as_bytes(std::span(cosine)));
  write_memory(device, arena.at<float>(sine_), std::as_bytes(std::span(sine)));
}

}  // namespace holdfast::model
