// The part of the report that is about faults: where the time of the run went, as a picture over time, and
// every fault with what was done about it. Pure.
#pragma once

#include <string>
#include <string_view>

#include "runtime/run/incident_log.h"

namespace holdfast::report {

// Cards of HTML; empty for a run that nothing disturbed.
std::string faults_section(const IncidentLog& ledger);
// Style for html_page().
extern const std::string_view fault_style;

}  // namespace holdfast::report
