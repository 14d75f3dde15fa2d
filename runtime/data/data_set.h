// DataSet: the sources of a run as one set of samples. The content of the set is a pure function of the files
// and the options; a SampleOrder decides the order in which a run reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/data/sample_order.h"
#include "runtime/data/source.h"

namespace holdfast::data {

struct DataOptions {
  DocumentRule documents;
  ValidationRule validation;     // with a fraction, the set is the part for training
  std::string token_cache = {};  // has the tokens of text sources (token_cache.h)
};
DataOptions data_options(const Config& config);

// Threads: const methods may be called from any thread.
class DataSet {
 public:
  // Opens all sources of a list; one message holds the errors of all files.
  static Result<std::shared_ptr<DataSet>> open(Env& env, const std::vector<SourceConfig>& sources,
                                               std::int64_t sequence_length, const DataOptions& options = {});
  // Returns the part that DataOptions::validation holds back, over the same open files; the part may be
  // empty.
  std::shared_ptr<DataSet> validation_part() const;

  std::int64_t vocabulary_needed() const;  // the largest of all sources; 0 = unknown
  // Returns the vocabulary to use when model.vocabulary is left out: the one that the formats of all sources
  // agree on. Fails with ExitCode::config when they disagree or one does not say.
  Result<std::int64_t> vocabulary_of_format() const;
  // Fails with ExitCode::config if a token that marks documents for the mask is not one of the vocabulary.
  Result<void> check_document_tokens(std::int64_t vocabulary) const;
  // Returns TokenSource::warning_of_documents() of the sources that have one. One that cannot be read has none:
  // that is an error of whoever reads it.
  std::vector<std::string> warnings_of_documents() const;
  Digest fingerprint() const;
  std::uint64_t sample_count() const;                     // samples in this part
  std::vector<std::uint64_t> samples_of_sources() const;  // the same of each source
  std::uint64_t token_count() const;                      // tokens in the files
  SampleOrder order(std::uint64_t seed) const;            // requires sample_count() > 0

  // Reads the sequence_length + 1 tokens of a sample.
  Result<void> read(const SampleId& id, std::span<std::int32_t> tokens, std::int64_t vocabulary) const;
  // Reads the first sample of every source, to find out whether they can be read at all.
  Result<void> try_sources(std::int64_t vocabulary) const;
  // Fills the model's inputs and targets from the sample's tokens as read() gave them. Returns the number of
  // targets that count.
  Result<std::uint64_t> fill_row(const SampleId& id, std::span<const std::int32_t> tokens,
                                 const SequenceRow& row) const;
  bool masks_documents() const { return options_.documents.mask; }

  void will_need(const SampleId& id) const;  // hint: it will be read soon
  void drop_cached() const;                  // drops all files from the page cache, to measure a cold start

 private:
  struct Source {
    std::shared_ptr<TokenSource> tokens;
    SampleSubset samples;
    double weight = 0.0;
  };
  std::uint64_t first_token(const SampleId& id) const {
    return id.sample * static_cast<std::uint64_t>(sequence_length_);
  }

  std::int64_t sequence_length_ = 0;
  DataOptions options_;
  std::vector<Source> sources_;
};

}  // namespace holdfast::data
