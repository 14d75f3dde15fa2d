// DataSet: the sources of a run as one set of samples. Its content is a pure function of the files and the
// options; the order in which a run walks through it is a SampleOrder's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/data/sample_order.h"
#include "runtime/data/source.h"

namespace holdfast::inline data {

struct DataOptions {
  DocumentRule documents;
  ValidationRule validation;  // with a fraction, the set is the part for training
};
DataOptions data_options(const DataConfig& config);

// Threads: const methods may be called from any thread.
class DataSet {
 public:
  // All sources of a list; errors of all files are in one message.
  static Result<std::shared_ptr<DataSet>> open(Env& env, const std::vector<SourceConfig>& sources,
                                               std::int64_t sequence_length, const DataOptions& options = {});
  // The part that DataOptions::validation holds back, of the same open files; it may be empty.
  std::shared_ptr<DataSet> validation_part() const;

  std::int64_t vocabulary_needed() const;  // largest of the sources', 0 = unknown
  // What model.vocabulary is when left out: what the formats of all sources agree on. ExitCode::config when
  // they do not, or one does not say.
  Result<std::int64_t> vocabulary_of_format() const;
  Digest fingerprint() const;
  std::uint64_t sample_count() const;           // of this part
  std::uint64_t token_count() const;            // of the files
  SampleOrder order(std::uint64_t seed) const;  // sample_count() > 0

  // The sequence_length + 1 tokens of a sample.
  Result<void> read(const SampleId& id, std::span<std::int32_t> tokens, std::int64_t vocabulary) const;
  // The sample as the model takes it, from its tokens as read() gave them. The number of targets that count.
  Result<std::uint64_t> fill_row(const SampleId& id, std::span<const std::int32_t> tokens,
                                 const SequenceRow& row) const;
  bool masks_documents() const { return options_.documents.mask; }

  void will_need(const SampleId& id) const;  // hint: it will be read soon
  void drop_cached() const;                  // of all files: to measure a cold start

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

}  // namespace holdfast::inline data
