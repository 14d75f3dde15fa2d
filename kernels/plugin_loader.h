// Loads plug-ins: shared libraries with kernels, made with kernels/include/holdfast_kernel.h alone. Their kernels enter a
// registry as implementations with names, beside those of this build, and run only where [kernels] names them.
//
//   HF_TRY(const KernelRegistry* registry, registry_with_plugins(env, {"mine/kernel.so"}));
//
// A plug-in is code that runs in this process. Which files are loaded is up to whoever gives the paths: the user's own
// config or command line (runtime/config/loader.h), never a file that a run directory holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/plugin.h"
#include "kernels/registry.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::kernels {

// Returns the schema of an op, which a plug-in's kernel of it has, too.
std::uint64_t plugin_schema(OpId op);

// Returns the registry of this program with the kernels of the plug-ins, which lives as long as the process; that of
// kernel_registry() where there are none. A file that was loaded before is not read again. ExitCode::config with a
// sentence where a file is missing or cut off, was made for another machine, ABI or struct of an op, needs symbols that
// nobody has, changes the floating-point mode, or gives a kernel a name that it may not have: with Reach::host, because
// other hosts may have another file. Any thread, whose floating-point mode is kept.
Result<const KernelRegistry*> registry_with_plugins(Env& env, const std::vector<std::string>& paths);

// Returns the plug-ins whose kernels the table runs, each once, as text_of() has them.
std::vector<std::string> plugins_of(const KernelTable& table);
// Returns all plug-ins of a registry in the same way.
std::vector<std::string> plugins_of(const KernelRegistry& registry);

}  // namespace holdfast::kernels
