// NCCL takes some settings from its environment alone: the process's variables, and for those that are not
// set the file that NCCL_CONF_FILE names or else ~/.nccl.conf, and then /etc/nccl.conf. Settings that belong
// to one communicator are set on it instead (NcclCommConfig): NCCL reads each variable once in the life of a
// process, and a process lives through several membership epochs.
//
// Threads: set_nccl_variables() writes the process's environment, which other threads may be reading; call it
// before NCCL is used and as early as possible. The others may be called at any time.
#pragma once

#include <optional>
#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::parallel {

struct NcclSetting {
  std::string value;
  std::string place;  // text for messages: "the environment", or the path of a file
};

// Returns the setting of variable `name` that NCCL will read, or none if there is none.
std::optional<NcclSetting> find_nccl_setting(Env& env, const std::string& name);

// Fails with ExitCode::config where NCCL_COMM_BLOCKING=1 would make all communicators blocking whatever
// ncclConfig_t says: calls that start an exchange then wait for the peers inside NCCL, where no deadline
// reaches them.
Result<void> check_nccl_environment(Env& env);

// NcclThreadBlocks is a setting of the user by which communicators use so many thread blocks, whatever ncclConfig_t
// allows them (init.cc, envConfigOverride; paths.cc, ncclTopoComputeP2pChannels).
struct NcclThreadBlocks {
  int count = 0;             // 0: there is none
  std::string setting = {};  // "NCCL_MAX_CTAS is 32 in /etc/nccl.conf"
};
// Returns the largest of them.
NcclThreadBlocks nccl_thread_blocks(Env& env);

// Sets the variables that every run needs and that no communicator's configuration can express. A setting of
// the user stays.
//   NCCL_NVLS_ENABLE=0            NVLS multicast memory does not survive an abort in place, and no sum is
//                                 computed by NCCL
//   NCCL_RAS_ENABLE=0             RAS keeps sockets between all processes, also to those that died
//   NCCL_MULTI_RANK_GPU_ENABLE=1  ranks may share a GPU (from 2.30.3); where they do not in this membership
//                                 epoch, they may in the next. choose_transport() decides when it is allowed
void set_nccl_variables(Env& env);

}  // namespace holdfast::parallel
