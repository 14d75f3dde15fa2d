// Uploader runs the user's command (checkpoint.upload_command) for checkpoints that are durable, on a thread
// of its own. It never delays training: while a command runs, only the newest checkpoint that was offered
// waits for its turn. A command that fails is tried again at growing intervals, and then given up for this
// checkpoint; the checkpoint stays where it is.
//
// Threads: one owner. The store is only told which checkpoints are in use. Errors are in the reports.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/os/thread.h"
#include "runtime/save/user_command.h"

namespace holdfast::save {

struct UploadReport {
  std::uint64_t step = 0;
  Result<void> outcome;  // the error says what the last attempt printed
  int attempts = 0;
  std::int64_t duration_ns = 0;  // time of all attempts and the waits between them
};

// Reports on stderr that an upload has failed; does nothing for one that has succeeded.
void report_upload(const UploadReport& report);

class Uploader {
 public:
  struct Settings {
    UserCommand command;
    std::string record = {};  // path of RUN/uploaded; empty: none
  };
  // The store outlives it.
  Uploader(Env& env, CheckpointStore& store, Settings settings);
  // Calls cancel().
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // Offers the checkpoint of this step, which is durable.
  void offer(std::uint64_t step);
  bool busy();  // a checkpoint is being uploaded or waits
  // Kills the upload that is under way. Checkpoints that were offered and are not uploaded yet are reported
  // as such. Nothing may be offered after this.
  void cancel();
  std::vector<UploadReport> take_reports();

 private:
  void work();
  void mark_in_use();
  UploadReport upload(std::uint64_t step);

  Env* env_;
  CheckpointStore* store_;
  Settings settings_;
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;  // guards the members below
  const std::unique_ptr<Condition> changed_;
  std::optional<std::uint64_t> next_, uploading_;
  std::vector<UploadReport> reports_;
  std::unique_ptr<Thread> thread_;  // null: nothing was offered so far; the last member: it uses the others
};

}  // namespace holdfast::save
