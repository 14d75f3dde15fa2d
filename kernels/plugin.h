// A kernel of a plug-in, as a registry's implementation has it (kernels/plugin_loader.h).
#pragma once

#include <cstddef>
#include <string>

#include "kernels/implementation.h"
#include "kernels/include/holdfast_kernel.h"
#include "runtime/core/kernel_fault.h"

namespace holdfast::kernels {

// PluginFile is a loaded library. It stays loaded until the process ends, because its kernels may be running.
struct PluginFile {
  std::string path = {};
  std::string digest = {};  // of the file's bytes, 32 hexadecimal digits
  std::string source = {};  // what hf_source() says: a git commit, and "dirty"; empty: nothing
};

// Returns "mine/kernel.so (digest 0123456789abcdef, commit 1a2b3c4 dirty)".
std::string text_of(const PluginFile& file);
// Returns the digits of the digest that names of bits have.
std::string short_digest(const PluginFile& file);

// PluginKernel is one kernel of a loaded library.
struct PluginKernel {
  const PluginFile* file = nullptr;
  const hf_kernel* kernel = nullptr;
  std::string text = {};  // "kernel mine of rmsnorm_forward, of the plug-in mine/kernel.so"
  KernelName name = {};
  std::string line = {};  // line_of(name)
};

// Returns the bytes of shared working memory that a plug-in's kernel asks for; 0 for the kernels of this build, which ask
// for it themselves.
std::size_t workspace_bytes(const Implementation& implementation, const cpu::Context& context,
                            const void* arguments);
// Returns a sentence where that is more than any call can need: it is not allocated. Empty: nothing is wrong.
std::string workspace_problem(const PluginKernel& kernel, std::size_t bytes);

// PluginLaunch says how a launch went.
struct PluginLaunch {
  int code = 0;  // that launch() returned; anything but 0: the call was not computed
  unsigned mode = 0,
           before = 0;  // floating-point mode that a thread was left in, and had before; equal: none was
};
// Runs launch() of a plug-in's kernel on the threads of the context, and brings back the floating-point mode of each. An
// exception of the kernel passes.
PluginLaunch launch_plugin(const PluginKernel& kernel, const cpu::Context& context, const void* arguments,
                           void* workspace);

}  // namespace holdfast::kernels
