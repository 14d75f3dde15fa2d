// MPI loader: makes MPI a choice at run time. All code that calls MPI is in a library of its own beside the
// program (libholdfast_mpi.so, made from parallel/mpi/), which is loaded when it is needed. Without it, or
// without the MPI it needs, everything works that has one rank.
//
// Errors: ExitCode::config with a message that contains the dynamic loader's reason.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"
#include "parallel/group/membership.h"
#include "runtime/core/wait_listener.h"
#include "runtime/os/env.h"

namespace holdfast::parallel {

struct MpiFacts {
  std::string library;          // "Open MPI 5.0.11"
  bool fault_tolerant = false;  // ULFM compiled in and switched on
};

// MPI session of this process. There is one, from start to the end of the process.
class MpiSession {
 public:
  virtual ~MpiSession() = default;
  virtual Communicator& world() = 0;  // communicator of the newest epoch
  // Returns the world for Membership; null where this MPI cannot continue without a dead rank.
  virtual ShrinkingWorld* shrinking_world() = 0;
  virtual MpiFacts facts() const = 0;
  // Finalizes MPI together with all other ranks that are left. It is not called with an abandoned world:
  // MPI_Finalize would wait for the dead ranks, and the destructor never calls it.
  virtual Result<void> finish(std::int64_t timeout_ms) = 0;
  // Ends the process after a communication error. mpirun may end all others as soon as one rank exits with a
  // code other than 0; so rank 0, which writes the run's last record, exits first, and the others wait a
  // second for it.
  [[noreturn]] virtual void leave_after_error(ExitCode code) = 0;
};

// Prepares a process that other ranks have started, before they take it in: `task` is the text that they
// passed to it. It may take any time, and calls `look_up` now and then, which ends the process when no rank
// waits for it any more.
using Preparation = std::function<void(const std::string& task, const std::function<void()>& look_up)>;

// Functions that the library provides. Program and library are built together and share these headers, the
// C++ runtime and the heap; neither throws into the other.
struct MpiModule {
  MpiFacts (*facts)();
  Result<std::unique_ptr<MpiSession>> (*start)(Env& env, std::int64_t join_timeout_ms, WaitListener* listener,
                                               const Preparation& preparation);
};
inline constexpr const char* mpi_module_file = "libholdfast_mpi.so";
inline constexpr const char* mpi_module_symbol = "holdfast_mpi_module";
using MpiModuleFactory = const MpiModule*();

// Loads the library, which stays loaded until the process ends: MPI cannot be unloaded. `directory` is that
// of the library.
Result<const MpiModule*> load_mpi_module(const std::string& directory);

// Joins the job that launched this process (parallel/comm/launcher.h), with the library in the directory of
// the program. MPI is initialised under a deadline: when it passes, a thread ends the process with
// ExitCode::communication, after printing on stderr what was waited for. It is also an error when launcher
// and library do not belong together, so that each rank would be alone. `listener` is notified of waits in
// calls that can only block, this one among them, from a thread that exists meanwhile instead of the
// caller's; null: there is none. It outlives the session. `preparation` is called in a process that other
// ranks have started with a task.
Result<std::unique_ptr<MpiSession>> start_mpi(Env& env, std::int64_t join_timeout_ms,
                                              WaitListener* listener = nullptr,
                                              const Preparation& preparation = {});
// Returns the facts without starting MPI (for `holdfast check` and --version); fault_tolerant says what was
// compiled in.
Result<MpiFacts> mpi_library_facts();

}  // namespace holdfast::parallel
