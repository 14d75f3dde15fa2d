#include "runtime/train/run_state_check.h"

#include <algorithm>
#include <bit>

namespace holdfast::train {
namespace {

// WordChain is a running digest that allocates nothing.
class WordChain {
 public:
  void add(std::uint64_t one, std::uint64_t other) { add({.high = one, .low = other}); }
  void add(const Digest& digest) { value_ = chain(value_, digest); }
  const Digest& value() const { return value_; }

 private:
  Digest value_ = {};
};

}  // namespace

void RunPosition::begin(const RunState& state, std::uint64_t samples_per_step) {
  begin_ = {.step = state.step, .data_cursor = state.data_cursor};
  made_ = 0;
  samples_per_step_ = std::max<std::uint64_t>(1, samples_per_step);
}

bool RunPosition::is_at(const RunState& state) const {
  if (!begin_.has_value()) return true;
  return state.step == begin_->step + made_ &&
         state.data_cursor == begin_->data_cursor + made_ * samples_per_step_;
}

std::uint64_t RunPosition::step_of(const RunState& state) const {
  if (!begin_.has_value()) return state.step;
  const std::uint64_t read = state.data_cursor - begin_->data_cursor, counted = begin_->step + made_;
  const bool agree = read == made_ * samples_per_step_;
  return agree ? counted : state.step;
}

Digest digest_of_run_state(const RunState& state) {
  WordChain words;
  words.add(digest_of(state.run_id));
  words.add(state.generation, state.step);
  words.add(state.data_cursor, state.jumps.size());
  words.add(state.data_digest);
  words.add(state.loss_digest);
  words.add(state.data_fingerprint);
  for (const DataJump& jump : state.jumps) {
    words.add(jump.at_step, jump.data_cursor);
    words.add(jump.times, 0);
  }
  for (const PositionRange& range : state.left_out) words.add(range.begin, range.end);
  const NumbersHistory& numbers = state.numbers;
  words.add(static_cast<std::uint64_t>(numbers.size()), numbers.skipped().size());
  for (std::int64_t age = 0; age < numbers.size(); ++age) {
    const CommittedNumbers& each = numbers.newest(age);
    words.add(each.step, std::bit_cast<std::uint64_t>(each.loss));
    words.add(std::bit_cast<std::uint64_t>(each.grad_norm), 0);
  }
  for (const std::uint64_t step : numbers.skipped()) words.add(step, 0);
  return words.value();
}

}  // namespace holdfast::train
