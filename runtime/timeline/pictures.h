// Writes a timeline as a page, as a trace for viewers, and as lines for a console. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/timeline/step_analysis.h"

namespace holdfast::inline timeline {

// Returns a self-contained HTML file with a picture of every step and the shares of time (docs/timeline.md).
// `name`: of the run.
std::string timeline_page(const std::string& name, const Timeline& timeline,
                          const std::vector<PipelineTimes>& pipelines);

// Returns a file for Perfetto (ui.perfetto.dev) and chrome://tracing: the "Trace Event Format" in JSON. It has
// a process for each rank; in it a thread for what the device computes, one for the host (its step, waves and
// waits), and as many for transfers as there are at once. Arrows lead from where a message was sent to where
// it arrived. Times are microseconds from the first step's begin.
std::string chrome_trace(const Timeline& timeline);

// The rest is text for a console.
double median_step_ms(const PipelineTimes& pipeline);
// "steps 3 to 5 of 2 ranks: 1f1b, 2 stages, 8 microbatches; cpu, ..."
std::string describe_timeline(const Timeline& timeline, const PipelineTimes& pipeline);
// Several lines: where each rank's time went, and the bubble of each pipeline beside the formula.
std::string timeline_summary(const Timeline& timeline, const std::vector<PipelineTimes>& pipelines);

}  // namespace holdfast::inline timeline
