// The table of another trainer's operations, from the first line to what is lost to its ranks.
#include "runtime/report/operations_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "tests/fuzz/fuzz.h"

namespace holdfast::fuzz {
namespace {

void check_answer(const TracedJob& job, const WhatIf& answer) {
  require(std::isfinite(answer.original_s) && answer.original_s >= 0.0, "a job takes no time that there is");
  require(std::isfinite(answer.ideal_s) && answer.ideal_s >= 0.0, "an ideal job takes no time that there is");
  require(std::isfinite(answer.worker_share) && std::isfinite(answer.last_stage_share), "no share");
  require(answer.lost.size() == std::min<std::size_t>(64, job.workers.size()), "a rank is not rated");
  for (const LostTime& lost : answer.lost)
    require(std::isfinite(lost.lost_s) && lost.lost_s <= answer.original_s, "more is lost than there was");
  require(answer.blamed.size() <= answer.slowest.size(), "one that is not slow is to blame");
  require(!what_if_summary(job, answer).empty(), "an answer without a word");
}

bool run_operations(Input input) {
  const auto refused = [](const Error& error) {
    require_sentence(error, {ExitCode::data});
    return false;
  };
  Result<std::vector<TracedOperation>> operations = parse_operations(text_of(input), "there");
  if (!operations.ok()) return refused(operations.error());
  const Result<TracedJob> job = job_of(std::move(*operations), "there");
  if (!job.ok()) return refused(job.error());
  const Result<WhatIf> answer = ask_what_if(*job);
  if (!answer.ok()) return refused(answer.error());
  check_answer(*job, *answer);
  return true;
}

constexpr const char* header = "step\trank\treplica\tstage\tchunk\tkind\tbegin_s\tduration_s\n";

// Two stages of two replicas with a message each way, and what follows.
std::vector<Seed> operations_seeds() {
  std::string text = header;
  const auto add = [&](int rank, const char* kind, double begin_s, double duration_s) {
    text +=
        fmt::format("7\t{}\t{}\t{}\t0\t{}\t{}\t{}\n", rank, rank / 2, rank % 2, kind, begin_s, duration_s);
  };
  for (const int first : {0, 2}) {
    add(first, "params-all-gather", 0.0, 0.5);
    add(first, "forward-compute", 0.5, 1.0 + first);
    add(first, "forward-send", 1.5 + first, 0.25);
    add(first + 1, "forward-recv", 0.0, 1.75 + first);
    add(first + 1, "forward-compute", 1.75 + first, 1.0);
    add(first + 1, "backward-compute", 2.75 + first, 2.0);
    add(first + 1, "backward-send", 4.75 + first, 0.25);
    add(first, "backward-recv", 1.75 + first, 3.25);
    add(first, "backward-compute", 5.0 + first, 2.0);
    for (const int rank : {first, first + 1}) {
      add(rank, "gc", 7.0 + first, 0.125);
      add(rank, "grads-reduce-scatter", 7.25 + first, 2.75 - first);
      add(rank, "optimizer-clip-main-grad", 10.0, 0.5);
      add(rank, "optimizer", 10.5, 1.0);
    }
  }
  return {{"two-by-two", bytes_of_text(text)},
          {"one", bytes_of_text(std::string(header) + "0\t0\t0\t0\t-1\toptimizer\t-1e3\t2")}};
}

constexpr std::string_view operations_words[] = {"\t",
                                                 "\n",
                                                 "\t0\t",
                                                 "\t-1\t",
                                                 "\t1e12\n",
                                                 "\t-1e12\t",
                                                 "nan",
                                                 "inf",
                                                 "16384",
                                                 "1048576",
                                                 "18446744073709551615",
                                                 "forward-compute",
                                                 "backward-compute",
                                                 "forward-send",
                                                 "forward-recv",
                                                 "backward-send",
                                                 "backward-recv",
                                                 "params-all-gather",
                                                 "grads-reduce-scatter",
                                                 "separate-grads-all-reduce",
                                                 "embedding-grads-all-reduce",
                                                 "optimizer-clip-main-grad",
                                                 "optimizer"};

}  // namespace

extern const Target operations_target;
const Target operations_target{.name = "operations",
                               .run = run_operations,
                               .seeds = operations_seeds,
                               .memory_per_byte = 256,
                               .memory_beside = 64 << 10,
                               .words = operations_words};

}  // namespace holdfast::fuzz
