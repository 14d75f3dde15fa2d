#include "runtime/run/kernel_faults.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "runtime/core/record.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::run {
namespace {

std::string path_of(const RunPaths& paths, const KernelName& kernel) {
  return fmt::format("{}/{}-{}-{}.json", paths.kernel_faults(), kernel.op, kernel.implementation,
                     kernel.digest);
}

}  // namespace

Result<void> keep_kernel_faults(Env& env, const RunPaths& paths, const KernelFaults& faults) {
  const Result<FileStatus> run = paths.directory.empty() ? FileStatus{} : env.status(paths.directory);
  if (run.ok() && !run->exists) return {};
  for (const KernelFault& fault : faults) {
    if (!fault.is_valid()) continue;
    const std::string path = path_of(paths, fault.kernel);
    const Result<FileStatus> there = env.status(path);
    if (there.ok() && there->exists) continue;
    HF_TRY_VOID(env.make_directories(paths.kernel_faults()));
    HF_TRY_VOID(env.replace_text(path, record_to_text(fault) + "\n"));
  }
  return {};
}

KernelFaults read_kernel_faults(Env& env, const RunPaths& paths) {
  KernelFaults faults;
  const Result<std::vector<std::string>> names = env.list(paths.kernel_faults());
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const std::string path = paths.kernel_faults() + "/" + name;
    const Result<KernelFault> fault =
        record_from_text<KernelFault>(text_within_or_empty(env, path, text_limits::status));
    // A copy under another name, which forget_kernel_faults() would not find, does not count.
    if (fault.ok() && fault->is_valid() && path_of(paths, fault->kernel) == path) faults.push_back(*fault);
  }
  return faults;
}

Result<KernelFaults> forget_kernel_faults(Env& env, const RunPaths& paths, const std::string& op) {
  KernelFaults forgotten;
  for (KernelFault& fault : read_kernel_faults(env, paths)) {
    if (!op.empty() && fault.kernel.op != op) continue;
    HF_TRY_VOID(env.remove(path_of(paths, fault.kernel)));
    forgotten.push_back(std::move(fault));
  }
  return forgotten;
}

}  // namespace holdfast::run
