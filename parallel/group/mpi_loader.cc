#include "parallel/group/mpi_loader.h"

#include <dlfcn.h>

#include "parallel/comm/launcher.h"
#include "runtime/os/paths.h"

namespace holdfast::parallel {
namespace {

Error not_loaded() {
  const char* reason = ::dlerror();
  return fail(ExitCode::config,
              "the MPI library could not be loaded: {}; run tools/bootstrap and build again",
              reason == nullptr ? "unknown reason" : reason);
}

}  // namespace

Result<const MpiModule*> load_mpi_module(const std::string& directory) {
  // Loads with global symbols, as if the program were linked to it: an MPI whose components are shared
  // objects then finds its symbols.
  void* library = ::dlopen((directory + "/" + mpi_module_file).c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return not_loaded();
  void* factory = ::dlsym(library, mpi_module_symbol);
  if (factory == nullptr) return not_loaded();
  return reinterpret_cast<MpiModuleFactory*>(factory)();
}

Result<std::unique_ptr<MpiSession>> start_mpi(Env& env, std::int64_t join_timeout_ms, WaitListener* listener,
                                              const Preparation& preparation) {
  const Result<const MpiModule*> module = load_mpi_module(program_directory());
  if (!module.ok()) {
    return fail(module.error().code, "this process (host {}) was started by an MPI launcher as {}, but {}",
                env.host_name(), launched_as(env), module.error().message);
  }
  return (*module)->start(env, join_timeout_ms, listener, preparation);
}

Result<MpiFacts> mpi_library_facts() {
  HF_TRY(const MpiModule* module, load_mpi_module(program_directory()));
  return module->facts();
}

}  // namespace holdfast::parallel
