#include "checkpoint/incoming.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "checkpoint/names.h"
#include "runtime/os/paths.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::string_view incoming_prefix = "incoming-";

Result<void> as_incoming_result(const Result<void>& result) {
  if (result.ok()) return {};
  return with_code(ExitCode::checkpoint, result.error());
}

void remove_older(Env& env, const std::string& pending) {
  const Result<std::vector<std::string>> names = env.list(pending);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (name.starts_with(incoming_prefix)) static_cast<void>(env.remove_tree(pending + "/" + name).ok());
  }
}

Result<void> sync_files(Env& env, const std::string& directory) {
  HF_TRY(const std::vector<std::string> names, env.list(directory));
  for (const std::string& name : names) {
    const std::string path = directory + "/" + name;
    HF_TRY(const FileStatus status, env.status(path));
    if (status.directory) continue;
    HF_TRY(const std::unique_ptr<File> file, env.open(path, OpenMode::read));
    HF_TRY_VOID(file->sync());
  }
  return env.sync_directory(directory);
}

Result<void> make_visible(Env& env, FaultPoints& faults, const std::string& run_directory,
                          const std::string& source, const std::string& target) {
  HF_TRY_VOID(sync_files(env, source));
  const std::string visible = checkpoint_names::checkpoints(run_directory);
  HF_TRY_VOID(make_durable_directories(env, visible));
  HF_TRY(const std::string aside, put_aside(env, run_directory, target));
  HF_FAULT_POINT(faults, "download.before_rename");
  HF_TRY_VOID(env.rename(source, target));
  HF_FAULT_POINT(faults, "download.after_rename");
  HF_TRY_VOID(env.sync_directory(visible));
  return aside.empty() ? Result<void>() : env.remove_tree(aside);
}

// Removes files that neither the manifest nor a shard names, and returns their names.
Result<std::vector<std::string>> remove_unnamed(Env& env, const Checkpoint& checkpoint) {
  const std::vector<std::string> named = checkpoint.file_names();
  std::vector<std::string> removed;
  HF_TRY(const std::vector<std::string> names, env.list(checkpoint.directory()));
  for (const std::string& name : names) {
    if (std::ranges::find(named, name) != named.end()) continue;
    HF_TRY_VOID(env.remove_tree(checkpoint.directory() + "/" + name));
    removed.push_back(name);
  }
  return removed;
}

}  // namespace

Result<std::string> put_aside(Env& env, const std::string& run_directory, const std::string& target) {
  HF_TRY(const FileStatus occupied, env.status(target));
  if (!occupied.exists) return std::string();
  const std::string name = target.substr(target.find_last_of('/') + 1);
  std::string aside = fmt::format("{}/{}{}", checkpoint_names::pending(run_directory),
                                  checkpoint_names::replaced_prefix, name);
  HF_TRY_VOID(env.remove_tree(aside));
  HF_TRY_VOID(env.sync_directory(run_directory));  // which may not have .pending yet
  HF_TRY_VOID(env.rename(target, aside));
  return aside;
}

Result<std::string> make_incoming_directory(Env& env, const std::string& run_directory) {
  const std::string pending = checkpoint_names::pending(run_directory);
  remove_older(env, pending);
  std::string directory = fmt::format("{}/{}{:016x}", pending, incoming_prefix, env.random_u64());
  HF_TRY_VOID(as_incoming_result(env.make_directories(directory)));
  return directory;
}

IncomingSize size_of_incoming(Env& env, const std::string& directory) {
  IncomingSize size;
  const Result<std::vector<std::string>> names = env.list(directory);
  if (!names.ok()) return size;
  for (const std::string& name : *names) {
    const Result<FileStatus> status = env.status(directory + "/" + name);
    if (!status.ok() || !status->exists) continue;
    ++size.files;
    if (!status->directory) size.bytes += status->bytes;
  }
  return size;
}

Result<std::vector<std::string>> remove_all_but_files(Env& env, const std::string& directory) {
  std::vector<std::string> removed;
  HF_TRY(const std::vector<std::string> names, env.list(directory));
  for (const std::string& name : names) {
    const std::string path = directory + "/" + name;
    HF_TRY(const FileStatus status, env.status(path));
    if (!status.link && !status.directory) continue;
    HF_TRY_VOID(status.link ? env.remove(path) : env.remove_tree(path));
    removed.push_back(fmt::format("{} ({})", name, status.link ? "a link" : "a directory"));
  }
  return removed;
}

Result<PublishedIncoming> publish_incoming(Env& env, FaultPoints& faults, const std::string& run_directory,
                                           const Checkpoint& checkpoint) {
  const std::string name = checkpoint_names::step_name(checkpoint.manifest().step);
  PublishedIncoming published{.directory = checkpoint_names::checkpoints(run_directory) + "/" + name,
                              .left_out = {}};
  Result<std::vector<std::string>> removed = remove_unnamed(env, checkpoint);
  if (!removed.ok()) return with_code(ExitCode::checkpoint, removed.error());
  published.left_out = std::move(removed).value();
  HF_TRY_VOID(as_incoming_result(
      make_visible(env, faults, run_directory, checkpoint.directory(), published.directory)));
  return published;
}

}  // namespace holdfast::checkpoint
