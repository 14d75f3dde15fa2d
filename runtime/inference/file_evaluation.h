// Computes the loss of a trained model on one data file: `holdfast evaluate`.
#pragma once

#include <string>

#include "runtime/core/result.h"
#include "runtime/data/source.h"
#include "runtime/inference/inference.h"
#include "runtime/os/env.h"

namespace holdfast::inference {

// Returns the mean loss per target that counts (llmq shards can mask some) over the floor((tokens - 1) / N)
// consecutive windows of N = model.shape().sequence_length tokens, window i predicting tokens i*N + 1 to i*N
// + N. The format of the file is the one that its magic number says, else text. Attention stays inside
// documents if it did in training and the file says where they are. The sum over batches is exact. Fails with
// ExitCode::data when the file is bad or shorter than one window.
Result<double> evaluate_file(Env& env, InferenceModel& model, const std::string& path);
// Does the same for tokens that the caller has.
Result<double> evaluate_tokens(InferenceModel& model, const TokenSource& source);

}  // namespace holdfast::inference
