#include "runtime/model/adapter_spec.h"

#include <fmt/core.h>

#include <utility>

namespace holdfast::model {
namespace {

// Returns the adapter of a target without its name, with the name of the linear layer within a block.
AdapterSpec adapter_of(LoraTarget target, std::uint64_t rank, const BlockWidths& block) {
  const auto& [width, queries, keys, wide, is_gated] = block;
  const auto of = [&](const char* layer, std::uint64_t first, std::uint64_t inputs,
                      std::vector<std::uint64_t> groups, std::uint64_t outputs) {
    return AdapterSpec{.target = target,
                       .name = {},
                       .layer = layer,
                       .first_output = first,
                       .outputs = outputs,
                       .inputs = inputs,
                       .row_groups = std::move(groups),
                       .rank = rank};
  };
  switch (target) {
    case LoraTarget::q:
      return of("attention.qkv", 0, width, {queries}, queries);
    case LoraTarget::k:
      return of("attention.qkv", queries, width, {keys}, keys);
    case LoraTarget::v:
      return of("attention.qkv", queries + keys, width, {keys}, keys);
    case LoraTarget::qkv:
      return of("attention.qkv", 0, width, {queries, keys, keys}, queries + 2 * keys);
    case LoraTarget::o:
      return of("attention.output", 0, queries, {}, width);
    case LoraTarget::gate:
      return of("feed_forward.up", 0, width, {wide}, wide);
    case LoraTarget::up:
      return of("feed_forward.up", is_gated ? wide : 0, width, {wide}, wide);
    case LoraTarget::down:
      return of("feed_forward.down", 0, wide, {}, width);
  }
  return {};
}

}  // namespace

std::vector<AdapterSpec> adapters_of(const LoraSpec& lora, const BlockWidths& block, std::int64_t layer) {
  std::vector<AdapterSpec> adapters;
  if (!lora.is_on()) return adapters;
  for (const LoraTarget target : lora.targets) {
    AdapterSpec adapter = adapter_of(target, static_cast<std::uint64_t>(lora.rank), block);
    const std::string half = adapter.layer.substr(0, adapter.layer.find('.'));
    adapter.name = fmt::format("layers.{}.{}.{}", layer, half, name_of(target));
    adapter.layer = fmt::format("layers.{}.{}", layer, adapter.layer);
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

bool is_adapter(const std::string& parameter) {
  return parameter.ends_with(".lora_a.weight") || parameter.ends_with(".lora_b.weight");
}

std::string text_of(const LoraSpec& lora) {
  if (!lora.is_on()) return "no adapters";
  std::string targets;
  for (const LoraTarget target : lora.targets)
    targets += fmt::format("{}{}", targets.empty() ? "" : ", ", name_of(target));
  return fmt::format("adapters of rank {} ({}), scale {}", lora.rank, targets, lora.scale);
}

}  // namespace holdfast::model
