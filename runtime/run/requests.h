// Requests to a run, as files RUN/requests/NAME with one line, which is replaced by rename. They reach a run on
// any host that shares the directory, with a launcher or without, and one that is just being started again.
//
// To save and go on: `holdfast save` writes them, and `holdfast launch` for a SIGUSR1; the rank that leads the
// run answers in them.
//   asked                 by the process that asks
//   begun STEP            the state after this step is being saved
//   saved STEP            its checkpoint is visible
//   failed STEP SENTENCE  it could not be saved
// Only the leader writes after "asked". The process that asks removes the file when it has its answer; where
// nobody waits for the answer (RequestKind::unattended) the leader removes it.
//
// To leave a host (drain-HOST): `holdfast drain` writes them, a rank whose host is to be taken away
// (preemption_notice.h), the guard of a sick host (runtime/health/health_watch.h) and the rank that knows of a slow one
// (runtime/train/straggler_watch.h); `holdfast launch` carries them out and answers in them.
//   asked SECONDS                by a person: the host is left within that time, 0: whenever the next step is made
//   notice                       by a rank: the host goes away whatever the run does
//   sick SECONDS RANKS SENTENCE  by the run: as asked, where so many ranks at least are left; why
//   begun [SENTENCE]             the run ends after its next step, for a start without the host; why, where it is sick
//   drained STEP [SENTENCE]      the run goes on without it, from this step
//   refused SENTENCE             the run cannot do without it
// Only the launcher writes after the first three. The host stays out for as long as the file is there; the
// launcher removes those of an earlier launch, unless that was killed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/thread.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

// Says that the launcher wants to start the run again, with more ranks or without some of its hosts.
struct RestartRequest {
  bool wanted = false;
  int hosts_leaving = 0;  // what these have in RAM is lost to the next start
};
// Asks the run to seal its state after the next step, in RAM where it has snapshots there, and to end with
// ExitCode::saved and another_start_reason: a file RUN/requests/restart, which the next start forgets.
Result<void> request_restart(Env& env, const RunPaths& paths, int hosts_leaving);

enum class RequestKind { attended, unattended };
// Returns the path of the request that it wrote.
Result<std::string> request_save(Env& env, const RunPaths& paths, RequestKind kind);

struct SaveAnswer {
  enum class State {
    none,
    asked,
    begun,
    saved,
    failed
  } state = State::none;  // none: there is no such request
  std::uint64_t step = 0;
  std::string sentence = {};  // of `failed`
};
SaveAnswer read_save_answer(Env& env, const std::string& path);

// Removes requests whose answer nobody has fetched. Of a start, before anything is answered.
void forget_answered_requests(Env& env, const RunPaths& paths);

// SaveRequests: the leader's side. A thread looks for requests and writes the answers, so that the training
// loop never waits for the directory, which may be on a slow or dead disk; the loop only reads a flag.
// Requests that an earlier leader has not answered, or not to the end, count as new ones.
//
// Threads: one, that of the training loop. The destructor writes the answers that are left.
class SaveRequests {
 public:
  // Starts the thread and waits for its first look, so that what was asked before is saved with the first
  // step; for first_look_ms at most, as the disk may be dead. Errors: Env::start_thread.
  static Result<std::unique_ptr<SaveRequests>> begin(Env& env, const RunPaths& paths);
  ~SaveRequests();
  SaveRequests(const SaveRequests&) = delete;
  SaveRequests& operator=(const SaveRequests&) = delete;

  // Returns whether a request waits for a save that has not begun.
  bool waiting() const;
  // Returns what the launcher asks for (request_restart()).
  RestartRequest restart_request() const;
  // The state after `step`, which is the current one, is being saved: that answers all that wait.
  void begun(std::uint64_t step);
  // Takes in how that save ended.
  void ended(std::uint64_t step, const Result<void>& outcome);

 private:
  struct Request {
    SaveAnswer answer;
    bool written = true;  // the file says so, too
  };
  SaveRequests(Env& env, const RunPaths& paths);
  void work();
  void find_requests();
  void write_answers();
  void remove_answered();

  Env* env_;
  std::string directory_;
  mutable std::mutex mutex_;  // of what follows; never held beside a call of the system
  const std::unique_ptr<Condition> changed_;
  std::map<std::string, Request> requests_;  // by name
  RestartRequest restart_request_;
  bool stops_ = false, has_looked_ = false;
  std::unique_ptr<Thread> thread_;  // the last member: it uses the others until it ends
};

struct DrainRequest {
  enum class State { asked, notice, sick, begun, drained, refused };
  std::string host = {};
  State state = State::asked;
  std::int64_t deadline_s = 0;  // of `asked` and `sick`
  int ranks = 0;           // of `sick`: the fewest with which the run is better off without the host; 0: any
  std::uint64_t step = 0;  // of `drained`
  std::string sentence = {};  // of `refused` and `sick`; of the others that follow from `sick`
};

// Replaces the request about this host. ExitCode::config where the host's name is not valid.
Result<void> write_drain_request(Env& env, const RunPaths& paths, const DrainRequest& request);
// Does that for a host that the run itself finds sick, unless it leaves the host already.
Result<void> ask_to_leave(Env& env, const RunPaths& paths, const DrainRequest& request);
// Returns all requests that are there, by host. Requests that cannot be read now are left out.
std::vector<DrainRequest> read_drain_requests(Env& env, const RunPaths& paths);
Result<void> remove_drain_request(Env& env, const RunPaths& paths, const std::string& host);

}  // namespace holdfast::run
