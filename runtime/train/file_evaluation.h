// The loss of a trained model on one data file: `holdfast evaluate`.
#pragma once

#include <string>

#include "runtime/core/env.h"
#include "runtime/core/result.h"
#include "runtime/train/inference.h"

namespace holdfast {

// Mean loss per predicted token over the floor((tokens - 1) / N) consecutive windows of N =
// model.shape().sequence_length tokens, window i predicting tokens i*N + 1 to i*N + N. The format of the file
// is the one its magic says: llm.c shards, else text. The sum over batches is exact. ExitCode::data when the
// file is bad or shorter than one window.
Result<double> evaluate_file(Env& env, InferenceModel& model, const std::string& path);

}  // namespace holdfast
