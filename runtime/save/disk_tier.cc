#include "runtime/save/disk_tier.h"

#include <fmt/core.h>

#include "runtime/os/io_queue.h"

namespace holdfast::save {

Result<std::string> check_checkpoint_io(Env& env, const CheckpointConfig& config) {
  const auto queue = env.make_io_queue({.depth = 1, .backend = io_backend_of(config.io)});
  if (!queue.ok())
    return fail_because(queue.error(), queue.error().code, "checkpoint.io = \"{}\": {}", config.io,
                        queue.error().message);
  const std::string& reason = (*queue)->fallback_reason();
  if (reason.empty()) return std::string();
  return fmt::format("checkpoints go through threads, because io_uring cannot be used: {}", reason);
}

Result<std::string> check_direct_io(Env& env, const std::string& directory) {
  const std::string path = fmt::format("{}/.direct-io-{:016x}", directory, env.random_u64());
  std::string reason;
  {
    HF_TRY(const std::unique_ptr<File> file, env.open(path, OpenMode::create_direct));
    reason = file->buffered_reason();
  }
  HF_TRY_VOID(env.remove(path));
  if (reason.empty()) return reason;
  return fmt::format("checkpoints go through the page cache of {}: {}", directory, reason);
}

}  // namespace holdfast::save
