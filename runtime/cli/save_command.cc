// holdfast save: requests a save from a run that is going on, on whichever host
// (runtime/run/requests.h), and waits until the checkpoint is visible.
#include <fmt/core.h>

#include <optional>
#include <string>

#include "checkpoint/store.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/core/units.h"
#include "runtime/os/console.h"
#include "runtime/run/requests.h"
#include "runtime/run/run_directory.h"

namespace holdfast::cli {
namespace {

constexpr std::int64_t look_again_us = 100'000;
constexpr std::int64_t report_again_ns = 10'000'000'000;
constexpr std::int64_t look_at_locks_ns = 1'000'000'000;

constexpr const char* save_usage =
    "usage: holdfast save RUN [--timeout 10m]\n"
    "\n"
    "Lets the run of the run directory RUN save after the step that it is at, and go on. Returns when the "
    "checkpoint is\n"
    "visible, and prints where it is. The run may be on any host that shares RUN, and may be starting or "
    "recovering;\n"
    "--timeout says how long that may take. A run that has finished, or has stopped with its state saved, "
    "needs no save:\n"
    "its newest checkpoint is printed. Exit code 76: it is not running, or did not save in time.\n";

// Request that is removed when this process no longer waits for its answer.
class Request {
 public:
  Request(Env& env, std::string path) : env_(env), path_(std::move(path)) {}
  ~Request() { static_cast<void>(env_.remove(path_).ok()); }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  SaveAnswer answer() const { return read_save_answer(env_, path_); }

 private:
  Env& env_;
  std::string path_;
};

std::string checkpoint_of(Env& env, const RunPaths& paths, std::uint64_t step) {
  FaultPoints none;
  return CheckpointStore(env, none, paths.directory).checkpoint_directory(step);
}

void print_saved(Env& env, const RunPaths& paths, std::uint64_t step) {
  fmt::print("step {} is saved in {}\n", step, checkpoint_of(env, paths, step));
}

// Reports on a run that has nothing to save any more, or never had.
Result<void> say_not_running(Env& env, const RunPaths& paths) {
  const RunStatus status = read_status(env, paths);
  if (status.state == "finished" || status.state == "saved") {
    print_saved(env, paths, status.step);
    return {};
  }
  const std::string last = status.state == "failed"    ? "failed: " + status.reason
                           : status.state == "running" ? "was killed"
                                                       : "did not get to its first step";
  return fail(
      ExitCode::communication,
      "{} is not running, so nothing can be saved: its last start {}. Start it again; it goes on from "
      "what was saved",
      paths.directory, last);
}

Error not_in_time(Env& env, const RunPaths& paths, std::int64_t timeout_ms, const std::string& holder) {
  return fail(
      ExitCode::communication,
      "{} did not save within {}: it is held by {}, and its status says step {}. A step may take longer "
      "than that (--timeout), or that host does not see this directory",
      paths.directory, format_duration(timeout_ms), holder, read_status(env, paths).step);
}

Result<void> wait_for_answer(Env& env, const RunPaths& paths, std::int64_t timeout_ms, std::string holder) {
  HF_TRY(std::string path, request_save(env, paths, RequestKind::attended));
  const Request request(env, std::move(path));
  const std::int64_t begin_ns = env.monotonic_ns();
  std::int64_t reported_ns = begin_ns, looked_ns = begin_ns;
  print_message("{} ({}) is asked to save after the step that it is at", paths.directory, holder);
  SaveAnswer::State last = SaveAnswer::State::asked;
  while (true) {
    const SaveAnswer answer = request.answer();
    if (answer.state == SaveAnswer::State::saved) {
      print_saved(env, paths, answer.step);
      return {};
    }
    if (answer.state == SaveAnswer::State::failed) {
      return fail(ExitCode::checkpoint, "step {} could not be saved: {}. The run goes on", answer.step,
                  answer.sentence);
    }
    if (answer.state == SaveAnswer::State::begun && last != answer.state)
      print_message("step {} is being saved", answer.step);
    last = answer.state;
    const std::int64_t now_ns = env.monotonic_ns();
    if (now_ns - looked_ns > look_at_locks_ns) {
      looked_ns = now_ns;
      HF_TRY(const std::optional<std::string> now, run_holder(env, paths));
      const bool answered = request.answer().state == SaveAnswer::State::saved;
      if (!now.has_value() && !answered) return say_not_running(env, paths);
      holder = now.value_or(holder);
    }
    if (now_ns - begin_ns > timeout_ms * 1'000'000) return not_in_time(env, paths, timeout_ms, holder);
    if (now_ns - reported_ns > report_again_ns) {
      reported_ns = now_ns;
      print_message("still waiting, for {}", format_duration((now_ns - begin_ns) / 1'000'000'000 * 1000));
    }
    env.sleep_us(look_again_us);
  }
}

Result<void> save(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("save", words, {"RUN"}, {"timeout"}));
  HF_TRY(const std::int64_t timeout_ms, parse_duration(arguments.text("timeout", "10m")));
  Env& env = posix_env();
  const RunPaths paths{arguments.positional(0)};
  HF_TRY_VOID(expect_run_directory(env, paths));
  HF_TRY(const std::optional<std::string> holder, run_holder(env, paths));
  return holder.has_value() ? wait_for_answer(env, paths, timeout_ms, *holder) : say_not_running(env, paths);
}

}  // namespace

int run_save_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", save_usage);
    return 0;
  }
  const Result<void> saved = save(arguments);
  return saved.ok() ? 0 : complain(saved.error());
}

}  // namespace holdfast::cli
