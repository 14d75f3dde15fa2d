// The plan of a run's failures, time and price (reliability.h), for people and for programs. Pure.
#pragma once

#include <string>

#include "runtime/config/config.h"
#include "runtime/core/json.h"
#include "runtime/plan/reliability.h"

namespace holdfast::plan {

std::string reliability_text(const ReliabilityPlan& plan, const CostConfig& cost);
Json reliability_json(const ReliabilityPlan& plan, const CostConfig& cost);

}  // namespace holdfast::plan
