// Faults of kernels of plug-ins that a run has had: RUN/kernel_faults has a file for each build of each kernel, so that guards
// and ranks of several hosts may write at once, and the same thing twice. By these files a run with kernels.on_failure =
// "fall_back" leaves a kernel out for good; one of a library with other bytes is another kernel.
//
//   {"kernel":{"op":"rotary","implementation":"mine","digest":"5c1d7a0e93b2f864","library":"mine.so"},"how":2,"rank":1,"host":"a","step":9}
#pragma once

#include "runtime/core/kernel_fault.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

// Writes those that have no file yet; what is no name of a kernel is left out. Without a run directory nothing is written: a
// start that was refused leaves none.
Result<void> keep_kernel_faults(Env& env, const RunPaths& paths, const KernelFaults& faults);
// Reads all, by op, implementation and digest. What cannot be read counts as absent: the kernel fails once more.
KernelFaults read_kernel_faults(Env& env, const RunPaths& paths);
// Removes those about the kernels of an op, or all (empty), and returns them.
Result<KernelFaults> forget_kernel_faults(Env& env, const RunPaths& paths, const std::string& op);

}  // namespace holdfast::run
