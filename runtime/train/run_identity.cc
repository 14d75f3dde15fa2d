#include "runtime/train/run_identity.h"

#include <fmt/core.h>

#include "runtime/core/real_path.h"

namespace holdfast {
namespace {

// A path may hold anything but a zero byte, so it comes last and ends with the text.
std::string place_text(const std::string& id, const std::string& directory) {
  return fmt::format("{}\n{}", id, directory);
}

// Empty when nothing is known of where this id was made.
std::string recorded_place(Env& env, const RunPaths& paths, const std::string& id) {
  const Result<std::string> text = env.read_text(paths.run_place());
  const std::string prefix = place_text(id, "");
  return text.ok() && text->starts_with(prefix) ? text->substr(prefix.size()) : "";
}

// A file that replace_text could have left behind, so that what a kill leaves of it goes with those.
bool is_same_directory(Env& env, const RunPaths& here, const RunPaths& there) {
  const std::string name = fmt::format(".tmp.{:016x}", env.random_u64());
  const std::string probe = here.run_place() + name;
  if (!env.replace_text(probe, "").ok()) return true;  // it cannot be told, and nothing can be recorded
  const Result<FileStatus> seen = env.status(there.run_place() + name);
  static_cast<void>(env.remove(probe).ok());
  return seen.ok() && seen->exists;
}

}  // namespace

RunIdentity identify_run(Env& env, const RunPaths& paths) {
  const Result<std::string> id = env.read_text(paths.run_id());
  if (!id.ok()) return {};
  const std::string made_for = recorded_place(env, paths, *id);
  if (made_for.empty() || made_for == real_path(paths.directory)) return {.id = *id};
  const RunPaths there{made_for};
  const Result<std::string> id_there = env.read_text(there.run_id());
  if (!id_there.ok() || *id_there != *id || is_same_directory(env, paths, there)) return {.id = *id};
  return {.id = {}, .copy_of = made_for};
}

Result<void> record_identity(Env& env, const RunPaths& paths, const std::string& id) {
  const auto replace = [&](const std::string& path, const std::string& text) -> Result<void> {
    const Result<std::string> before = env.read_text(path);
    return before.ok() && *before == text ? Result<void>() : env.replace_text(path, text);
  };
  // A place that was recorded for another id counts for nothing.
  HF_TRY_VOID(replace(paths.run_id(), id));
  return replace(paths.run_place(), place_text(id, real_path(paths.directory)));
}

std::string new_run_id(Env& env) {
  return fmt::format("{:016x}{:016x}", env.random_u64(), env.random_u64());
}

}  // namespace holdfast
