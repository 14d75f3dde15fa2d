// Judges a matrix product with a known result that some rank computed wrong (product_test.h). Unlike an audit, it
// says which rank that was without another one to compare with.
#pragma once

#include <vector>

#include "runtime/core/result.h"
#include "runtime/train/audited_step.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

// Makes the known products of this rank, in the memory of the gradients, which are not needed any more.
void test_products(Worker& worker);

// Says what is known after an attempt in whose vote some rank had a finding, which is forgotten. All ranks call it
// together.
Result<AuditedStep> judge_products(Worker& worker, const Attempt& attempt);

// Makes all known products on all ranks, and returns those that computed one wrong for good, ascending; none: there
// is no such rank, or they are of more than one copy of the model. All ranks call it together, when the gradients
// in memory are not needed any more.
Result<std::vector<int>> ranks_with_wrong_products(Worker& worker);

}  // namespace holdfast::train
