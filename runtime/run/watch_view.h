// The view of `holdfast status RUN --watch`: how a run stands, in as many lines as a terminal has. Pure; the command reads
// the run and draws.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/run/run_summary.h"

namespace holdfast::run {

struct WatchLook {
  int columns = 0, rows = 0;  // 0: no limit
  bool has_colors = false;    // escape sequences of a terminal
};

// Returns the lines without newlines, each cut to the columns. Where there are more lines than rows, the ranks that wait
// the longest are shown, and how many are not. Foreign text is printable.
std::vector<std::string> watch_lines(const RunSummary& run, std::int64_t now_us, const WatchLook& look);

// Returns the beginning of a UTF-8 text, of so many characters; where that is not all of it, the last one is "~".
std::string cut_to(std::string_view text, int columns);

}  // namespace holdfast::run
