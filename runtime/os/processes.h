// Processes: others of this host, as handles that never come to mean a different process when the kernel uses
// a number again (pidfd).
//
// Threads: a handle belongs to one thread at a time; Processes is for any thread. Errors:
// ExitCode::communication with the system's reason.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::os {

// Describes how a process ended.
struct ProcessEnd {
  bool killed = false;  // by a signal
  int code = 0;         // its exit code, or the signal
  bool operator==(const ProcessEnd&) const = default;
};
// Returns "signal 9 (SIGKILL)" or "exit code 3".
std::string text_of(const ProcessEnd& end);

// A handle to a process. The destructor neither ends the process nor waits for it.
class Process {
 public:
  virtual ~Process() = default;
  virtual std::int64_t id() const = 0;
  // Waits for the end, at most `timeout_ms`; 0 only looks. Returns true when the process has ended, whether
  // or not it has been reaped.
  virtual bool wait_ended(std::int64_t timeout_ms) = 0;
  // Reaps a child that has ended and returns how: one that this process started or, as process 1 of a
  // container, one that it inherited when its parent ended. Returns none while the process lives, or when it
  // is no child.
  virtual std::optional<ProcessEnd> end() = 0;
  // Returns how the process ended, whoever its parent is, and does not reap it: from /proc while it waits to
  // be reaped, from its pidfd after that (Linux 6.15). Returns none while the process lives, and where the
  // system does not tell; nothing is inferred.
  virtual std::optional<ProcessEnd> observed_end() = 0;
  // Sends the signal; it is no error when the process has ended before.
  virtual Result<void> signal(int number) = 0;
  // Signals all processes of the group that this process leads (ProcessStart::own_session). Not allowed after
  // end() has reaped it: the group's number may then belong to another group.
  virtual Result<void> signal_group(int number) = 0;
};

// Describes how to start a process. It begins with all signals unblocked and at their default, an empty
// standard input, and none of this process's files but the two output streams.
struct ProcessStart {
  std::vector<std::string> arguments;                 // the program first, looked for in PATH
  std::map<std::string, std::string> variables = {};  // added to the environment of this process
  std::string output = {};     // file to append both output streams to; empty: where those of this process go
  int output_descriptor = -1;  // used instead of `output` for both, a descriptor of this process; -1: none
  bool own_session = false;    // and a group of its own: Ctrl-C at the terminal does not reach it
  bool orphan = false;         // a child of init, not of this process, which cannot reap it
  // Sends SIGKILL when the thread that starts it ends, which is what the kernel means by parent here. Not for
  // an orphan.
  bool die_with_parent = false;
};

// Facts about a process from /proc.
struct ProcessFacts {
  std::int64_t parent = 0;
  std::int64_t started_ticks = 0;  // since the host started; with the id it identifies a process uniquely
  char state = '?';                // as in ps: R, S, D, T (stopped), Z (ended, not reaped)
  // True in the midst of execve, for microseconds: the process has the memory of the new program, and /proc
  // shows its arguments and variables as empty. Never true of a process of another user.
  bool becomes_another_program = false;
  // True from the moment when a process that ends has given up its memory, and with it the variables in /proc,
  // until its last thread has ended: till then it may hold descriptors and locks. Its first thread may be a
  // 'Z' meanwhile.
  bool is_ending = false;
  // Page faults of all its threads since it started. A major fault waits for a disk.
  std::uint64_t minor_faults = 0, major_faults = 0;
  std::uint64_t resident_bytes = 0;
  bool of_other_user = false;  // than this process; so it is no rank of this process's run
  // Says how it ended, of a process that waits to be reaped. None also where the kernel shows 0 instead, as it does
  // to a process that may not know.
  std::optional<ProcessEnd> end = {};

  // Returns whether the process has ended; one that waits to be reaped has.
  bool has_ended() const { return state == 'Z' || state == 'X'; }
};

class Processes {
 public:
  virtual ~Processes() = default;
  virtual Result<std::unique_ptr<Process>> start(const ProcessStart& start) = 0;
  // Returns null when there is no such process. Where the kernel gives no pidfd (old container engines refuse
  // it) the handle relies on the number and the start time of the process, which it compares before every
  // signal.
  virtual Result<std::unique_ptr<Process>> find(std::int64_t id) = 0;
  // Returns none when there is no such process. An error proves nothing about it: this process may have no
  // descriptor left, for example.
  virtual Result<std::optional<ProcessFacts>> look(std::int64_t id) = 0;
  // Returns what look() does, and none also when that fails.
  std::optional<ProcessFacts> facts(std::int64_t id) {
    const Result<std::optional<ProcessFacts>> found = look(id);
    return found.ok() ? *found : std::nullopt;
  }
  virtual std::vector<std::int64_t> list() = 0;  // ids that this process may see
  // Returns a name of the PID namespace of this process and of the ids of this class; empty: unknown.
  virtual std::string own_namespace() = 0;
  // Waits, at most `timeout_ms`, until one of the processes has ended; returns whether one has.
  virtual bool wait_any_ended(std::span<Process* const> processes, std::int64_t timeout_ms) = 0;

  // Returns the processors that the calling thread may run on, in ascending order; empty where the system does
  // not say.
  virtual std::vector<int> own_processors() { return {}; }
  // Lets all threads of this process, and the threads and processes that they start from now on, run on these
  // processors alone, of which there is at least one.
  virtual Result<void> run_on(std::span<const int> processors) {
    return fail(ExitCode::communication, "cannot bind this process to {} processors here", processors.size());
  }
};

// Turns this process into the program: same id, streams, signals and environment. The program gets `words`
// after its own name. Returns only on failure.
Result<void> become_program(const std::string& path, const std::vector<std::string>& words);

// Raises the number of descriptors that this process may have open to its hard limit; it usually begins with
// 1,024. A guard has two connections to each of the other hosts, and a rank a socket to each other rank.
// Child processes inherit the limit.
void raise_descriptor_limit();

// Keeps the kernel from writing core files of this process and its children: memory holds weights, data and the
// secret of the run. The hard limit stays, so that a person can raise it for a process that is there.
void forbid_core_files();

// Returns the object that Env::processes() of the real operating system returns.
Processes& posix_processes();

}  // namespace holdfast::os
