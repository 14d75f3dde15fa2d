// Formats what `holdfast simulate` says of a study: a table for a terminal, JSON, and one page. Pure; no time of the machine
// is in them, so the same seeds give the same bytes.
#pragma once

#include <string>

#include "tools/simulate/study.h"

namespace holdfast::launch::fleet {

std::string study_text(const Study& study);
std::string study_json(const Study& study);
std::string study_html(const Study& study);

}  // namespace holdfast::launch::fleet
