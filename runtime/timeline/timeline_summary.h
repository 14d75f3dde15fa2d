// The timeline in words, for a console. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/timeline/step_analysis.h"

namespace holdfast::inline timeline {

double median_step_ms(const PipelineTimes& pipeline);
// "steps 3 to 5 of 2 ranks: 1f1b, 2 stages, 8 microbatches; cpu, ..."
std::string describe_timeline(const Timeline& timeline, const PipelineTimes& pipeline);
// Several lines: where each rank's time went, and the bubble of each pipeline beside the formula.
std::string timeline_summary(const Timeline& timeline, const std::vector<PipelineTimes>& pipelines);

}  // namespace holdfast::inline timeline
