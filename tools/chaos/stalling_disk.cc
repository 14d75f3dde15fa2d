#include "tools/chaos/stalling_disk.h"

#include <fmt/core.h>

#include "runtime/launch/shell_words.h"
#include "tools/chaos/small_disk.h"

namespace holdfast::chaos {
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
