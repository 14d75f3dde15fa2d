// The run directory: its paths, its lock and its status file.
//   config.toml   resolved configuration        events.jsonl  the event log
//   status.json   how the run stands            report.html   curves
//   history.json  failures and time so far (failure_record.h)
//   hardware.json  findings about the hardware so far (hardware_record.h)
//   kernel_faults/  kernels of plug-ins that have failed (kernel_faults.h)
//   metrics.prom, metrics_state.json, tensorboard/  its numbers for monitoring (runtime/metrics)
//   metrics_address, metrics_token  where a scraper finds them by HTTP, and what it must know
//   notified.json      how much of the log notify.command has told
//   rank_times.jsonl  where each rank spent its time (runtime/health/rank_times.h)
//   checkpoints/  whole checkpoints only        lock          held by the one writer
//   trace/        what each rank did when (trace_file.h)
//   run_id        identifies the run's shared-memory segments; run_place: where it was (below)
//   place_name    what manifests call this host, where the directory is local to each (storage_domains.h)
//   lineage.json  the generations of the run (checkpoint/lineage.h)
//   uploaded      the checkpoint that was uploaded last (uploads.h)
//   requests/     requests to save and go on (requests.h)
//   launch/       what `holdfast launch` and the ranks of its start tell each other (launch_record.h)
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/claim.h"

namespace holdfast::run {

struct RunPaths {
  std::string directory;
  std::string config() const { return directory + "/config.toml"; }
  std::string events() const { return directory + "/events.jsonl"; }
  std::string status() const { return directory + "/status.json"; }
  std::string history() const { return directory + "/history.json"; }
  std::string hardware() const { return directory + "/hardware.json"; }
  std::string kernel_faults() const { return directory + "/kernel_faults"; }
  std::string rank_times() const { return directory + "/rank_times.jsonl"; }
  std::string metrics() const { return directory + "/metrics.prom"; }
  std::string metrics_state() const { return directory + "/metrics_state.json"; }
  std::string metrics_token() const { return directory + "/metrics_token"; }
  std::string metrics_address() const { return directory + "/metrics_address"; }
  std::string notified() const { return directory + "/notified.json"; }
  std::string tensorboard() const { return directory + "/tensorboard"; }
  std::string report() const { return directory + "/report.html"; }
  std::string lock() const { return directory + "/lock"; }
  std::string run_id() const { return directory + "/run_id"; }
  std::string run_place() const { return directory + "/run_place"; }
  std::string place_name() const { return directory + "/place_name"; }
  std::string uploaded() const { return directory + "/uploaded"; }
  std::string trace() const { return directory + "/trace"; }
  std::string trace(int rank) const { return fmt::format("{}/trace/rank-{:05d}.jsonl", directory, rank); }
  std::string requests() const { return directory + "/requests"; }
  std::string launch() const { return directory + "/launch"; }
  std::string launch_lock() const { return launch() + "/lock"; }
  std::string ledger(int rank) const { return fmt::format("{}/ledger-{:05d}.jsonl", directory, rank); }
};

// Reason that a run gives, with the state "saved", when it ends because its launcher starts it again with
// more ranks or without a host: its state is sealed, in RAM where it has snapshots there.
inline constexpr const char* another_start_reason = "sealed for another start";

// Returns a sentence where other users may write the run directory or its requests; empty: nobody else may.
std::string who_else_may_write(Env& env, const RunPaths& paths);

struct RunStatus {
  std::string state = "unknown";  // "running", "saved", "finished", "failed"
  std::uint64_t step = 0;
  int exit_code = 0;
  std::string reason = {};
  std::string start = {};  // that wrote it (launch_record.h); empty without `holdfast launch`
};

// Makes the directory and its name durable, proves that it can be written, becomes its one writer, and
// removes what a killed one left half written: waits 10 s for a writer that is there, then fails with
// ExitCode::communication, naming its host and pid; waits for the lease of one whose host may be gone, then
// takes its place (claim.h). ExitCode::communication, too, where the file system fails, which may be over at
// the next start; ExitCode::config where the path cannot be written.
Result<std::unique_ptr<Claim>> claim_run_directory(Env& env, const RunPaths& paths,
                                                   const LeaseTerms& terms = {});
// Tries whether this host can lock the run directory, without a claim: takes the lock and releases it, and a lock that
// somebody else holds counts, too. Errors: as of Env::lock.
Result<void> try_run_lock(Env& env, const RunPaths& paths);
// Makes a claim for the launcher of the run, which waits for another one as a writer does for another.
Result<std::unique_ptr<Claim>> claim_launch(Env& env, const RunPaths& paths, const LeaseTerms& terms = {});
// Terms of ranks that go on without the writer: they have a quorum, so it has lost its place already, and a
// few renewals that do not come say that it does not know.
inline constexpr LeaseTerms recovery_lease = {.lease_ms = 6'000};
// Makes of an error of the file system one of run.directory: ExitCode::config where another start would meet
// the same, else ExitCode::communication.
Error run_directory_error(const Error& reason);
// Reads the status; "unknown" when there is no status file, or a foreign or damaged one.
RunStatus read_status(Env& env, const RunPaths& paths);
// Writes the status. `start` is that of this process, whatever the status says.
Result<void> write_status(Env& env, const RunPaths& paths, const RunStatus& status);
// Returns false where the status is finished or saved, because a start that fails before its first step does
// not overwrite how the run ended.
bool may_record_failure(Env& env, const RunPaths& paths);

// Returns whether another start of the same command would be refused, too.
bool is_refusal(ExitCode code);

// Removes the directory, which the caller has made and has the claim of, if it holds nothing but what a start
// makes before its first step; returns whether it did.
bool remove_unused_directory(Env& env, const RunPaths& paths);

// ExitCode::config with a sentence where nothing of a run is in the directory.
Result<void> expect_run_directory(Env& env, const RunPaths& paths);

// The host and process, as they wrote it, that write the run, or else the launcher that will start one. None:
// nobody. Error: config, where this user may not look; only who may write a run may open its locks.
Result<std::optional<std::string>> run_holder(Env& env, const RunPaths& paths);
// Returns whether a `holdfast launch` has the run. Error: as above.
Result<bool> has_launcher(Env& env, const RunPaths& paths);

// Identity of a run directory: the id that names what its run has in shared memory (checkpoint/ram_tier.h).
//
// It is in the file run_id, and run_place says for which directory it was made. A run directory that is
// copied brings both along; so where run_place names another directory, and that one still has the same id,
// this one is a copy: what the id names belongs to the other one, and this one gets an id of its own. A
// directory that was moved keeps its id. One directory may have several paths (links, hosts that mount it
// elsewhere): a file that is made here and seen there is proof that the two are one.
//
// The id of what is saved (Manifest::run_id) is another thing: it stays with the checkpoints, wherever they
// are taken.
struct RunIdentity {
  std::string id = {};       // empty: the directory has none, or only that of the directory it is a copy of
  std::string copy_of = {};  // that directory
};

// Reads the file run_id. ExitCode::data where it is not an id of a run, because it is sent to other hosts,
// and what it names is removed there.
Result<std::string> read_run_id(Env& env, const RunPaths& paths);
// Makes and removes a file in the directory where it is known by another path; nothing else is changed.
Result<RunIdentity> identify_run(Env& env, const RunPaths& paths);
// Each file is whole or as it was; in between the id is that of this directory and of no other. The caller
// holds the directory's lock.
Result<void> record_identity(Env& env, const RunPaths& paths, const std::string& id);
std::string new_run_id(Env& env);  // 32 hex digits

}  // namespace holdfast::run
