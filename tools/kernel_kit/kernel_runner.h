// KernelRunner: runs implementations on a team of threads of its own, with working memory that it looks after, and
// tells what a kernel of a plug-in did that it may not do.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/cpu/context.h"
#include "kernels/cpu/matmul_cache.h"
#include "kernels/cpu/team.h"
#include "kernels/implementation.h"

namespace holdfast::bench::kernel_kit {

class KernelRunner {
 public:
  explicit KernelRunner(int threads);

  // Computes the call; `poison` is what the workspace of a plug-in's kernel holds before. Returns a clause about what
  // that kernel did wrong, besides its numbers; empty: nothing.
  std::string run(const Implementation& kernel, const void* arguments, std::byte poison);
  // Takes the memory that the kernel needs for the call, as a device does when it plans a step, and computes the call on it,
  // as in a step.
  void prepare(const Implementation& kernel, const void* arguments);
  void run_prepared(const Implementation& kernel, const void* arguments) {
    kernel.run_on(context_, arguments);
  }
  int threads() const { return team_.threads(); }

 private:
  std::string run_plugin(const Implementation& kernel, const void* arguments, std::byte poison);

  cpu::Team team_;
  cpu::Scratch scratch_;
  cpu::MatmulCache matmuls_;
  cpu::Context context_;
};

}  // namespace holdfast::bench::kernel_kit
