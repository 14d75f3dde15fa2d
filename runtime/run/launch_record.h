// Launch record: reports of the ranks of a start to `holdfast launch`, which cannot see them through mpirun:
// that they live and can take the signal that asks for a save, and how they end. A start has a name and a
// directory, RUN/launch/NAME, which the launcher makes and hands to the ranks in a variable; in it there is
// one file for each rank, with one line for each report, and one for the guard of each host that had
// something to report. Without the variable nothing is reported.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/kernel_fault.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/process_identity.h"
#include "watchdog/fewest_hosts.h"

namespace holdfast::run {

// Holds the directory of the start.
inline constexpr const char* launch_variable = "HOLDFAST_LAUNCH";
// Returns the name of the start that this process belongs to; empty without a launcher.
std::string launched_start(Env& env);
// Returns where Open MPI has its files in the shared memory of each host of a start, so that they can be
// found and removed when it was killed. Those of all starts of a run are found by its token
// (runtime/launch/host_command.h).
std::string launch_scratch(Env& env, const std::string& start);  // its path
std::string launch_scratch_name(const std::string& start);       // in shared memory (Env::list_shared_memory)
// Makes the scratch directory of this process's start, before MPI starts, and names it to Open MPI unless
// another one is set.
void use_launch_scratch(Env& env);

// The functions for ranks. Best effort: a rank that cannot write there trains all the same.
void report_ready_to_launcher(Env& env, int rank);
// Reports a signal at once: its sender may not leave this rank the time to end.
void report_signal_to_launcher(Env& env, int rank, int signal);
// Reports how this rank ends. `signal`: the one that this rank got and that made the run save and stop; 0:
// none, it stopped for the others.
void report_end_to_launcher(Env& env, int rank, ExitCode code, int signal = 0);

// Reports that this rank is unfit (Reach::host), so that it leaves, or that the start fails because of it. `step`:
// what it was about to do.
void report_unfit_to_launcher(Env& env, int rank, const std::string& step, const Error& error);

// Reports, for a guard, that it has ended `rank` (launched; -1: all of its host), and why.
void report_hang_to_launcher(Env& env, int rank, const std::string& sentence);

// Reports, for a guard, how the process of `rank` ended: "signal 9 (SIGKILL)", after it had completed `step`.
void report_death_to_launcher(Env& env, int rank, std::int64_t process, const std::string& cause,
                              std::uint64_t step);

// Reports, for a guard, that a rank has ended in the kernel of a plug-in.
void report_kernel_fault_to_launcher(Env& env, const KernelFault& fault);

// Reports, for a guard, which hosts it does not hear, by name; the newest report counts.
void report_silent_hosts_to_launcher(Env& env, const std::vector<std::string>& hosts);

struct UnfitReport {
  ExitCode code = ExitCode::config;
  Reach reach = Reach::host;
  std::string step = {};
  std::string sentence = {};
};

struct LaunchedRank {
  int rank = 0;
  std::string host = {};     // its name, for people
  std::string host_id = {};  // Env::host_id()
  std::int64_t process = 0;
  std::int64_t started_ticks = 0;    // of the process (ProcessFacts)
  std::optional<ExitCode> end = {};  // none: it has not said so far, or it died
  int signal = 0;
  std::string cause = {};  // how it died, as the guard of its host saw it; empty: it did not see it
  std::optional<UnfitReport> unfit = {};  // why it left, or why the start failed because of it
  std::uint64_t step_at_death = 0;        // newest step that it had completed then, if the guard saw it
  std::int64_t died_us = 0;               // wall clock of that guard

  ProcessIdentity identity() const { return {.id = process, .started_ticks = started_ticks}; }
};
// Returns whether its process is one of this host.
bool is_here(Env& env, const LaunchedRank& rank);
// Reads the ranks in their order; those that have not written their first line whole are left out.
std::vector<LaunchedRank> read_launched_ranks(Env& env, const std::string& directory);

struct ReportedHang {
  std::int64_t time_us = 0;  // wall clock of the guard's host
  int rank = -1;
  std::string sentence = {};
};
// Reads the verdicts of all guards of the start, ordered by time.
std::vector<ReportedHang> read_reported_hangs(Env& env, const std::string& directory);
struct ReportedKernelFault {
  std::int64_t time_us = 0;  // wall clock of the guard's host
  KernelFault fault = {};
};
// Reads the faults of kernels that guards of the start have seen, ordered by time.
std::vector<ReportedKernelFault> read_reported_kernel_faults(Env& env, const std::string& directory);
// Reads which hosts do not hear each other, as their guards report.
std::vector<SilentPair> read_silent_pairs(Env& env, const std::string& directory);

}  // namespace holdfast::run
