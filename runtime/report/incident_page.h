// The page of one incident: what each rank was at, who and why, what was decided, what it cost, what would have been
// cheaper, and what to do. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/report/incident.h"
#include "watchdog/flight_record.h"

namespace holdfast::report {

// Returns one file of HTML without scripts. `flights`: what each rank was at; empty where nothing was recorded.
std::string incident_page(const std::string& run_directory, const Incident& incident,
                          const std::vector<FlightRecord>& flights);

}  // namespace holdfast::report
