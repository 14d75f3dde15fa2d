#include "runtime/train/run_holder.h"

#include "runtime/train/claim_record.h"

namespace holdfast {
namespace {

std::optional<std::string> lock_holder(Env& env, const std::string& path) {
  const Result<FileStatus> status = env.status(path);
  if (!status.ok() || !status->exists) return std::nullopt;
  const Result<bool> locked = env.is_locked(path);
  if (!locked.ok() || !*locked) return std::nullopt;
  const Result<std::string> text = env.read_text(path);
  return text.ok() ? claim_record_of(*text).holder : "unknown";
}

}  // namespace

Result<void> expect_run_directory(Env& env, const RunPaths& paths) {
  bool is_run = false;
  for (const std::string& path : {paths.lock(), paths.status(), paths.launch()}) {
    HF_TRY(const FileStatus status, env.status(path));
    is_run = is_run || status.exists;
  }
  if (is_run) return {};
  return fail(ExitCode::config,
              "{} is no run directory: nothing has been started there. Give the run.directory of a run",
              paths.directory);
}

std::optional<std::string> run_holder(Env& env, const RunPaths& paths) {
  std::optional<std::string> holder = lock_holder(env, paths.lock());
  return holder.has_value() ? holder : lock_holder(env, paths.launch_lock());
}

bool has_launcher(Env& env, const RunPaths& paths) {
  return lock_holder(env, paths.launch_lock()).has_value();
}

}  // namespace holdfast
