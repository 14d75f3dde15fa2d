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

namespace holdfast::inline os {

// How a child ended; of a process that is no child nobody can tell.
struct ProcessEnd {
  bool killed = false;  // by a signal
  int code = 0;         // its exit code, or the signal
};

// The destructor lets go of it, and neither ends it nor waits for it.
class Process {
 public:
  virtual ~Process() = default;
  virtual std::int64_t id() const = 0;
  // At most so long; 0: as it is now. True: it has ended, whether or not somebody has reaped it.
  virtual bool wait_ended(std::int64_t timeout_ms) = 0;
  // Of a child that has ended, be it one that this process started or, as process 1 of a container, one that
  // came to it when its parent ended; reaps it. None while it lives, or when it is no child.
  virtual std::optional<ProcessEnd> end() = 0;
  // Ok, too, when it has ended before.
  virtual Result<void> signal(int number) = 0;
  // All processes of its group, whose first it is (ProcessStart::own_session). Not after end() has reaped it:
  // the group's number may then mean another one.
  virtual Result<void> signal_group(int number) = 0;
};

// It begins with all signals unblocked and as the system treats them by default, an empty standard input, and
// none of this process's files but the two output streams.
struct ProcessStart {
  std::vector<std::string> arguments;                 // the program first, looked for in PATH
  std::map<std::string, std::string> variables = {};  // added to the environment of this process
  std::string output = {};     // file to append both output streams to; empty: where those of this process go
  int output_descriptor = -1;  // instead of it, a descriptor of this process for both; -1: none
  bool own_session = false;    // and a group of its own: Ctrl-C at the terminal does not reach it
  bool orphan = false;         // init's child, not this process's: it is nobody's to reap
  // SIGKILL when the thread that starts it ends, which is what the kernel means by parent here. Not for an
  // orphan.
  bool die_with_parent = false;
};

// What /proc says.
struct ProcessFacts {
  std::int64_t parent = 0;
  std::int64_t started_ticks = 0;  // since the host started; with the id it names a process for good
  char state = '?';                // as in ps: R, S, D, T (stopped), Z (ended, not reaped)
  // In the midst of execve, for microseconds: it has the memory of the new program, and what /proc says of
  // its arguments and variables is empty. Never of a process of another user.
  bool becomes_another_program = false;
  // Of all its threads since it started. A major fault waits for a disk.
  std::uint64_t minor_faults = 0, major_faults = 0;
  std::uint64_t resident_bytes = 0;
  bool of_other_user = false;  // than this process; so it is no rank of this process's run
};

class Processes {
 public:
  virtual ~Processes() = default;
  virtual Result<std::unique_ptr<Process>> start(const ProcessStart& start) = 0;
  // Null when there is none. Where the kernel gives no pidfd (old container engines refuse it) the handle
  // goes by the number and the start of the process, which it compares before every signal.
  virtual Result<std::unique_ptr<Process>> find(std::int64_t id) = 0;
  // None when there is no such process. The error proves nothing: this process has no descriptor left, say.
  virtual Result<std::optional<ProcessFacts>> look(std::int64_t id) = 0;
  // The same, and none also where the system does not tell.
  std::optional<ProcessFacts> facts(std::int64_t id) {
    const Result<std::optional<ProcessFacts>> found = look(id);
    return found.ok() ? *found : std::nullopt;
  }
  virtual std::vector<std::int64_t> list() = 0;  // ids that this process may see
  // Names the PID namespace in which this process and the ids of this class are; empty: not known.
  virtual std::string own_namespace() = 0;
  // At most so long, until one of them has ended; whether one has.
  virtual bool wait_any_ended(std::span<Process* const> processes, std::int64_t timeout_ms) = 0;
};

// Returns whether what was found is not, or no longer, the process that started then; one that waits to be
// reaped has ended.
inline bool is_over(const std::optional<ProcessFacts>& found, std::int64_t started_ticks) {
  constexpr char ended = 'Z', ending = 'X';
  return !found.has_value() || found->started_ticks != started_ticks || found->state == ended ||
         found->state == ending;
}

// Returns whether the process of this id that started then is over; false also where the system does not
// tell.
inline bool has_ended(Processes& processes, std::int64_t id, std::int64_t started_ticks) {
  const Result<std::optional<ProcessFacts>> found = processes.look(id);
  return found.ok() && is_over(*found, started_ticks);
}

// Turns this process into the program: same id, streams, signals and environment. It gets `words` behind its
// own name. Returns only where that fails.
Result<void> become_program(const std::string& path, const std::vector<std::string>& words);

// Lets this process have as many descriptors open as its hard limit permits; as a rule it begins with 1,024.
// A guard has two connections to each of the other hosts, and a rank a socket to each other rank. What it
// starts inherits that.
void raise_descriptor_limit();

// Behind Env::processes().
Processes& posix_processes();

}  // namespace holdfast::inline os
