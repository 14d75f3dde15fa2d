// WorkLossReader reads from an event log the work that a run lost each time that something in it died, and
// the cost that the run had promised as a maximum (its failure_cost event). Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/run/event.h"

namespace holdfast::chaos {

// Figures of a failure_cost event; none: all of the work is lost.
struct ReportedCost {
  std::optional<double> process_ms = {}, host_ms = {}, job_ms = {};
};

// A loss of ranks, however many died before the next step was made.
struct WorkLoss {
  std::int64_t noticed_us = 0, resumed_us = 0;  // resumed_us: the end of the first step after it
  std::uint64_t steps = 0;                      // number of steps that were computed again
  // Duration of a step before the loss: the median, so that a moment in which the machine was busy does not
  // count as work.
  double step_ms = 0.0;
  double unfinished_ms = 0.0;                 // part of the step that was under way; at most step_ms
  std::optional<ReportedCost> reported = {};  // newest figures in this start; none: not published yet

  double lost_ms() const { return static_cast<double>(steps) * step_ms + unfinished_ms; }
};

// Takes the events of a log in its order.
class WorkLossReader {
 public:
  void read(const Json& event);
  // Returns the losses after which a step was made.
  std::vector<WorkLoss> finish() && { return std::move(losses_); }

 private:
  void read_step(const StepEvent& event);
  void open(std::int64_t noticed_us, std::uint64_t step);
  void begin_epoch();
  double usual_step_ms();

  static constexpr std::size_t kept = 9;         // number of durations
  static constexpr std::int64_t slow_steps = 2;  // slow steps of an epoch: they touch memory for the first
                                                 // time
  std::vector<WorkLoss> losses_;
  std::optional<WorkLoss> open_;  // steps: not known yet
  std::uint64_t open_step_ = 0;   // newest step before the loss
  std::optional<ReportedCost> reported_;
  std::array<double, kept> durations_ms_ = {};
  std::int64_t steps_of_epoch_ = 0;
  double usual_ms_ = 0.0;
  std::uint64_t step_ = 0;
  std::int64_t step_us_ = 0, last_us_ = 0;
  bool begun_ = false, stopped_ = false;
};

}  // namespace holdfast::chaos
