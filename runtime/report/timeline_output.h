// Writes a timeline as a trace for viewers, and as lines for a console. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/report/step_analysis.h"

namespace holdfast::report {

// Returns a file for Perfetto (ui.perfetto.dev) and chrome://tracing: the "Trace Event Format" in JSON. It has
// a process for each rank; in it a thread for what the device computes, one for the host (its step, waves and
// waits), and as many for transfers as there are at once. Arrows lead from where a message was sent to where
// it arrived. Times are microseconds from the first step's begin.
std::string chrome_trace(const Timeline& timeline);

// Returns several lines: "steps 3 to 5 of 2 ranks: 1f1b, 2 stages, 8 microbatches; cpu, ...", where each
// rank's time went, and the bubble of each pipeline beside the formula.
std::string timeline_summary(const Timeline& timeline, const std::vector<PipelineTimes>& pipelines);

}  // namespace holdfast::report
