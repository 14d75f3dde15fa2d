// Env: the one door to the operating system. Everything that touches files, clocks, processes or shared
// memory goes through it, so that tests can put a failing, slow or recording world behind it
// (tests/support/faulty_env.h).
//
// Threads: every method may be called from any thread. Errors: Result with a sentence that names the path and
// the operating system's reason; the exit code is ExitCode::data for reads and ExitCode::checkpoint for
// writes (callers that know better replace it).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/command.h"

namespace holdfast::inline os {

class IoEngine;
class IoQueue;
class Network;
class Processes;
struct IoQueueOptions;

// An open file. Offsets are explicit and 64-bit; short reads and writes are retried inside. Closed by the
// destructor. The methods block; many operations at a time go through an IoQueue (runtime/os/io_queue.h).
class File {
 public:
  virtual ~File() = default;
  // Reads exactly `target.size()` bytes at `offset`; reaching the end of the file first is an error.
  virtual Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) = 0;
  virtual Result<void> write_at(std::uint64_t offset, std::span<const std::byte> source) = 0;
  // Reserves the blocks of [0, bytes) now, so that a full disk is an error before the first write.
  virtual Result<void> allocate(std::uint64_t bytes) = 0;
  // The file ends at `bytes`; what it gains is zero.
  virtual Result<void> truncate(std::uint64_t bytes) = 0;
  // Data and metadata are durable when this returns ok. After an error the file must be abandoned, never
  // retried.
  virtual Result<void> sync() = 0;
  virtual Result<std::uint64_t> size() = 0;
  // Hints, which may do nothing: the bytes will be read soon; nothing of the file need stay in the cache.
  virtual void will_need(std::uint64_t offset, std::uint64_t bytes) = 0;
  virtual void drop_cached() = 0;
  // Empty when what an IoQueue moves bypasses the page cache; else why it does not.
  virtual std::string buffered_reason() const = 0;
  virtual const std::string& path() const = 0;

 private:
  friend class IoQueue;
  struct QueuedWrites {
    int in_flight = 0;
    std::optional<Error> failure;  // the first; nothing is written or synced after it
  };
  QueuedWrites queued_writes_;
};

enum class OpenMode {
  read,    // must exist
  create,  // must not exist: nothing is ever overwritten by accident
  // As these, and the operations of an IoQueue bypass the page cache where the file system can do that
  // (buffered_reason). The methods of File use the cache; the kernel keeps the two coherent.
  read_direct,
  create_direct,
};
inline bool is_read(OpenMode mode) {
  return mode == OpenMode::read || mode == OpenMode::read_direct;
}

struct FileStatus {
  bool exists = false;
  bool directory = false;
  std::uint64_t bytes = 0;
};

// Held for as long as the object lives; the kernel releases it when the process dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
  // Replaces the content of the locked file, for readers on all hosts when it returns. Writes to the file
  // that was locked, also where another one has its name by now. Errors: checkpoint.
  virtual Result<void> rewrite(const std::string& content) = 0;
};

// Memory that the processes of this host share by name and that outlives them: it is there until its name is
// removed (or the host restarts) and the last mapping is gone. The destructor unmaps it, and removes nothing.
class SharedMemory {
 public:
  enum class Hold { shared, alone };
  virtual ~SharedMemory() = default;
  virtual std::span<std::byte> bytes() = 0;
  // A lock on it (flock) that goes with this object and with the process: many hold it shared, or one alone.
  // The kernel knows who lives where a process number says nothing, as in another process namespace. Does
  // not wait: false when others hold it so that this one cannot, which then holds it no longer, either.
  virtual bool hold(Hold how) = 0;
};

class Env {
 public:
  virtual ~Env() = default;

  // Files
  virtual Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) = 0;
  virtual Result<FileStatus> status(const std::string& path) = 0;  // a missing path is ok with exists = false
  // Names, sorted, no . and ..
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;
  // Errors: config where this user may not make it, or nobody may.
  virtual Result<void> make_directories(const std::string& path) = 0;
  virtual Result<void> rename(const std::string& source, const std::string& target) = 0;
  // A second name for a file, which lives until its last name is removed. `target` must not exist; fails
  // where the file system has no hard links.
  virtual Result<void> link(const std::string& source, const std::string& target) = 0;
  virtual Result<void> remove(const std::string& path) = 0;  // a file; missing is ok
  // A directory and what is in it; missing is ok.
  virtual Result<void> remove_tree(const std::string& path) = 0;
  virtual Result<void> sync_directory(const std::string& path) = 0;
  virtual Result<std::string> read_text(const std::string& path) = 0;
  // Returns what read_text does, or ExitCode::data where the file has more than `max_bytes`; posix_env()
  // reads no more than that, also of one that grows meanwhile.
  virtual Result<std::string> read_text_within(const std::string& path, std::uint64_t max_bytes) {
    HF_TRY(std::string text, read_text(path));
    if (text.size() > max_bytes) return fail(ExitCode::data, "{} has more than {} bytes", path, max_bytes);
    return text;
  }
  // Returns what read_text does, or nothing where that fails.
  std::string text_or_empty(const std::string& path) {
    Result<std::string> text = read_text(path);
    return text.ok() ? std::move(text).value() : std::string();
  }
  // Whole-file replacement: temporary file, sync, rename, directory sync. Readers see the old or the new
  // text.
  virtual Result<void> replace_text(const std::string& path, const std::string& text) = 0;
  // One write(2) of line + '\n' with O_APPEND; lines of several writers do not mix. A link is not followed.
  virtual Result<void> append_line(const std::string& path, std::string_view line) = 0;
  // Exclusive advisory lock (flock) on the file that has the name `path` when it is got, made when missing,
  // with the holder's `content` in it; empty: what is there stays. Errors: communication after `timeout_ms`,
  // quoting the holder's; config where this user may not write `path`.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path, const std::string& content,
                                                 std::int64_t timeout_ms) = 0;
  // Puts a new file under the name `path`, locked, with `content` in it, durable, whoever has a lock on the
  // one before: that is then a lock on a file without a name.
  virtual Result<std::unique_ptr<FileLock>> replace_lock(const std::string& path,
                                                         const std::string& content) = 0;
  // Returns whether somebody holds the lock on `path`, which must exist. Makes and writes nothing, and two
  // who ask at once do not see each other.
  virtual Result<bool> is_locked(const std::string& path) = 0;
  virtual Result<std::uint64_t> free_bytes(const std::string& path) = 0;

  // Many operations at a time on files that this Env opened (runtime/os/io_queue.h). The engine is what
  // an Env brings, the queue in front of it is the same for all.
  virtual Result<std::unique_ptr<IoEngine>> make_io_engine(const IoQueueOptions& options) = 0;
  Result<std::unique_ptr<IoQueue>> make_io_queue(const IoQueueOptions& options);

  // Shared memory. A name is one file name, without '/'; all of a user's are in one directory that nobody
  // else may enter, /dev/shm/holdfast-UID. Errors also: config where everything that it may be called belongs
  // to others; data where what has the name is not this user's alone, or no memory.
  // Made exclusively, zero-filled, `bytes` > 0 of it reserved now: a /dev/shm that is too small is
  // ExitCode::does_not_fit here, not a SIGBUS at the first write.
  virtual Result<std::unique_ptr<SharedMemory>> create_shared_memory(const std::string& name,
                                                                     std::uint64_t bytes) = 0;
  // All of it, for reading and writing; must exist.
  virtual Result<std::unique_ptr<SharedMemory>> open_shared_memory(const std::string& name) = 0;
  // The name; mappings stay; missing is ok.
  virtual Result<void> remove_shared_memory(const std::string& name) = 0;
  // Names, sorted, those of directories too; none where there is no directory of this user's.
  virtual Result<std::vector<std::string>> list_shared_memory() = 0;
  // The path of that name, whether or not it is there: for sentences, status() and rename().
  virtual std::string shared_memory_path(const std::string& name) = 0;
  // A directory among them, for files of other programs; one that is there is ok. Returns its path.
  virtual Result<std::string> make_shared_directory(const std::string& name) = 0;

  // Clock
  virtual std::int64_t monotonic_ns() = 0;
  virtual std::int64_t thread_processor_ns() = 0;  // that the calling thread has had of a processor
  virtual std::int64_t wall_time_us() = 0;
  virtual void sleep_us(std::int64_t microseconds) = 0;

  // Process
  virtual std::int64_t process_id() = 0;
  virtual std::string host_name() = 0;
  // Tells this host from others that have the same name: one boot of one kernel, and one /dev/shm. Has no
  // blanks.
  virtual std::string machine_id() = 0;
  // Returns what names this host beyond doubt: "NAME@MACHINE". For people it is host_name().
  std::string host_id() { return host_name() + "@" + machine_id(); }
  virtual std::string variable(const std::string& name) = 0;  // empty when unset
  virtual std::uint64_t random_u64() = 0;  // from the kernel; never for anything that decides bits
  // SIGKILL to this process when its parent dies; checks that the parent has not died already.
  virtual Result<void> die_with_parent() = 0;
  [[noreturn]] virtual void kill_self() = 0;  // SIGKILL: how a rank leaves a run that goes on
  // Runs it to its end, which may be that of a failure; the error is that it could not be started. Waits, so
  // it is for a thread that has nothing else to do.
  virtual Result<CommandEnd> run_command(const Command& command) = 0;
  virtual int processor_count() = 0;  // processors this process may run on (affinity and cgroup quota)
  // The calling thread gives way to others, for processors and for disks, but is not starved by them; a hint,
  // for the rest of its life.
  virtual void lower_thread_priority() = 0;
  virtual Processes& processes() = 0;  // others of this host (runtime/os/processes.h)

  virtual Network& network() = 0;  // plain sockets between hosts (runtime/os/network.h)
};

// Returns the name in what Env::host_id() has returned, for people.
inline std::string host_name_of(const std::string& host_id) {
  return host_id.substr(0, host_id.find('@'));
}

// The real operating system. Lives as long as the process; stateless.
Env& posix_env();

}  // namespace holdfast::inline os
