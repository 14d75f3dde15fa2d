#include "runtime/run/run_holder.h"

#include "runtime/os/foreign_text.h"
#include "runtime/run/claim_record.h"

namespace holdfast::run {
namespace {

Result<std::optional<std::string>> lock_holder(Env& env, const std::string& path) {
  const std::optional<std::string> nobody;
  const Result<FileStatus> status = env.status(path);
  if (!status.ok() || !status->exists) return nobody;
  const Result<bool> locked = env.is_locked(path);
  if (!locked.ok()) {
    const Result<FileStatus> now = env.status(path);
    if (now.ok() && !now->exists) return nobody;  // it went meanwhile
    return fail(ExitCode::config,
                "whether somebody has the run cannot be told: {}. Only who may write a run may look at its "
                "locks; ask as its user",
                locked.error().message);
  }
  if (!*locked) return nobody;
  const Result<std::string> text = env.read_text_within(path, text_limits::identity);
  return std::optional<std::string>(text.ok() ? claim_record_of(*text).holder : "unknown");
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

Result<std::optional<std::string>> run_holder(Env& env, const RunPaths& paths) {
  HF_TRY(std::optional<std::string> holder, lock_holder(env, paths.lock()));
  if (holder.has_value()) return holder;
  return lock_holder(env, paths.launch_lock());
}

Result<bool> has_launcher(Env& env, const RunPaths& paths) {
  HF_TRY(const std::optional<std::string> holder, lock_holder(env, paths.launch_lock()));
  return holder.has_value();
}

}  // namespace holdfast::run
