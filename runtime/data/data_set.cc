#include "runtime/data/data_set.h"

#include <algorithm>
#include <cmath>

#include "runtime/data/token_cache.h"

namespace holdfast::data {
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

DataOptions data_options(const Config& config) {
  const DataConfig& data = config.data;
  return {.documents = {.mask = data.document_mask,
                        .begin_token = data.document_begin,
                        .end_token = data.document_end},
          .validation = {.fraction = data.validation_fraction,
                         .seed = static_cast<std::uint64_t>(data.validation_seed)},
          .token_cache = token_cache_of(config)};
}

Result<std::shared_ptr<DataSet>> DataSet::open(Env& env, const std::vector<SourceConfig>& sources,
                                               std::int64_t sequence_length, const DataOptions& options) {
  HF_CHECK(sequence_length >= 1);
  if (sources.empty()) {
    return fail(ExitCode::data,
                "there is no data: data.sources is empty; name at least one file, as in "
                "data.sources = [{{path = \"corpus.txt\"}}]");
  }
  auto data = std::make_shared<DataSet>();
  data->sequence_length_ = sequence_length;
  data->options_ = options;
  std::string problems;
  Reach reach = Reach::minute;  // of what is worst
  const auto note = [&](const Error& error) {
    problems += (problems.empty() ? "" : "\n") + error.message;
    reach = std::min(reach, error.reach);
  };
  if (const Result<void> weights = check_weights(sources); !weights.ok()) note(weights.error());
  for (const SourceConfig& config : sources) {
    Result<std::unique_ptr<TokenSource>> source =
        TokenSource::open(env, config, sequence_length, options.documents, options.token_cache);
    if (!source.ok()) {
      note(source.error());
      continue;
    }
    const std::uint64_t samples = samples_of(**source, sequence_length);
    SampleSubset used = samples;
    if (options.validation.fraction > 0.0) {
      used = {SampleSubset::Part::training, options.validation, data->sources_.size(), samples};
    }
    if (used.count() == 0) {
      note(fail(
          ExitCode::data,
          "{} holds {} sample of {} tokens, which data.validation_fraction = {} holds back: none is left "
          "for training; use a larger file or shorter sequences, or leave data.validation_fraction out",
          (*source)->path(), samples, sequence_length, options.validation.fraction));
    }
    data->sources_.push_back({.tokens = std::move(source).value(), .samples = used, .weight = config.weight});
  }
  if (!problems.empty()) return Error{ExitCode::data, problems, reach};
  return data;
}

std::shared_ptr<DataSet> DataSet::validation_part() const {
  auto part = std::make_shared<DataSet>(*this);
  part->sources_.clear();
  if (!(options_.validation.fraction > 0.0)) return part;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const SampleSubset held_back(SampleSubset::Part::validation, options_.validation, i,
                                 samples_of(*sources_[i].tokens, sequence_length_));
    if (held_back.count() == 0) continue;
    part->sources_.push_back(
        {.tokens = sources_[i].tokens, .samples = held_back, .weight = sources_[i].weight});
  }
  return part;
}

std::int64_t DataSet::vocabulary_needed() const {
  std::int64_t largest = 0;
  for (const Source& source : sources_) largest = std::max(largest, source.tokens->vocabulary_needed());
  return largest;
}

Result<std::int64_t> DataSet::vocabulary_of_format() const {
  const TokenSource& first = *sources_.front().tokens;
  for (const Source& source : sources_) {
    if (source.tokens->vocabulary_of_format() == 0) {
      return fail(ExitCode::config,
                  "model.vocabulary is left out, and {} does not say how large its vocabulary is: give it",
                  source.tokens->path());
    }
    if (source.tokens->vocabulary_of_format() == first.vocabulary_of_format()) continue;
    return fail(
        ExitCode::config,
        "model.vocabulary is left out, and the sources do not agree on it: {} has {}, {} has {}; give "
        "it, if all of them are made with one tokenizer",
        first.path(), first.vocabulary_of_format(), source.tokens->path(),
        source.tokens->vocabulary_of_format());
  }
  return first.vocabulary_of_format();
}

Result<void> DataSet::check_document_tokens(std::int64_t vocabulary) const {
  for (const Source& source : sources_) HF_TRY_VOID(source.tokens->check_document_tokens(vocabulary));
  return {};
}

std::vector<std::string> DataSet::warnings_of_documents() const {
  std::vector<std::string> warnings;
  for (const Source& source : sources_) {
    Result<std::string> warning = source.tokens->warning_of_documents();
    if (warning.ok() && !warning->empty()) warnings.push_back(std::move(warning).value());
  }
  return warnings;
}

Digest DataSet::fingerprint() const {
  DigestStream stream;
  for (const Source& source : sources_) {
    const Digest digest = source.tokens->fingerprint();
    stream.add(digest.high);
    stream.add(digest.low);
  }
  return stream.finish();
}

std::uint64_t DataSet::sample_count() const {
  std::uint64_t count = 0;
  for (const Source& source : sources_) count += source.samples.count();
  return count;
}

std::vector<std::uint64_t> DataSet::samples_of_sources() const {
  std::vector<std::uint64_t> counts;
  for (const Source& source : sources_) counts.push_back(source.samples.count());
  return counts;
}

std::uint64_t DataSet::token_count() const {
  std::uint64_t count = 0;
  for (const Source& source : sources_) count += source.tokens->token_count();
  return count;
}

SampleOrder DataSet::order(std::uint64_t seed) const {
  std::vector<SampleOrder::Source> sources;
  for (const Source& source : sources_) {
    sources.push_back({.samples = source.samples, .weight = source.weight});
  }
  return SampleOrder(seed, std::move(sources));
}

Result<void> DataSet::read(const SampleId& id, std::span<std::int32_t> tokens,
                           std::int64_t vocabulary) const {
  HF_CHECK(tokens.size() == static_cast<std::size_t>(sequence_length_) + 1 && id.source < sources_.size());
  return sources_[id.source].tokens->read(first_token(id), tokens, vocabulary);
}

Result<void> DataSet::try_sources(std::int64_t vocabulary) const {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(sequence_length_) + 1);
  for (std::uint32_t i = 0; i < sources_.size(); ++i)
    HF_TRY_VOID(read({.source = i, .sample = sources_[i].samples.at(0)}, tokens, vocabulary));
  return {};
}

Result<std::uint64_t> DataSet::fill_row(const SampleId& id, std::span<const std::int32_t> tokens,
                                        const SequenceRow& row) const {
  return sources_[id.source].tokens->fill_row(first_token(id), tokens, row);
}

void DataSet::will_need(const SampleId& id) const {
  sources_[id.source].tokens->will_need(first_token(id), static_cast<std::uint64_t>(sequence_length_) + 1);
}

void DataSet::drop_cached() const {
  for (const Source& source : sources_) source.tokens->drop_cached();
}

}  // namespace holdfast::data
