// chaos.json and chaos.html of a campaign. Pure.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/chaos/chaos_run.h"
#include "runtime/chaos/chaos_summary.h"

namespace holdfast::inline chaos {

// Beside the runs: what a reader must know to repeat it.
struct ChaosHeader {
  std::string name = {};     // of the page
  std::string command = {};  // that repeats it
  std::string program = {};  // "holdfast 0.1.0 (commit)"
  std::string host = {};
  std::string digest = {};                         // of the undisturbed run
  std::map<ChaosFault, std::string> skipped = {};  // and why
  std::int64_t duration_ms = 0;
};

std::string chaos_json(const ChaosHeader& header, std::span<const ChaosRun> runs,
                       const ChaosSummary& summary);
std::string chaos_html(const ChaosHeader& header, std::span<const ChaosRun> runs,
                       const ChaosSummary& summary);

}  // namespace holdfast::inline chaos
