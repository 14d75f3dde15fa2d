// SharedSlowness: tells slowness of which no single rank is the cause: a link between two hosts that is slow, and all
// ranks that compute more slowly alike. Pure: the same blocks of steps give the same verdicts.
//
//   SharedSlowness rule(places);
//   for (const StragglerVerdict& verdict : rule.take(steps)) tell(verdict);
//
// Link. Others wait for a rank that computes slowly, and it waits for nobody. Two ranks that wait for each other are held
// up by what is between them, so the smaller of both waits counts, in milliseconds of a step. The stages of a healthy
// pipeline wait for each other, too, the longer the more they compute: what is above the usual wait of that pair, and
// that grown with their own times, is compared with the usual time of a step. A host whose cable is slow has many such
// pairs; the worst is named, and none that shares a host with it.
//
// All. A quarter of the ranks, or one, is the least slowed; by how much its own time is above what was usual for it.
//
// Both are charts as those of the StragglerRule (straggler_rule.h has the sources) of blocks of a quarter of a second, and
// what was usual is the median of the first 24. What is slow from the start is not noticed.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/peer_waits.h"
#include "runtime/health/rank_times.h"
#include "runtime/health/straggler_rule.h"

namespace holdfast::health {

// The table of the rule; times as logarithms, or by the usual time of a step.
struct SharedTerms {
  struct Chart {
    double allowance = 0.0, clip = 0.0;  // as those of StragglerTerms::Chart
    double factor_min = 1.0;             // of the time of a step: less is no verdict
    int slow_blocks_min = 0;
  };
  Chart link = {.allowance = 0.15, .clip = 0.6, .factor_min = 1.15, .slow_blocks_min = 16};
  Chart all = {.allowance = 0.17, .clip = 0.42, .factor_min = 1.25, .slow_blocks_min = 40};
  double block_seconds = 0.25;
  int warmup_blocks = 4, usual_blocks = 24;
  double usual_memory = 512.0;   // blocks, by which what is usual follows later ones that are not slow
  double log_blocks = 15.0;      // e^15 blocks until a false alarm, by the bounds
  double prior_variance = 0.02;  // of the noise in the first blocks
  double highest_factor = 2.0;   // of the highest sum that a chart came back from
  double over_excess = 0.08, over_sum = 1.2;
};

class SharedSlowness {
 public:
  explicit SharedSlowness(std::span<const RankPlace> places, const SharedTerms& terms = {});

  // Steps in a row, of all ranks by their index: the sums of their times, and whom they waited for.
  struct Steps {
    std::uint64_t first_step = 0, last_step = 0;
    double seconds = 0.0;
    std::span<const StepTimes> times = {};
    std::span<const PeerWaits> waits = {};  // peers as RankPlace::rank has them
  };
  // Returns what is new. Valid until the next call.
  std::span<const StragglerVerdict> take(const Steps& steps);
  // Returns the verdicts that stand, with the numbers up to the last block.
  std::vector<StragglerVerdict> standing() const;

 private:
  struct Chart {
    LongRunVariance noise;
    double highest = 0.0;  // sum that it came back from
    double sum = 0.0, peak = 0.0, recovered = 0.0;
    bool named = false;
    std::uint64_t since_step = 0;
    int blocks = 0;  // since then
    double seconds = 0.0, usual_seconds = 0.0, lost_seconds = 0.0;
  };
  // One block of one chart, in times of a step by what is usual.
  struct Value {
    double excess = 0.0, factor = 1.0, lost_ms = 0.0;
  };
  struct Pair {
    Chart chart;
    double there_ms = 0.0, back_ms = 0.0;  // waits in the block, both ways
    std::vector<double> first = {};        // smaller waits of a step in the first blocks
    double usual_ms = 0.0;
  };
  enum class News { none, named, over };

  void add(const Steps& steps);
  void take_block();
  void learn();
  void compare();
  void compare_pairs(double step_ms);
  bool shares_host_with_named(int one, int other) const;
  Chart new_chart() const { return {.noise = LongRunVariance(terms_.prior_variance)}; }
  News follow(Chart& chart, const SharedTerms::Chart& terms, const Value& value, bool may_name) const;
  void tell(Chart& chart, News news, int rank, int peer);
  StragglerVerdict verdict_of(const Chart& chart, int rank, int peer) const;
  double own_ms(std::size_t rank) const { return sums_[rank].own_ms() / steps_; }

  SharedTerms terms_;
  std::vector<std::string> hosts_;  // by index
  std::map<int, int> index_of_;     // by RankPlace::rank
  // The block in hand.
  std::uint64_t first_step_ = 0, last_step_ = 0;
  double steps_ = 0.0, seconds_ = 0.0;
  std::vector<StepTimes> sums_;
  int blocks_ = 0;
  std::vector<std::vector<double>>
      first_;                     // own times of the first blocks, by rank, and behind them the step's
  std::vector<double> usual_ms_;  // the same, as learned
  std::map<std::pair<int, int>, Pair> pairs_;  // of indices, the lower first, on two hosts
  Chart all_;
  std::vector<double> slower_;  // scratch
  std::vector<StragglerVerdict> news_;
};

}  // namespace holdfast::health
