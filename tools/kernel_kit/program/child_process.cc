#include "tools/kernel_kit/program/child_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <memory>

#include "runtime/core/text.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/os/processes.h"
#include "runtime/os/thread.h"
#include "tools/bench_native/synthetic_run.h"

namespace holdfast::cli {
namespace {

constexpr std::size_t room_for_result = std::size_t{1} << 20;

struct ChildFiles {
  explicit ChildFiles(const std::string& folder)
      : told(folder + "/told"), result(folder + "/result.json"), error(folder + "/error.json") {}
  std::string told;    // a line for all that came, from before the library is loaded on
  std::string result;  // when all has ended
  std::string error;   // what kept the child itself from its work
};

std::string last_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

// SilenceWatch stops a child that has said nothing new for some time: one limit of the whole would blame the kernel whose
// turn it is where they all together take long.
class SilenceWatch {
 public:
  SilenceWatch(Env& env, const std::string& told, const ChildTerms& terms)
      : env_(env),
        told_(told),
        silence_ns_(terms.silence_s * 1'000'000'000),
        shows_progress_(terms.shows_progress) {
    Result<std::unique_ptr<Thread>> started = env.start_thread("silence", [this] { watch(); });
    if (started.ok()) thread_ = std::move(started).value();
  }
  ~SilenceWatch() {
    ends_ = true;
    if (thread_ != nullptr) thread_->wait();
  }
  SilenceWatch(const SilenceWatch&) = delete;
  SilenceWatch& operator=(const SilenceWatch&) = delete;

  const std::atomic<bool>& stops_child() const { return stops_child_; }

 private:
  void watch() {
    constexpr std::int64_t pause_us = 20'000, progress_ns = 5'000'000'000;
    std::uint64_t bytes = 0;
    std::int64_t since_ns = env_.monotonic_ns(), shown_ns = since_ns;
    while (!ends_ && !stops_child_) {
      env_.sleep_us(pause_us);
      const Result<FileStatus> status = env_.status(told_);
      const std::int64_t now_ns = env_.monotonic_ns();
      if (status.ok() && status->bytes != bytes) {
        bytes = status->bytes;
        since_ns = now_ns;
        if (shows_progress_ && now_ns - shown_ns >= progress_ns) {
          shown_ns = now_ns;
          print_message("{}", printable(last_line(env_.text_or_empty(told_))));
        }
      } else if (now_ns - since_ns > silence_ns_) {
        stops_child_ = true;
      }
    }
  }

  Env& env_;
  std::string told_;
  std::int64_t silence_ns_;
  bool shows_progress_;
  std::atomic<bool> ends_ = false, stops_child_ = false;
  std::unique_ptr<Thread> thread_;
};

// Returns the last thing that the child said would come; empty: it said nothing.
std::string last_told(Env& env, const ChildFiles& files) {
  return last_line(env.text_or_empty(files.told));
}

// Returns the child's own error, if it told of one.
std::optional<Error> error_of_child(Env& env, const ChildFiles& files) {
  const Json error = Json::parse_any(env.text_or_empty(files.error));
  if (!error.is_object() || !error.contains("code") || !error.contains("message")) return std::nullopt;
  if (!error.at("code").is_number() || !error.at("message").is_string()) return std::nullopt;
  return Error{static_cast<ExitCode>(error.at("code").get<int>()), error.at("message").get<std::string>()};
}

// Returns what the child found, if it came to its end: a document and its text at least.
std::optional<Json> result_of_child(Env& env, const ChildFiles& files) {
  Json result = Json::parse_any(env.text_or_empty(files.result));
  const bool is_whole = result.is_object() && result.contains("document") &&
                        result.at("document").is_object() && result.contains("text") &&
                        result.at("text").is_string();
  return is_whole ? std::optional(std::move(result)) : std::nullopt;
}

// Returns what is known of the reason for a signal: who aborts says why.
std::string why_killed(const CommandEnd& end) {
  if (end.code == SIGSEGV || end.code == SIGBUS) return ": it uses memory that is not its own";
  if (end.code != SIGABRT) return "";
  std::string_view text = end.output;
  while (text.ends_with('\n')) text.remove_suffix(1);
  text.remove_prefix(text.rfind('\n') + 1);
  return text.empty() ? "" : fmt::format(", after it printed \"{}\"", printable(text));
}

// Signals that come from outside: from people, and from a system without memory. A plug-in that sends itself one is not
// told from them, and hurts nobody but itself.
bool is_from_outside(const CommandEnd& end) {
  constexpr int signals[] = {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  return end.how == CommandEnd::How::killed && std::ranges::find(signals, end.code) != std::end(signals);
}

std::string fault_text(const ChildTerms& terms, const CommandEnd& end) {
  switch (end.how) {
    case CommandEnd::How::timed_out:
    case CommandEnd::How::cancelled:
      return fmt::format("did not answer for {} s", terms.silence_s);
    case CommandEnd::How::killed:
      return fmt::format("ended the process by {}{}", text_of(ProcessEnd{.killed = true, .code = end.code}),
                         why_killed(end));
    case CommandEnd::How::exited:
      break;
  }
  return fmt::format("ended the process with exit code {}, before its work had ended", end.code);
}

}  // namespace

Result<ChildEnd> run_child(Env& env, const ChildTerms& terms) {
  HF_TRY(const std::unique_ptr<bench::ScratchDirectory> scratch, bench::ScratchDirectory::make(env));
  const std::string folder = scratch->file("child");
  HF_TRY_VOID(env.make_directories(folder));
  const ChildFiles files(folder);
  std::vector<std::string> line = {program_path()};
  line.insert(line.end(), terms.words.begin(), terms.words.end());
  line.push_back("--folder=" + folder);
  constexpr std::int64_t ever_ms = std::int64_t{30} * 24 * 3600 * 1000;
  const SilenceWatch watch(env, files.told, terms);
  HF_TRY(const CommandEnd end, env.run_command({.line = "exec " + words_for_shell(line),
                                                .timeout_ms = ever_ms,
                                                .cancelled = &watch.stops_child()}));
  if (end.how == CommandEnd::How::exited) {
    if (std::optional<Error> error = error_of_child(env, files)) return std::move(*error);
    if (end.code == 0) {
      if (std::optional<Json> result = result_of_child(env, files))
        return ChildEnd{.result = std::move(result)};
    }
  }
  const std::string told = last_told(env, files);
  if (told.empty())
    return fail(ExitCode::data, "the kernels could not begin in a process of their own: {}", end.output);
  if (is_from_outside(end))
    return fail(
        ExitCode::communication,
        "the process of the plug-in was ended from outside, by {}{}, which says nothing about its kernels; "
        "the last thing: {}. Start again",
        text_of(ProcessEnd{.killed = true, .code = end.code}),
        end.code == SIGKILL ? " (the system does so where memory runs out)" : "", told);
  // A disk that is full keeps the child from telling what it found, which is no fault of the plug-in.
  HF_TRY_VOID(env.replace_text(scratch->file("room"), std::string(room_for_result, ' ')));
  return ChildEnd{.fault = fmt::format("{}; the last thing: {}", fault_text(terms, end), told)};
}

Result<int> work_as_child(Env& env, const std::string& folder,
                          const std::function<Result<Json>(const Tell& tell)>& work) {
  const ChildFiles files(folder);
  const Result<Json> result =
      work([&](const std::string& what) { return env.append_line(files.told, what); });
  if (!result.ok()) {
    const Error& error = result.error();
    HF_TRY_VOID(env.replace_text(
        files.error, Json{{"code", static_cast<int>(error.code)}, {"message", error.message}}.dump_any()));
    return error;
  }
  HF_TRY_VOID(env.replace_text(files.result, result->dump_any()));
  return 0;
}

}  // namespace holdfast::cli
