// The timeline as a file for Perfetto (ui.perfetto.dev) and chrome://tracing: the "Trace Event Format" in
// JSON. A process for each rank; in it a thread for what the device computes, one for the host (its step,
// waves and waits), and as many for transfers as there are at once. Arrows lead from where a message was sent
// to where it arrived. Times are microseconds from the first step's begin. Pure.
#pragma once

#include <string>

#include "runtime/timeline/timeline.h"

namespace holdfast::inline timeline {

std::string chrome_trace(const Timeline& timeline);

}  // namespace holdfast::inline timeline
