#include "runtime/run/run_directory.h"

#include <algorithm>

#include "runtime/core/json.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/run/launch_record.h"

namespace holdfast::run {
namespace {

// Env::replace_text writes beside the file first; a kill in between leaves that file behind. A writer that was
// replaced may still live and be about to rename its lineage, which this prevents (checkpoint/lineage.h).
Result<void> remove_temporaries(Env& env, const RunPaths& paths) {
  HF_TRY(const std::vector<std::string> names, env.list(paths.directory));
  for (const std::string& name : names) {
    for (const char* ours :
         {"config.toml.tmp.", "run_id.tmp.", "run_place.tmp.", "place_name.tmp.", "status.json.tmp.",
          "history.json.tmp.", "hardware.json.tmp.", "rank_times.jsonl.tmp.", "uploaded.tmp.",
          "lineage.json.tmp.", "report.html.tmp.", "metrics.prom.tmp.", "metrics_state.json.tmp.",
          "metrics_address.tmp.", "notified.json.tmp.", "lock.tmp.", "proof-"}) {
      if (name.starts_with(ours)) HF_TRY_VOID(env.remove(paths.directory + "/" + name));
    }
  }
  return {};
}

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

Error run_directory_error(const Error& reason) {
  if (reason.code == ExitCode::communication) return reason;
  if (reason.code == ExitCode::config) {
    return fail_because(reason, ExitCode::config,
                        "run.directory cannot be used: {}. Give a directory that can be written",
                        reason.message);
  }
  return fail_because(reason, ExitCode::communication,
                      "run.directory cannot be used now: {}. Start the run again when that is over",
                      reason.message);
}

Result<std::unique_ptr<Claim>> claim_run_directory(Env& env, const RunPaths& paths, const LeaseTerms& terms) {
  for (const char* of_kernel : {"/proc/", "/sys/"}) {
    if (paths.directory.starts_with(of_kernel))
      return fail(
          ExitCode::config,
          "run.directory = {} is in {}, where the kernel shows itself and nothing can be saved. Give a "
          "directory on a disk",
          paths.directory, of_kernel);
  }
  if (const Result<void> made = make_durable_directories(env, paths.directory); !made.ok())
    return run_directory_error(made.error());
  const auto in_use = [&](const std::string& holder) {
    return fail(
        ExitCode::communication,
        "{} is in use by another run ({}), which did not end within {} s. One run directory has one writer: "
        "wait for that run, stop it, or give another run.directory",
        paths.directory, holder.empty() ? "its host and pid cannot be read" : holder,
        terms.patience_ms / 1000);
  };
  Result<std::unique_ptr<Claim>> claim = Claim::take(env, paths.lock(), in_use, terms);
  if (!claim.ok()) return run_directory_error(claim.error());
  if (const Result<void> removed = remove_temporaries(env, paths); !removed.ok())
    return run_directory_error(with_code(ExitCode::checkpoint, removed.error()));
  return claim;
}

Result<void> try_run_lock(Env& env, const RunPaths& paths) {
  HF_TRY_VOID(make_durable_directories(env, paths.directory));
  const Result<std::unique_ptr<FileLock>> lock = env.lock(paths.lock(), "", /*timeout_ms=*/0);
  const bool is_held = !lock.ok() && lock.error().code == ExitCode::communication;
  return is_held ? Result<void>() : outcome_of(lock);
}

Result<std::unique_ptr<Claim>> claim_launch(Env& env, const RunPaths& paths, const LeaseTerms& terms) {
  if (const Result<void> made = make_durable_directories(env, paths.launch()); !made.ok())
    return run_directory_error(made.error());
  const auto in_use = [&](const std::string& holder) {
    return fail(
        ExitCode::communication,
        "{} is in use by another launch ({}), which did not end within {} s. One run has one launcher: "
        "wait for that one, stop it, or give another run.directory",
        paths.directory, holder.empty() ? "its host and pid cannot be read" : holder,
        terms.patience_ms / 1000);
  };
  Result<std::unique_ptr<Claim>> claim = Claim::take(env, paths.launch_lock(), in_use, terms);
  if (!claim.ok()) return run_directory_error(claim.error());
  return claim;
}

RunStatus read_status(Env& env, const RunPaths& paths) {
  RunStatus status;
  const Result<std::string> text = read_text_within(env, paths.status(), text_limits::status);
  if (!text.ok()) return status;
  const Json json = Json::parse_any(*text);
  if (!json.is_object()) return status;
  const auto text_of = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : std::string();
  };
  const std::string state = text_of("state");
  for (const char* known : {"running", "saved", "finished", "failed"}) {
    if (state == known) status.state = state;
  }
  status.reason = text_of("reason");
  status.start = text_of("start");
  const auto number_of = [&](const char* key) {
    return json.contains(key) && json[key].is_number_unsigned() ? json[key].get<std::uint64_t>() : 0;
  };
  status.step = number_of("step");
  status.exit_code = static_cast<int>(number_of("exit_code"));
  return status;
}

bool may_record_failure(Env& env, const RunPaths& paths) {
  const std::string state = read_status(env, paths).state;
  return state != "finished" && state != "saved";
}

Result<void> write_status(Env& env, const RunPaths& paths, const RunStatus& status) {
  Json json = {{"state", status.state},
               {"step", status.step},
               {"exit_code", status.exit_code},
               {"reason", status.reason}};
  if (const std::string start = launched_start(env); !start.empty()) json["start"] = start;
  return env.replace_text(paths.status(), json.dump_any(1) + "\n");
}

std::string who_else_may_write(Env& env, const RunPaths& paths) {
  for (const std::string& path : {paths.directory, paths.requests()}) {
    const Result<FileStatus> status = env.status(path);
    if (!status.ok() || !(status->group_may_write || status->others_may_write)) continue;
    return fmt::format(
        "{} may be written by {}, who can stop, drain and restart this run{}; chmod {} {} if they are not to",
        path, status->others_may_write ? "every user of its hosts" : "the users of its group",
        path == paths.directory ? ", and replace its checkpoints" : "",
        status->others_may_write ? "go-w" : "g-w", path);
  }
  return "";
}

bool is_refusal(ExitCode code) {
  return code == ExitCode::config || code == ExitCode::does_not_fit || code == ExitCode::data ||
         code == ExitCode::checkpoint;
}

bool remove_unused_directory(Env& env, const RunPaths& paths) {
  const Result<std::vector<std::string>> names = env.list(paths.directory);
  const bool is_unused = names.ok() && std::ranges::all_of(*names, [](const std::string& name) {
                           return name == "lock" || name == "place_name" || name == "lineage.json" ||
                                  name.starts_with("ledger-") || name.starts_with("proof-") ||
                                  name == "launch" || name == "status.json";
                         });
  return is_unused && env.remove_tree(paths.directory).ok();
}

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
