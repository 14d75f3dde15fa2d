#include "tools/chaos/faulty_storage.h"

#include <fmt/core.h>

#include "runtime/core/text.h"

namespace holdfast::chaos {

Result<std::unique_ptr<SlowStorage>> SlowStorage::mount(Env& env, const std::string& directory,
                                                        const std::vector<std::string>& data_files) {
  HF_TRY_VOID(env.make_directories(directory));
  auto storage = std::make_unique<SlowStorage>();
  HF_TRY(storage->directory_, mount_slow_files(directory));
  for (const std::string& file : data_files) {
    HF_TRY(std::unique_ptr<SlowFiles> files, mount_slow_files(file));
    storage->data_.push_back(std::move(files));
  }
  return storage;
}

void SlowStorage::slow_down(bool of_data, std::int64_t call_ms) {
  if (!of_data) return directory_->slow_down(call_ms);
  for (const std::unique_ptr<SlowFiles>& files : data_) files->slow_down(call_ms);
}

void SlowStorage::resume() {
  slow_down(/*of_data=*/false, 0);
  slow_down(/*of_data=*/true, 0);
}

Result<std::unique_ptr<SmallDisk>> SmallDisk::mount(Env& env, Mounts& mounts, const std::string& directory,
                                                    std::uint64_t bytes) {
  HF_TRY_VOID(env.make_directories(directory));
  HF_TRY_VOID(mounts.mount_memory(directory, bytes));
  return std::unique_ptr<SmallDisk>(new SmallDisk(env, mounts, directory));
}

SmallDisk::~SmallDisk() {
  if (mounted_) static_cast<void>(mounts_->unmount(directory_).ok());  // it goes with the process at last
}

// The run writes meanwhile, so what is free now may be less a moment later: of what does not fit, half is
// tried.
Result<void> SmallDisk::fill() {
  constexpr std::uint64_t page_bytes = 4096;
  HF_TRY_VOID(empty());
  HF_TRY(std::uint64_t part, env_->free_bytes(directory_));
  HF_TRY(const std::unique_ptr<File> file, env_->open(filler(), OpenMode::create));
  std::uint64_t held = 0;
  Result<void> filled;
  for (; part >= page_bytes; part = part / 2 / page_bytes * page_bytes) {
    while ((filled = file->allocate(held + part)).ok()) held += part;
  }
  return held > 0 ? Result<void>() : filled;
}

Result<void> SmallDisk::empty() {
  return env_->remove(filler());
}

Result<void> SmallDisk::keep() {
  HF_TRY_VOID(move_out_of_mount(*env_, *mounts_, directory_));
  mounted_ = false;
  return {};
}

Result<void> move_out_of_mount(Env& env, Mounts& mounts, const std::string& directory) {
  const std::string kept = directory + ".kept";
  HF_TRY_VOID(env.remove_tree(kept));
  HF_TRY_VOID(copy_tree(env, directory, kept));
  HF_TRY_VOID(mounts.unmount(directory));
  HF_TRY_VOID(env.remove_tree(directory));
  return env.rename(kept, directory);
}

Result<std::uint64_t> bytes_of_tree(Env& env, const std::string& directory) {
  std::uint64_t sum = 0;
  HF_TRY(const std::vector<std::string> names, env.list(directory));
  for (const std::string& name : names) {
    const std::string path = directory + "/" + name;
    HF_TRY(const FileStatus status, env.status(path));
    std::uint64_t bytes = status.bytes;
    if (status.directory) {
      HF_TRY(bytes, bytes_of_tree(env, path));
    }
    sum += bytes;
  }
  return sum;
}

Result<void> copy_tree(Env& env, const std::string& source, const std::string& target) {
  HF_TRY_VOID(env.make_directories(target));
  HF_TRY(const std::vector<std::string> names, env.list(source));
  for (const std::string& name : names) {
    const std::string from = source + "/" + name, to = target + "/" + name;
    HF_TRY(const FileStatus status, env.status(from));
    if (status.directory) {
      HF_TRY_VOID(copy_tree(env, from, to));
      continue;
    }
    HF_TRY(const std::string bytes, env.read_text(from));
    HF_TRY_VOID(env.replace_text(to, bytes));
  }
  return {};
}

namespace {

constexpr std::int64_t disk_command_limit_ms = 30'000;

Result<void> run(Env& env, const std::string& line) {
  HF_TRY(const CommandEnd end, env.run_command({.line = line, .timeout_ms = disk_command_limit_ms}));
  if (end.succeeded()) return {};
  return fail(ExitCode::config, "chaos: the command \"{}\" failed: {}", line, end.output);
}

}  // namespace

std::string StallingDisk::why_not(Env& env) {
  const std::string line =
      "for tool in mkfs.ext4 mount fsfreeze; do command -v $tool > /dev/null || { echo there is no $tool; "
      "exit "
      "1; }; done; test -w /dev/loop-control || { echo /dev/loop-control is not ours to use; exit 1; }";
  const Result<CommandEnd> end = env.run_command({.line = line, .timeout_ms = disk_command_limit_ms});
  if (!end.ok()) return end.error().message;
  if (end->succeeded()) return "";
  return "a disk that can stall is a file system on a loop device: " +
         end->output.substr(0, end->output.find('\n'));
}

Result<std::unique_ptr<StallingDisk>> StallingDisk::mount(Env& env, Mounts& mounts,
                                                          const std::string& directory, std::uint64_t bytes) {
  HF_TRY_VOID(env.make_directories(directory));
  std::unique_ptr<StallingDisk> disk(new StallingDisk(env, mounts, directory));
  HF_TRY_VOID(env.remove(disk->image()));
  const std::string image = shell_word(disk->image());
  // Times of reading would be writes.
  HF_TRY_VOID(run(env, fmt::format("truncate -s {0} {1} && mkfs.ext4 -q -F -m 0 -E nodiscard {1} && mount -o "
                                   "loop,noatime {1} {2}",
                                   bytes, image, shell_word(directory))));
  disk->mounted_ = true;
  return disk;
}

StallingDisk::~StallingDisk() {
  if (stalled_) static_cast<void>(resume().ok());
  if (mounted_) static_cast<void>(mounts_->unmount(directory_).ok());
  static_cast<void>(env_->remove(image()).ok());
}

Result<void> StallingDisk::stall() {
  HF_TRY_VOID(run(*env_, "fsfreeze --freeze " + shell_word(directory_)));
  stalled_ = true;
  return {};
}

Result<void> StallingDisk::resume() {
  HF_TRY_VOID(run(*env_, "fsfreeze --unfreeze " + shell_word(directory_)));
  stalled_ = false;
  return {};
}

Result<void> StallingDisk::keep() {
  HF_TRY_VOID(move_out_of_mount(*env_, *mounts_, directory_));
  mounted_ = false;
  return {};
}

}  // namespace holdfast::chaos
