// The part of the report that is about wrong numbers: every verdict on a step, the hardware that verdicts
// blame, and marks for the curves. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/report/report_chart.h"
#include "runtime/run/numbers_log.h"

namespace holdfast::report {

// Returns a card of HTML; empty for a run without verdicts.
std::string numbers_section(const NumbersLog& numbers);
// Returns marks at the steps that verdicts are about, coloured by action: the last 200 of each action.
std::vector<ChartMarker> verdict_markers(const NumbersLog& numbers);
// Returns entries for the legend of a chart that has these marks.
std::string verdict_legend(const std::vector<ChartMarker>& markers);
// Style for html_page().
extern const std::string_view numbers_style;

}  // namespace holdfast::report
