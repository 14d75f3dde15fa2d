// Prepares a rank for its first step, or for its next one together with joiners: agrees on everything that must be
// equal on all ranks, and makes the objects that follow from it. The table in prepare.cc is the only list of what
// the ranks of a run agree on; each entry is a function of join.h, or a few lines around one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/collectives.h"
#include "parallel/group/rank_assignment.h"
#include "runtime/config/config.h"
#include "runtime/config/loader.h"
#include "runtime/data/loader.h"
#include "runtime/device/device.h"
#include "runtime/elastic/resume.h"
#include "runtime/os/secret.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/storage_domains.h"
#include "runtime/text/source_tokens.h"
#include "runtime/train/evaluation.h"

namespace holdfast::elastic {

enum class PrepareMode {
  start,   // the processes have just begun, or a rank died before the run did
  rejoin,  // the run goes on with joiners. They come on one host alone, so its directory is not local to hosts
  check,   // `holdfast check`: one process, which claims nothing, changes nothing and makes no device
  // `holdfast launch --on-host ready`: does what check does, but looks for no state to go on from, and makes the device
  ready,
};

// PrepareStep names the entries of the list, in their order.
enum class PrepareStep {
  earlier_starts,  // whether the run has begun before, and that all hosts see its directory
  config,          // the same program and config
  hosts,           // secret, guards of other hosts, run directory of the guard
  data,            // the same data
  device_check,    // each rank can have its device
  checkpoint_io,   // each rank can have the wanted I/O
  start_point,     // claim of the run directory, and the newest state to go on from
  stored_shape,    // lanes and shapes that the run has had since its first start
  kernels,         // which kernels of plug-ins have failed, and are left out
  device,          // a device of the same kind on all ranks
  layout,          // the resolved config, and whether so many ranks can run it
  changes,         // what differs from the stored config
  held_out,        // the same held-out data
  done,
};

// Returns the name of a step for people: "data".
const char* name_of(PrepareStep step);

struct PrepareTerms {
  PrepareMode mode = PrepareMode::start;
  bool recovers =
      false;      // a rank was lost, or joiners came: no rank waits longer than elastic.recovery_timeout
  int ranks = 0;  // number at the start, spares included; 0: those of one copy of the model
  std::string shm_run_id = {};      // rejoin: of the run
  Device* device = nullptr;         // rejoin: device of this rank; null: this rank is a joiner
  KernelFaults kernel_faults = {};  // rejoin: all that any rank knows of
};

// RunSetup holds what the ranks of a run have agreed on, and what each of them made of it.
struct RunSetup {
  Config config = {};                   // resolved once the step `layout` is done
  std::optional<Secret> secret = {};    // of the start
  std::vector<SourceTokens> text = {};  // check, ready: the sources that a start tokenizes
  std::shared_ptr<DataSet> data = {};   // check, ready: null while text is not tokenized
  StartPoint start = {};
  std::optional<StorageDomain> domain = {};  // of this rank, if run.directory is local to each host
  std::unique_ptr<Claim> claim = {};         // held by a rank that writes to the run directory
  bool makes_directory = false;              // there was no run directory before this start
  std::vector<std::string> gpus = {};        // hardware_name() by rank; empty on the CPU
  std::unique_ptr<Device> device = {};
  bool replicas_cross_hosts = false;           // of all RAM snapshots (JoinedBuddies)
  std::map<std::string, int> processors = {};  // of the active ranks (JoinedProcessors::ranks)
  AssignmentRequest request = {};              // for the ranks at the start, however many are left
  ResumeChanges changes = {};
  KernelFaults kernel_faults = {};  // all of the run
  // Those whose kernels the config does without, and those of which that has to be told: the state that the run goes on from
  // was made with them.
  KernelFaults left_out = {}, left_out_anew = {};
  std::optional<HeldOutSet> held_out = {};
  bool has_begun = false;                          // an earlier start of the run has trained
  PrepareStep step = PrepareStep::earlier_starts;  // the step that failed, or done
};

// Takes all steps. It is collective, and all ranks get the same outcome. After an error `setup` holds what was agreed
// on before. `setup.secret` and `setup.claim`: from an earlier try, if there was one.
//
// A start of a run that has begun before waits for inputs that no rank can read now, for elastic.input_timeout, and
// then fails with ExitCode::communication: they were right once. The reach of other errors says what follows
// (parallel/comm/agreement.h): with Reach::host this rank is to leave, with Reach::peers others will.
Result<void> prepare(const TrainInputs& inputs, const PrepareTerms& terms, RunSetup& setup);

// Takes all steps without other ranks, in a process that never trains. Of the terms only mode (check or ready) and ranks
// count.
Result<void> prepare_alone(Env& env, const Result<LoadedConfig>& config, const PrepareTerms& terms,
                           RunSetup& setup);

// Takes the kernels of `setup.kernel_faults` out of `setup.config` where kernels.on_failure says so, and returns whether it had
// any of them. Every rank does the same: they have the same config, and libraries, which joining a device compares.
Result<bool> leave_out_failed_kernels(Env& env, RunSetup& setup);

// Returns how long a rank waits for its peers, as the config says. `recovers`: as in PrepareTerms.
Waiter waiter_for(const TrainInputs& inputs, const Config& config, bool recovers);

}  // namespace holdfast::elastic
