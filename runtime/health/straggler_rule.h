// StragglerRule: names ranks that compute more slowly than the others, so that all wait for them. Pure: it
// takes the times of all ranks step by step, and the same times give the same verdicts.
//
//   StragglerRule rule(work);
//   for (const StragglerVerdict& verdict : rule.take(step, times, step_seconds)) tell(verdict);
//
// A rank is compared with those that do the same work (same stage, other data replicas and tensor
// slices). Where there are none (a pipeline alone), all ranks by what was usual between them in the first
// steps, so a stage that is slow from the start is not noticed there.
//
// Source: the CUSUM change-point test of E. S. Page (Biometrika 41, 1954) on the logarithm of a rank's own time
// to that of its peers. Its threshold follows from the data: by the bounds of Wald and Bernstein the sum of terms
// of long-run variance V, none above M, less an allowance k each, exceeds h once in e^L steps if
// h = L (V / 2k + M / 3) (D. Siegmund, Sequential Analysis, 1985, for the Brownian part). V is estimated by batch
// means of 8, 32 and 128 steps (successive differences, so that a change counts once), the largest counts: noise
// that stays on one rank for some steps has a large V.
//
// The noise that a rank is judged by is that of its peers when they are slower than it. Ranks of a healthy machine
// have noise of the same kind, and a rank that is slow in bursts does not hide in its own. So h is also at least
// twice the highest sum that a peer has come back from, and rises with what peers did in the last steps; and a rank
// that is slow in some steps only must be so far more than any of them: ranks that trade processors are not named.
//
// Steps of a few milliseconds are taken together up to 50 ms (what is called a step below is then such a block): what
// stops a process now and then is in few of them, and lasts long in those.
//
// A step's excess is measured against the mean of the peers' excess over the median of all, which is 0 for ranks
// with noise of the same kind, however heavy its tail; clipping at M then only makes false alarms rarer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/health/step_times.h"

namespace holdfast::health {

// Says what one rank has to compute. Ranks of one `group` do the same work in a step, but for its amount, `weight`,
// of forward, backward and input: the tokens that the rank computes.
struct RankWork {
  int group = 0;
  double weight = 1.0;
};

// The table of the rule.
struct StragglerTerms {
  // Charts of each rank: for bursts that are long beside a step and far slower ranks, for large factors, for small ones.
  struct Chart {
    double allowance = 0.0;  // k: excess of a step, as a logarithm, that is not counted
    double clip = 0.0;       // M: largest excess of one step
  };
  std::array<Chart, 3> charts = {{{0.13, 1.10}, {0.17, 0.42}, {0.09, 0.30}}};
  double log_steps = 15.0;         // L: e^L steps of one rank until a false alarm, by the bounds
  double whole_variance = 3.0;     // V of noise by that of its upper half, which is what is seen of peers
  double peers_factor = 2.0;       // of the highest sum that a peer came back from
  double memory_steps = 20'000.0;  // after so many steps half of that sum counts
  double prior_variance = 0.01;    // V of the first steps, as if four batches had had it
  double block_seconds = 0.05;  // steps that are shorter count together, as their mean, until it is so long
  int warmup_steps = 4;         // that a process begins with: they are slow, and count for nothing
  int early_steps = 128;        // in which thresholds are doubled, because little is known of the noise
  int slow_steps_min = 16;      // steps above the allowance that lead to a verdict
  // Time that it must have lasted, on a quiet machine and at most; it grows with the square of V by quiet_variance, and
  // is shorter by the square of the excess by usual_excess, where that is larger. Programs that share processors stay on
  // one for seconds, which nothing else tells from a slow rank.
  double seconds_min = 1.0, seconds_max = 60.0;
  double quiet_variance = 0.03, usual_excess = 0.4;
  double factor_min = 1.08;     // a smaller factor is no verdict
  double jitter_ms = 0.5;       // added to all times: what a host may need more or less at any size
  int baseline_steps = 64;      // where there are no peers
  double steady_share = 0.75;   // of slow steps: a rank with fewer comes and goes ...
  double recent_steps = 32.0;   // over which the excess of peers adds to the threshold ...
  double recent_factor = 2.0;   // ... so many times
  double ahead_of_peers = 2.5;  // ... and is named if its usual excess is so many times that of every peer
  double over_excess = 0.05;    // excess below which a rank that was named has recovered ...
  double over_sum = 6.4;        // ... when the difference has added up to this: 128 steps without any excess
};

// The rule names ranks; SharedSlowness names links, and all ranks together.
enum class StragglerKind : std::uint8_t { slow_rank, slow_input, slow_link, all_slow };
constexpr std::string_view name_of(StragglerKind kind) {
  constexpr std::string_view names[] = {"rank", "input", "link", "all"};
  return names[static_cast<std::size_t>(kind)];
}

struct StragglerVerdict {
  int rank = 0;   // all_slow: -1
  int peer = -1;  // slow_link: the other end
  StragglerKind kind = StragglerKind::slow_rank;
  StepPhase phase = StepPhase::forward;  // in which most of the excess is
  double factor = 1.0;                   // own time by that of its peers, of all steps since
  std::uint64_t since_step = 0;          // estimate of the first slow step
  std::uint64_t last_step = 0;           // that the numbers take in
  double lost_seconds = 0.0;             // by which it held up the others since then
  double seconds = 0.0;                  // that these steps took in all
  bool is_over = false;                  // it is as fast as its peers again
};

// LongRunVariance estimates the variance of a sum by its number of terms, where neighbours depend on each
// other.
class LongRunVariance {
 public:
  explicit LongRunVariance(double prior);
  void add(double value);
  double value() const;

 private:
  struct Batches {
    double sum = 0.0, last_mean = 0.0;
    int count = 0;
    bool has_last = false;
    double estimate = 0.0, weight = 0.0;  // of all batches, the later ones of the newest 64
  };
  std::array<Batches, 3> batches_{};
};

class StragglerRule {
 public:
  explicit StragglerRule(std::vector<RankWork> work, const StragglerTerms& terms = {});

  // Takes the next step: the times of all ranks, by rank, and the duration of the step. Returns what is new: a
  // rank that is named, or one that has recovered. Valid until the next call.
  std::span<const StragglerVerdict> take(std::uint64_t step, std::span<const StepTimes> times,
                                         double step_seconds);
  // Returns the verdicts that stand, with the numbers up to the last step.
  std::vector<StragglerVerdict> standing() const;

 private:
  // Adds up what has happened since the sum of a chart was 0, or since a rank was named.
  struct Excursion {
    std::uint64_t since_step = 0;
    int steps = 0, slow_steps = 0;
    double seconds = 0.0, own_ms = 0.0, expected_ms = 0.0, lost_ms = 0.0;
    std::array<double, step_phases> excess_ms{};
  };
  struct Chart {
    LongRunVariance noise;
    double sum = 0.0, peak = 0.0;
    // Mean of the excess above the allowance, of the newest 256 steps and of the newest 8,192.
    double usual = 0.0, usual_long = 0.0;
    double variance = 0.0;  // half the largest V of the noise, forgotten slowly
    double recent = 0.0;    // excess above the allowance in the last steps, added up
    double highest = 0.0;   // sum that it came back from
    Excursion excursion = {};
  };
  struct Rank {
    std::vector<Chart> charts;
    // Where there are no peers: own times by phase while it was as fast as usual, and how many.
    std::array<double, step_phases> usual_ms{};
    double usual_steps = 0.0;
    double offset_steps = 0.0;  // that the offset was learned from
    double offset = 0.0;        // of the logarithm of its own time to the others', where there are no peers
    bool named = false;
    std::uint64_t named_step = 0;
    double recovered = 0.0;  // sum of what a rank that was named is below over_excess
    Excursion since_named = {};
  };
  // One step of one rank, in the comparison.
  struct Seen {
    double own_ms = 0.0, log_own = 0.0;
    std::array<double, step_phases> phases_ms{};
    double waited_ms = 0.0;
    double expected_ms = 0.0, lost_ms = 0.0;
    std::array<double, step_phases> excess_ms{};
  };
  using Group = std::vector<int>;  // ranks

  Seen seen_of(int rank, const StepTimes& times) const;
  bool learns_offsets(const Group& group);
  void take_block();
  void compare(const Group& group);
  static double variance_of(const Chart& chart);
  void note_usual(Rank& rank, const Seen& seen) const;
  void fill_excess(const Group& group);
  void follow(const Group& group, std::size_t chart);
  double threshold(const StragglerTerms::Chart& terms, double variance, double peers_highest) const;
  double seconds_needed(const Excursion& excursion, double variance) const;
  void note(Excursion& excursion, const Seen& seen, bool slow) const;
  void name(int rank, const Excursion& excursion);
  void follow_named(int rank, double excess);
  StragglerVerdict verdict_of(int rank, std::uint64_t last_step) const;

  // Steps that count together.
  struct Block {
    std::uint64_t first_step = 0, last_step = 0;
    double steps = 0.0, seconds = 0.0;
    std::vector<StepTimes> sums = {};
  };

  StragglerTerms terms_;
  std::vector<RankWork> work_;
  Block block_;
  std::vector<double> scale_;  // of forward, backward and input, to the mean of the group
  std::vector<Group> groups_;
  bool has_peers_ = true;
  std::vector<Rank> ranks_;
  std::vector<Seen> seen_;
  std::vector<double> sorted_, excess_;        // scratch
  std::vector<std::vector<double>> baseline_;  // by rank, of the first steps
  std::uint64_t steps_ = 0;                    // blocks, strictly
  std::vector<StragglerVerdict> news_;
};

}  // namespace holdfast::health
