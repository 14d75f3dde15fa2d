#include "runtime/train/run_directory.h"

#include <fmt/core.h>

#include "runtime/core/durable_directory.h"
#include "runtime/core/json.h"
#include "runtime/train/launch_record.h"

namespace holdfast {
namespace {

// Env::replace_text writes beside the file first; a kill in between leaves that file behind.
Result<void> remove_temporaries(Env& env, const RunPaths& paths) {
  HF_TRY(const std::vector<std::string> names, env.list(paths.directory));
  for (const std::string& name : names) {
    for (const char* ours : {"config.toml.tmp.", "run_id.tmp.", "run_place.tmp.", "status.json.tmp.",
                             "history.json.tmp.", "lineage.json.tmp.", "report.html.tmp."}) {
      if (name.starts_with(ours)) HF_TRY_VOID(env.remove(paths.directory + "/" + name));
    }
  }
  return {};
}

// `lasts`: another start would meet the same.
Error cannot_be_used(const Error& reason, bool lasts) {
  if (lasts) {
    return fail(ExitCode::config, "run.directory cannot be used: {}. Give a directory that can be written",
                reason.message);
  }
  return fail(ExitCode::communication,
              "run.directory cannot be used now: {}. Start the run again when that is over", reason.message);
}

}  // namespace

Result<std::unique_ptr<FileLock>> claim_run_directory(Env& env, const RunPaths& paths) {
  constexpr std::int64_t patience_ms = 10'000;
  if (Result<void> made = make_durable_directories(env, paths.directory); !made.ok()) {
    const Result<FileStatus> there = env.status(paths.directory);
    return cannot_be_used(made.error(), there.ok() && !there->directory);
  }
  const std::string holder = fmt::format("host {} pid {}", env.host_name(), env.process_id());
  Result<std::unique_ptr<FileLock>> lock = env.lock(paths.lock(), holder, patience_ms);
  if (lock.ok()) {
    if (Result<void> removed = remove_temporaries(env, paths); !removed.ok())
      return cannot_be_used(removed.error(), false);
    return lock;
  }
  if (lock.error().code == ExitCode::communication) {
    const Result<std::string> named = env.read_text(paths.lock());
    return fail(
        ExitCode::communication,
        "{} is in use by another run ({}), which did not end within {} s. One run directory has one writer: "
        "wait for that run, stop it, or give another run.directory",
        paths.directory, named.ok() ? named.value() : "its host and pid cannot be read", patience_ms / 1000);
  }
  return cannot_be_used(lock.error(), lock.error().code == ExitCode::config);
}

RunStatus read_status(Env& env, const RunPaths& paths) {
  RunStatus status;
  const Result<std::string> text = env.read_text(paths.status());
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
  return env.replace_text(paths.status(), json.dump(1) + "\n");
}

}  // namespace holdfast
