#include "runtime/train/sample_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::train {
namespace {

constexpr std::size_t tokens_shown = 16;
constexpr std::uint64_t samples_shown = 4;

std::string text_of(std::span<const std::int32_t> bytes) {
  std::string text;
  for (const std::int32_t byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

}  // namespace

std::string describe_sample(const DataSet& data, const Config& config, const SampleId& id) {
  const auto length = static_cast<std::uint64_t>(config.training.sequence_length);
  const SourceConfig& source = config.data.sources[id.source];
  std::string text = fmt::format("{} sample {} (tokens {} to {}", source.path, id.sample, id.sample * length,
                                 (id.sample + 1) * length);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length) + 1);
  const std::int64_t any_token = std::int64_t{1} << 31;
  if (!data.read(id, tokens, any_token).ok()) return text + ")";
  const std::span<const std::int32_t> first = std::span(tokens).first(std::min(tokens.size(), tokens_shown));
  if (source.format == "text")
    return fmt::format("{}, begins {})", text, Json(printable(text_of(first))).dump());
  return fmt::format("{}, begins {})", text, fmt::join(first, " "));
}

std::string describe_samples(const DataSet& data, const Config& config, std::uint64_t cursor, int lane,
                             int microbatch) {
  const auto size = static_cast<std::uint64_t>(config.training.microbatch_size);
  const auto index =
      static_cast<std::uint64_t>(lane) * static_cast<std::uint64_t>(config.training.microbatches_per_lane) +
      static_cast<std::uint64_t>(microbatch);
  const SampleOrder order = data.order(config.run.seed);
  std::vector<std::string> samples;
  for (std::uint64_t i = 0; i < std::min(size, samples_shown); ++i)
    samples.push_back(describe_sample(data, config, order.at(cursor + index * size + i)));
  const std::string others =
      size > samples_shown ? fmt::format("; and {} more", size - samples_shown) : std::string();
  return fmt::format("{}{}", fmt::join(samples, "; "), others);
}

}  // namespace holdfast::train
