// Decides which op updates the weights of a run: the only place that knows the rules behind optimizer.name. Everything else
// takes kinds and bytes of the state from OptimizerConfig, and treats all ops alike for which is_update() holds.
#pragma once

#include "kernels/optimizer.h"
#include "runtime/config/config.h"
#include "runtime/core/check.h"

namespace holdfast::optim {

// Calls visit(op) with an update whose coefficients are those of the config, and the rest as made. Returns its result, which
// has the same type for every rule.
auto visit_update(const OptimizerConfig& config, const auto& visit) {
  const auto with = [&]<typename Update>(Update op) {
    HF_CHECK(Update::moment_count == config.moment_count());
    op.beta1 = static_cast<float>(config.beta1);
    op.beta2 = static_cast<float>(config.beta2);
    if constexpr (requires { op.epsilon; }) op.epsilon = static_cast<float>(config.epsilon);
    op.ema_rest = config.ema > 0.0 ? static_cast<float>(1.0 - config.ema) : 0.0F;
    op.moments = config.moment_type();
    return visit(op);
  };
  return config.name == "lion" ? with(Lion{}) : with(AdamW{});
}

}  // namespace holdfast::optim
