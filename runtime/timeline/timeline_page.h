// The timeline as a page: a self-contained HTML file with a picture of every step and the shares of time
// (docs/timeline.md). Pure.
#pragma once

#include <string>

#include "runtime/timeline/step_analysis.h"

namespace holdfast::inline timeline {

// `name`: of the run.
std::string timeline_page(const std::string& name, const Timeline& timeline,
                          const std::vector<PipelineTimes>& pipelines);

}  // namespace holdfast::inline timeline
