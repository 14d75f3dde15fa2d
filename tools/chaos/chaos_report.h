// Reports of a campaign: chaos.json and chaos.html. Pure.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "tools/chaos/chaos_run.h"
#include "tools/chaos/chaos_summary.h"

namespace holdfast::chaos {

// Facts about a campaign, in addition to its runs, that a reader needs to repeat it.
struct ChaosHeader {
  std::string name = {};     // title of the page
  std::string command = {};  // command that repeats the campaign
  std::string program = {};  // "holdfast 0.1.0 (commit)"
  std::string host = {};
  std::string digest = {};                         // digest of the undisturbed run
  std::map<ChaosFault, std::string> skipped = {};  // faults that were not used, with the reason
  std::int64_t duration_ms = 0;
};

std::string chaos_json(const ChaosHeader& header, std::span<const ChaosRun> runs,
                       const ChaosSummary& summary);
std::string chaos_html(const ChaosHeader& header, std::span<const ChaosRun> runs,
                       const ChaosSummary& summary);

}  // namespace holdfast::chaos
