#include <algorithm>
#include <cmath>

#include "runtime/data/loader.h"

namespace holdfast {
namespace {

std::uint64_t samples_of(const TokenSource& source, std::int64_t sequence_length) {
  return (source.token_count() - 1) / static_cast<std::uint64_t>(sequence_length);
}

// A weight that gives its source no slot would silently leave the source out.
Result<void> check_weights(const std::vector<SourceConfig>& sources) {
  std::vector<SampleOrder::Source> weighted;
  bool any = false;
  for (const SourceConfig& source : sources) {
    if (!std::isfinite(source.weight) || source.weight < 0.0) {
      return fail(ExitCode::data, "the data source {} has the weight {}; a weight is a number above zero",
                  source.path, source.weight);
    }
    any = any || source.weight > 0.0;
    weighted.push_back({.samples = 1, .weight = source.weight});
  }
  if (!any) return {};
  const std::vector<std::uint64_t> slots = SampleOrder::slots_per_round(weighted);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (slots[i] > 0) continue;
    return fail(
        ExitCode::data,
        "the data source {} with the weight {} would get no sample: its share is below 1 in {}; raise its "
        "weight or leave the source out",
        sources[i].path, sources[i].weight, SampleOrder::round_slots);
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<DataSet>> DataSet::open(Env& env, const std::vector<SourceConfig>& sources,
                                               std::int64_t sequence_length) {
  HF_CHECK(sequence_length >= 1);
  if (sources.empty()) {
    return fail(ExitCode::data,
                "there is no data: data.sources is empty; name at least one file, as in "
                "data.sources = [{{path = \"corpus.txt\"}}]");
  }
  auto data = std::make_shared<DataSet>();
  data->sequence_length_ = sequence_length;
  data->configs_ = sources;
  std::string problems;
  const auto note = [&](const Error& error) { problems += (problems.empty() ? "" : "\n") + error.message; };
  if (const Result<void> weights = check_weights(sources); !weights.ok()) note(weights.error());
  for (const SourceConfig& config : sources) {
    Result<std::unique_ptr<TokenSource>> source = TokenSource::open(env, config, sequence_length);
    if (source.ok()) {
      data->sources_.push_back(std::move(source).value());
    } else {
      note(source.error());
    }
  }
  if (!problems.empty()) return Error{ExitCode::data, problems};
  return data;
}

std::int64_t DataSet::vocabulary_needed() const {
  std::int64_t largest = 0;
  for (const auto& source : sources_) largest = std::max(largest, source->vocabulary_needed());
  return largest;
}

std::int64_t DataSet::vocabulary_of_format() const {
  std::int64_t largest = 0;
  for (const auto& source : sources_) largest = std::max(largest, source->vocabulary_of_format());
  return largest;
}

Digest DataSet::fingerprint() const {
  DigestStream stream;
  for (const auto& source : sources_) {
    const Digest digest = source->fingerprint();
    stream.add(digest.high);
    stream.add(digest.low);
  }
  return stream.finish();
}

std::uint64_t DataSet::sample_count() const {
  std::uint64_t count = 0;
  for (const auto& source : sources_) count += samples_of(*source, sequence_length_);
  return count;
}

std::uint64_t DataSet::token_count() const {
  std::uint64_t count = 0;
  for (const auto& source : sources_) count += source->token_count();
  return count;
}

SampleOrder DataSet::order(std::uint64_t seed) const {
  std::vector<SampleOrder::Source> sources;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    sources.push_back({.samples = samples_of(*sources_[i], sequence_length_), .weight = configs_[i].weight});
  }
  return SampleOrder(seed, std::move(sources));
}

Result<void> DataSet::read(const SampleId& id, std::span<std::int32_t> tokens,
                           std::int64_t vocabulary) const {
  HF_CHECK(tokens.size() == static_cast<std::size_t>(sequence_length_) + 1 && id.source < sources_.size());
  return sources_[id.source]->read(id.sample * static_cast<std::uint64_t>(sequence_length_), tokens,
                                   vocabulary);
}

}  // namespace holdfast
