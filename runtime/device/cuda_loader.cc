#include "runtime/device/cuda_loader.h"

#include <dlfcn.h>

namespace holdfast::device {
namespace {

Error not_loaded() {
  const char* reason = ::dlerror();
  return with_reach(
      Reach::host,
      fail(ExitCode::config,
           "the CUDA device could not be loaded: {}; build holdfast where there is the CUDA toolkit (cmake "
           "finds nvcc in the PATH)",
           reason == nullptr ? "unknown reason" : reason));
}

}  // namespace

Result<const CudaModule*> load_cuda_module(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return not_loaded();
  void* factory = ::dlsym(library, cuda_module_symbol);
  if (factory == nullptr) return not_loaded();
  return reinterpret_cast<CudaModuleFactory*>(factory)();
}

}  // namespace holdfast::device
