// PreemptionNotice: learns that the host of this rank is about to be taken away, and lets the run leave it
// while there is time (runtime/run/requests.h).
//
// One rank of each host looks every `elastic.notice_every` whether `elastic.notice_file` is there, and
// whether `elastic.notice_command` ends with 0, as a command does that asks the metadata service of a cloud.
// SIGPWR to any rank of the host says the same. Where `holdfast launch` has the run it is asked to go on
// without the host; where nobody can move it, this rank asks all others to save and stop.
//
// Threads: signalled() and stops() from the training loop, which never waits for a file; a thread of its own
// does the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/config/config.h"
#include "runtime/os/thread.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

class PreemptionNotice {
 public:
  struct Settings {
    ElasticConfig config = {};
    bool looks = false;         // at the file and the command; else it waits for signalled()
    bool has_launcher = false;  // a `holdfast launch`
  };
  PreemptionNotice(Env& env, RunPaths paths, Settings settings);
  // Ends a command that is under way.
  ~PreemptionNotice();
  PreemptionNotice(const PreemptionNotice&) = delete;
  PreemptionNotice& operator=(const PreemptionNotice&) = delete;

  // The system says that the power of the host is about to fail.
  void signalled();
  // Says that the launcher does not read what is written here, because run.directory is local to each host: a
  // notice then stops the run. Before the first step.
  void launcher_does_not_see();
  // Returns whether the run must save and stop, because nobody can move it to other hosts.
  bool stops() const { return stops_; }

 private:
  void begin();
  void work();
  bool is_given();
  bool rest(std::int64_t milliseconds) const;
  bool ask_launcher();

  Env* env_;
  RunPaths paths_;
  Settings settings_;
  std::atomic<bool> has_launcher_;
  std::atomic<bool> signalled_ = false, stops_ = false, ended_ = false;
  bool refused_ = false;            // the system refused the thread
  std::unique_ptr<Thread> thread_;  // null: nothing to look at so far
};

}  // namespace holdfast::run
