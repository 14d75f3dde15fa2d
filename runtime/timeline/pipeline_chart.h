// One step of one pipeline as inline SVG: a row for each rank, a box for each forward and backward, its
// colour that of its microbatch, a bar for what was waited for, and a line for each message. Colours come
// from pipeline_chart_style by class. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/timeline/step_analysis.h"

namespace holdfast::inline timeline {

// `transfers` of the step; those between ranks that are not in it are left out.
std::string pipeline_chart(const PipelineStep& step, const ScheduleShape& schedule,
                           const std::vector<Transfer>& transfers);
// Entries of the legend for what is in the step.
std::string pipeline_legend(const PipelineStep& step, const ScheduleShape& schedule);

extern const std::string_view pipeline_chart_style;

}  // namespace holdfast::inline timeline
