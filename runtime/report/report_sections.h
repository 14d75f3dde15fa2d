// The parts of the report that are about what disturbed the run: for faults where the time of the run went, as a picture over time, and
// every fault with what was done about it; for wrong numbers the verdicts. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/health/straggler_log.h"
#include "runtime/report/report_chart.h"
#include "runtime/run/incident_log.h"
#include "runtime/run/numbers_log.h"

namespace holdfast::report {

// Cards of HTML; empty for a run that nothing disturbed.
std::string faults_section(const IncidentLog& ledger);
// Returns a card with the picture of where the time of the log went, with its faults and saves. `remark`: HTML below it.
std::string time_section(const IncidentLog& ledger, std::string_view title, std::string_view remark = "");
// Style for html_page().
extern const std::string_view fault_style;

// Wrong numbers: every verdict on a step, the hardware that verdicts blame, and marks for the curves.

// Returns a card of HTML; empty for a run without verdicts.
std::string numbers_section(const NumbersLog& numbers);
// Returns marks at the steps that verdicts are about, coloured by action: the last 200 of each action.
std::vector<ChartMarker> verdict_markers(const NumbersLog& numbers);
// Returns entries for the legend of a chart that has these marks.
std::string verdict_legend(const std::vector<ChartMarker>& markers);
// Style for html_page().
extern const std::string_view numbers_style;

// Slow ranks: a heat map of the ranks over the steps, and who was named.

// Returns a card of HTML; empty where there are no times of several ranks.
std::string ranks_section(const StragglerLog& log, const std::vector<RankTimesEpoch>& epochs);
// Style for html_page().
extern const std::string_view ranks_style;

}  // namespace holdfast::report
