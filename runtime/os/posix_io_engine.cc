#include "runtime/os/posix_io_engine.h"

#include <cerrno>

#include "runtime/os/posix_file.h"

namespace holdfast::os {

void PosixIoEngine::start(const IoOperation& operation) {
  const bool is_sync = operation.kind == IoKind::sync;
  const TransferDescriptor transfer =
      is_sync ? TransferDescriptor{.value = sync_descriptor(*operation.file), .direct = false}
              : transfer_descriptor(*operation.file);
  started_[operation.slot] = {.operation = operation, .direct = transfer.direct};
  submit(operation, transfer.value);
}

IoOutcome PosixIoEngine::wait() {
  while (true) {
    const IoOutcome outcome = reap();
    const Started& started = started_[outcome.slot];
    if (outcome.result != -EINVAL || !started.direct) return outcome;
    stop_direct(*started.operation.file, EINVAL);
    start(IoOperation(started.operation));  // a copy: it is written over
  }
}

Result<std::unique_ptr<IoEngine>> make_posix_io_engine(const IoQueueOptions& options) {
  if (options.backend == IoBackend::threads) return make_thread_io_engine(options.depth, "");
  Result<std::unique_ptr<IoEngine>> engine = make_io_uring_engine(options.depth);
  if (engine.ok()) return engine;
  if (options.backend == IoBackend::automatic)
    return make_thread_io_engine(options.depth, engine.error().message);
  return fail(ExitCode::config, "io_uring cannot be used: {}; take \"auto\" or \"threads\"",
              engine.error().message);
}

}  // namespace holdfast::os
