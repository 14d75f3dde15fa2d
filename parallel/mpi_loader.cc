#include "parallel/mpi_loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>

#include "parallel/launcher.h"

namespace holdfast {
namespace {

std::string program_directory() {
  char path[PATH_MAX] = "";
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path));
  const std::string program(path, length > 0 ? static_cast<std::size_t>(length) : 0);
  const std::size_t slash = program.rfind('/');
  return slash == std::string::npos ? "." : program.substr(0, slash);
}

Error not_loaded() {
  const char* reason = ::dlerror();
  return fail(ExitCode::config,
              "the MPI library could not be loaded: {}; run tools/bootstrap and build again",
              reason == nullptr ? "unknown reason" : reason);
}

}  // namespace

Result<const MpiModule*> load_mpi_module(const std::string& directory) {
  // Global, as if the program were linked to it: an MPI whose components are shared objects finds its symbols
  // then.
  void* library = ::dlopen((directory + "/" + mpi_module_file).c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return not_loaded();
  void* factory = ::dlsym(library, mpi_module_symbol);
  if (factory == nullptr) return not_loaded();
  return reinterpret_cast<MpiModuleFactory*>(factory)();
}

Result<std::unique_ptr<MpiSession>> start_mpi(Env& env, std::int64_t join_timeout_ms) {
  const Result<const MpiModule*> module = load_mpi_module(program_directory());
  if (!module.ok()) {
    return fail(module.error().code, "this process (host {}) was started by an MPI launcher as {}, but {}",
                env.host_name(), launched_as(env), module.error().message);
  }
  return (*module)->start(env, join_timeout_ms);
}

Result<MpiFacts> mpi_library_facts() {
  HF_TRY(const MpiModule* module, load_mpi_module(program_directory()));
  return module->facts();
}

}  // namespace holdfast
