#include "runtime/train/numbers_origin.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "parallel/comm/gather.h"
#include "runtime/train/sample_text.h"

namespace holdfast::train {
namespace {

struct FoundOp {
  std::optional<CheckedOp> op = {};

  static void visit_fields(auto& self, auto&& visit) { visit("op", self.op); }
};

// TensorPart is the part of the squared norm that the blocks of a tensor have which one rank owns.
struct TensorPart {
  std::string name = {};
  double squares = 0.0;

  static void visit_fields(auto& self, auto&& visit) {
    visit("name", self.name);
    visit("squares", self.squares);
  }
};

struct LargestParts {
  std::vector<TensorPart> parts = {};

  static void visit_fields(auto& self, auto&& visit) { visit("parts", self.parts); }
};

struct SquareSumOfRanks {
  ExactSum squares = {};

  static constexpr void visit_words(auto& self, auto&& visit) { visit(self.squares); }
};

// Returns the squared norm of this rank's part of each tensor; of what all ranks of a tensor group have, once.
std::map<std::string, ExactSum> own_squares(Worker& worker) {
  std::map<std::string, ExactSum> squares;
  const bool counts_replicated = worker.rank().counts_replicated();
  std::span<const double> sums = worker.reduction().square_sums();
  for (const Segment& segment : worker.optimizer().segments()) {
    const std::span<const double> of_segment = sums.first(segment.block_count);
    sums = sums.subspan(segment.block_count);
    const BucketTensor& tensor = worker.workload().buckets.tensor(segment);
    if (!counts_replicated && tensor.is_replicated()) continue;
    ExactSum& sum = squares[tensor.name];
    for (const double each : of_segment) sum.add(each);
  }
  for (auto& [name, sum] : squares) sum.normalise();
  return squares;
}

// Returns the few largest parts. A tensor that has most of the norm is among them on some rank at least.
LargestParts largest_of(const std::map<std::string, ExactSum>& squares) {
  constexpr std::size_t parts_kept = 8;
  LargestParts largest;
  for (const auto& [name, sum] : squares) largest.parts.push_back({.name = name, .squares = sum.value()});
  std::ranges::stable_sort(largest.parts, std::ranges::greater(), &TensorPart::squares);
  largest.parts.resize(std::min(largest.parts.size(), parts_kept));
  return largest;
}

std::string largest_tensor(std::span<const LargestParts> of_ranks) {
  std::map<std::string, double> squares;
  for (const LargestParts& rank : of_ranks)
    for (const TensorPart& part : rank.parts) squares[part.name] += part.squares;
  if (squares.empty()) return "";
  return std::ranges::max_element(squares, {}, [](const auto& each) { return each.second; })->first;
}

}  // namespace

Result<CheckedAttempt> attempt_with_checks(Worker& worker, std::span<const AttemptBits> earlier,
                                           int audit_retry) {
  StepChecks* const checks = worker.checks().ops_on(worker.rank().device);
  if (checks != nullptr) checks->begin();
  Result<Attempt> attempt = attempt_again(worker, earlier, audit_retry);
  if (checks != nullptr) checks->end();
  CheckedAttempt checked;
  HF_TRY(checked.attempt, std::move(attempt));
  if (checks != nullptr) checked.first_nonfinite = checks->result().first_nonfinite;
  return checked;
}

Result<void> name_first_op(Worker& worker, const std::optional<CheckedOp>& found, VerdictEvent& report) {
  HF_TRY(const std::vector<FoundOp> ranks,
         gather(worker.rank().communicator, worker.rank().waiter, FoundOp{found}));
  const CheckedOp* first = nullptr;
  for (const FoundOp& rank : ranks) {
    if (!rank.op.has_value()) continue;
    if (first == nullptr || is_computed_before(*rank.op, *first)) first = &*rank.op;
  }
  if (first == nullptr) return {};
  report.op = first->op;
  const OpScope& scope = first->scope;
  if (scope.pass == OpScope::Pass::none) return {};
  report.layer = part_name(scope);
  report.pass = pass_name(scope);
  report.lane = scope.lane;
  report.microbatch = scope.microbatch;
  report.samples = describe_samples(worker.data(), worker.rank().config, worker.state().data_cursor,
                                    scope.lane, scope.microbatch);
  return {};
}

Result<void> name_largest_tensor(Worker& worker, const Attempt& attempt, VerdictEvent& report) {
  const double all_squares = attempt.sums.square_norm.value();
  const std::map<std::string, ExactSum> squares = own_squares(worker);
  HF_TRY(const std::vector<LargestParts> ranks,
         gather(worker.rank().communicator, worker.rank().waiter, largest_of(squares)));
  const std::string name = largest_tensor(ranks);
  if (name.empty() || all_squares <= 0.0) return {};
  SquareSumOfRanks sum;
  if (const auto own = squares.find(name); own != squares.end()) sum.squares = own->second;
  HF_TRY_VOID(sum_over_ranks(worker.rank().communicator, worker.rank().waiter, sum));
  report.tensor = name;
  report.share = sum.squares.value() / all_squares;
  return {};
}

}  // namespace holdfast::train
