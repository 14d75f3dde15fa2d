#include "runtime/train/file_evaluation.h"

#include <algorithm>
#include <vector>

#include "runtime/core/exact_sum.h"
#include "runtime/data/source.h"

namespace holdfast {
namespace {

constexpr std::int32_t not_counted = -1;  // a target's value

// Windows one after another as batches of one shape; the last batch is filled up with targets that do not
// count.
class WindowBatches {
 public:
  WindowBatches(TokenSource& source, BatchShapeBT shape, std::int64_t vocabulary)
      : source_(&source),
        vocabulary_(vocabulary),
        batch_(static_cast<std::size_t>(shape.batch)),
        length_(static_cast<std::size_t>(shape.sequence_length)),
        inputs_(batch_ * length_),
        targets_(batch_ * length_),
        window_(length_ + 1) {}

  std::uint64_t windows() const { return (source_->token_count() - 1) / length_; }

  Result<void> read(std::uint64_t first_window) {
    std::ranges::fill(inputs_, 0);
    std::ranges::fill(targets_, not_counted);
    const std::uint64_t count = std::min<std::uint64_t>(batch_, windows() - first_window);
    for (std::size_t i = 0; i < count; ++i) {
      HF_TRY_VOID(source_->read((first_window + i) * length_, window_, vocabulary_));
      const auto at = static_cast<std::ptrdiff_t>(i * length_);
      std::copy(window_.begin(), window_.end() - 1, inputs_.begin() + at);
      std::copy(window_.begin() + 1, window_.end(), targets_.begin() + at);
    }
    return {};
  }

  std::span<const std::int32_t> inputs() const { return inputs_; }
  std::span<const std::int32_t> targets() const { return targets_; }

 private:
  TokenSource* source_;
  std::int64_t vocabulary_;
  std::size_t batch_, length_;
  std::vector<std::int32_t> inputs_, targets_, window_;
};

}  // namespace

Result<double> evaluate_file(Env& env, InferenceModel& model, const std::string& path) {
  const BatchShapeBT shape = model.shape();
  HF_TRY(std::string format, detect_format(env, path));
  constexpr std::int64_t shortest = 1;  // a file too short for one window gets the sentence below
  HF_TRY(const std::unique_ptr<TokenSource> source,
         TokenSource::open(env, {.path = path, .format = std::move(format)}, shortest));
  WindowBatches batches(*source, shape, model.spec().vocabulary);
  if (batches.windows() == 0) {
    return fail(ExitCode::data,
                "{} holds {} tokens, but one window of {} tokens and the token after it need {}. Use a "
                "larger file, or give "
                "a sequence length of {} or less",
                path, source->token_count(), shape.sequence_length, shape.sequence_length + 1,
                source->token_count() - 1);
  }
  ExactSum sum;
  for (std::uint64_t window = 0; window < batches.windows();
       window += static_cast<std::uint64_t>(shape.batch)) {
    HF_TRY_VOID(batches.read(window));
    sum.add(model.loss_sum(batches.inputs(), batches.targets()));
  }
  return sum.value() /
         static_cast<double>(batches.windows() * static_cast<std::uint64_t>(shape.sequence_length));
}

}  // namespace holdfast
