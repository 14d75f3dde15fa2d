#include "runtime/run/run_identity.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"

namespace holdfast::run {
namespace {

// A path may hold anything but a zero byte, so it comes last and ends with the text.
std::string place_text(const std::string& id, const std::string& directory) {
  return fmt::format("{}\n{}", id, directory);
}

// Empty when nothing is known of where this id was made.
std::string recorded_place(Env& env, const RunPaths& paths, const std::string& id) {
  const Result<std::string> text = read_text_within(env, paths.run_place(), text_limits::identity);
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

Result<void> check_id(const RunPaths& paths, const std::string& id) {
  if (is_run_id(id)) return {};
  constexpr std::size_t max_shown = 40;
  std::string shown = printable(id.substr(0, max_shown));
  std::ranges::replace(shown, '\n', ' ');
  return fail(
      ExitCode::data,
      "{} is damaged: it holds \"{}\"{}, expected 32 digits of 0 to 9 and a to f, which name what the run "
      "has in memory. Restore it from a copy, or remove it: the run then goes on from its newest "
      "checkpoint",
      paths.run_id(), shown,
      id.size() > max_shown ? fmt::format(" and {} bytes more", id.size() - max_shown) : "");
}

}  // namespace

Result<std::string> read_run_id(Env& env, const RunPaths& paths) {
  HF_TRY(const std::string id, read_text_within(env, paths.run_id(), text_limits::identity));
  HF_TRY_VOID(check_id(paths, id));
  return id;
}

Result<RunIdentity> identify_run(Env& env, const RunPaths& paths) {
  const Result<std::string> id = read_text_within(env, paths.run_id(), text_limits::identity);
  if (!id.ok()) return RunIdentity{};
  HF_TRY_VOID(check_id(paths, *id));
  const std::string made_for = recorded_place(env, paths, *id);
  if (made_for.empty() || made_for == real_path(paths.directory)) return RunIdentity{.id = *id};
  const RunPaths there{made_for};
  const Result<std::string> id_there = read_run_id(env, there);
  if (!id_there.ok() || *id_there != *id || is_same_directory(env, paths, there))
    return RunIdentity{.id = *id};
  return RunIdentity{.id = {}, .copy_of = made_for};
}

Result<void> record_identity(Env& env, const RunPaths& paths, const std::string& id) {
  const auto replace = [&](const std::string& path, const std::string& text) -> Result<void> {
    const Result<std::string> before = read_text_within(env, path, text_limits::identity);
    return before.ok() && *before == text ? Result<void>() : env.replace_text(path, text);
  };
  // A place that was recorded for another id counts for nothing.
  HF_TRY_VOID(replace(paths.run_id(), id));
  return replace(paths.run_place(), place_text(id, real_path(paths.directory)));
}

std::string new_run_id(Env& env) {
  return fmt::format("{:016x}{:016x}", env.random_u64(), env.random_u64());
}

}  // namespace holdfast::run
