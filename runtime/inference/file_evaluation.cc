#include "runtime/inference/file_evaluation.h"

#include <algorithm>
#include <vector>

#include "runtime/core/exact_sum.h"
#include "runtime/data/data_set.h"

namespace holdfast::inference {
namespace {

// WindowBatches reads the windows one after another as batches of one shape; the last batch is filled up with
// targets that do not count.
class WindowBatches {
 public:
  WindowBatches(const TokenSource& source, BatchShapeBT shape, std::int64_t vocabulary)
      : source_(&source),
        vocabulary_(vocabulary),
        batch_(static_cast<std::size_t>(shape.batch)),
        length_(static_cast<std::size_t>(shape.sequence_length)),
        inputs_(batch_ * length_),
        targets_(batch_ * length_),
        first_key_(source.masks_documents() ? batch_ * length_ : 0),
        window_(length_ + 1) {}

  std::uint64_t windows() const { return (source_->token_count() - 1) / length_; }

  // Reads a batch and returns its number of targets that count.
  Result<std::uint64_t> read(std::uint64_t first_window) {
    std::ranges::fill(inputs_, 0);
    std::ranges::fill(targets_, uncounted_target);
    std::ranges::fill(first_key_, 0);
    const SequenceRows rows(inputs_, targets_, first_key_, length_);
    std::uint64_t counted = 0;
    const std::uint64_t count = std::min<std::uint64_t>(batch_, windows() - first_window);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t first_token = (first_window + i) * length_;
      HF_TRY_VOID(source_->read(first_token, window_, vocabulary_));
      HF_TRY(const std::uint64_t counted_of_row, source_->fill_row(first_token, window_, rows[i]));
      counted += counted_of_row;
    }
    return counted;
  }

  std::span<const std::int32_t> inputs() const { return inputs_; }
  std::span<const std::int32_t> targets() const { return targets_; }
  std::span<const std::int32_t> first_key() const { return first_key_; }

 private:
  const TokenSource* source_;
  std::int64_t vocabulary_;
  std::size_t batch_, length_;
  std::vector<std::int32_t> inputs_, targets_, first_key_, window_;
};

}  // namespace

Result<double> evaluate_file(Env& env, InferenceModel& model, const std::string& path) {
  HF_TRY(std::string format, detect_format(env, path));
  DocumentRule documents = data_options(model.config()).documents;
  documents.needed = false;
  // A file that is too short for one window gets the error message below.
  constexpr std::int64_t shortest = 1;
  HF_TRY(const std::unique_ptr<TokenSource> source,
         TokenSource::open(env, {.path = path, .format = std::move(format)}, shortest, documents));
  return evaluate_tokens(model, *source);
}

Result<double> evaluate_tokens(InferenceModel& model, const TokenSource& source) {
  const BatchShapeBT shape = model.shape();
  WindowBatches batches(source, shape, model.spec().vocabulary);
  if (batches.windows() == 0) {
    return fail(ExitCode::data,
                "{} holds {} tokens, but one window of {} tokens and the token after it need {}. Use a "
                "larger file, or give "
                "a sequence length of {} or less",
                source.path(), source.token_count(), shape.sequence_length, shape.sequence_length + 1,
                source.token_count() - 1);
  }
  ExactSum sum;
  std::uint64_t counted = 0;
  for (std::uint64_t window = 0; window < batches.windows();
       window += static_cast<std::uint64_t>(shape.batch)) {
    HF_TRY(const std::uint64_t counted_of_batch, batches.read(window));
    counted += counted_of_batch;
    HF_TRY(const double loss_sum, model.loss_sum(batches.inputs(), batches.targets(), batches.first_key()));
    sum.add(loss_sum);
  }
  if (counted == 0) {
    return fail(ExitCode::data,
                "{} has no target that counts: its mask leaves out every token. Use a file with another mask",
                source.path());
  }
  return sum.value() / static_cast<double>(counted);
}

}  // namespace holdfast::inference
