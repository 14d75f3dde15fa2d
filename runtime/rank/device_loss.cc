#include "runtime/rank/device_loss.h"

#include <fmt/core.h>

#include <cstdio>

#include "runtime/os/console.h"
#include "runtime/run/run_directory.h"

namespace holdfast::rank {

void end_without_device(const LeavingRank& rank, const Error& error) {
  const std::string sentence = fmt::format("rank {} (host {}) is at step {}: {}", rank.communicator.rank(),
                                           rank.env.host_name(), rank.step + 1, error.message);
  print_message("{}", sentence);
  std::fflush(nullptr);
  const RunPaths paths{rank.run_directory};
  if (rank.communicator.rank() == 0 && may_record_failure(rank.env, paths)) {
    const RunStatus status{
        .state = "failed", .step = rank.step, .exit_code = static_cast<int>(error.code), .reason = sentence};
    static_cast<void>(write_status(rank.env, paths, status).ok());  // the sentence is on stderr already
  }
  rank.env.kill_self();
}

}  // namespace holdfast::rank
