#include "runtime/rank/leaving.h"

#include <cstdio>

#include "runtime/os/console.h"
#include "runtime/run/launch_record.h"

namespace holdfast::rank {

void die_if_awaited(Env& env, Membership& membership, bool has_guard, ExitCode code, const std::string& why) {
  report_end_to_launcher(env, membership.own_rank(), code);
  if (!membership.is_awaited(has_guard)) return;
  if (!why.empty())
    print_message("rank {} leaves the run, which may go on without it: {}", membership.own_rank(), why);
  std::fflush(nullptr);
  env.kill_self();
}

}  // namespace holdfast::rank
