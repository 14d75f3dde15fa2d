// Functions shared by the files that make samples: each knows the ops of one part of a model, and returns
// none for others.
#pragma once

#include "kernels/visit_op.h"  // every op
#include "runtime/bench/op_samples.h"

namespace holdfast::inline bench {

using Samples = std::vector<OpSample>;

Samples layer_samples(OpId id, const SampleSource& source);  // embedding and blocks
Samples head_samples(OpId id, const SampleSource& source);   // the loss, and sums over slices
// Returns the samples of ops that go through parameters and gradients: they have the sizes of the model's
// tensors; batches do not matter.
Samples parameter_samples(OpId id, const SampleSource& source);

}  // namespace holdfast::inline bench
