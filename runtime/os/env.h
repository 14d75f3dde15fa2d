// Env: the only interface to the operating system. Everything that touches files, clocks, processes or shared
// memory goes through it, so that tests can replace it by a failing, slow or recording one
// (tests/support/faulty_env.h).
//
// Threads: every method may be called from any thread. Errors: Result with a sentence that names the path and
// the operating system's reason; the exit code is ExitCode::data for reads and ExitCode::checkpoint for
// writes (callers that know better replace it).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/command.h"

namespace holdfast::os {

class Condition;
class IoEngine;
class IoQueue;
class Network;
class Processes;
class Thread;
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
  // Sets the length of the file to `bytes`; what it gains is zero.
  virtual Result<void> truncate(std::uint64_t bytes) = 0;
  // Data and metadata are durable when this returns ok. After an error the file must be abandoned, never
  // retried.
  virtual Result<void> sync() = 0;
  virtual Result<std::uint64_t> size() = 0;
  // Gives hints, which may do nothing: the bytes will be read soon; nothing of the file need stay in the
  // cache.
  virtual void will_need(std::uint64_t offset, std::uint64_t bytes) = 0;
  virtual void drop_cached() = 0;
  // Returns why the operations of an IoQueue do not bypass the page cache, or an empty text when they do.
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
  // The direct modes are like the two above, and the operations of an IoQueue bypass the page cache where the
  // file system can do that (buffered_reason). The methods of File use the cache; the kernel keeps the two
  // coherent.
  read_direct,
  create_direct,
};
inline bool is_read(OpenMode mode) {
  return mode == OpenMode::read || mode == OpenMode::read_direct;
}

// FileStatus says what a name stands for. Of a link all but `link` is that of the file that it leads to.
struct FileStatus {
  bool exists = false;
  bool directory = false;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;   // when the content was last written, by the clock of its file system
  bool link = false;              // the name is a symbolic link, whether or not it leads to something
  bool group_may_write = false;   // users of its group other than its owner
  bool others_may_write = false;  // every user of the host
};

// A lock that is held for as long as the object lives; the kernel releases it when the process dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
  // Replaces the content of the locked file; readers on all hosts see the new content when it returns. It
  // writes to the file that was locked, even where another file has its name by now. Errors: checkpoint.
  virtual Result<void> rewrite(const std::string& content) = 0;
};

// Memory that the processes of this host share by name and that outlives them: it is there until its name is
// removed (or the host restarts) and the last mapping is gone. The destructor unmaps it, and removes nothing.
class SharedMemory {
 public:
  enum class Hold { shared, alone };
  virtual ~SharedMemory() = default;
  virtual std::span<std::byte> bytes() = 0;
  // Takes a lock on the memory (flock) that is released with this object and with the process: many hold it
  // shared, or one alone. The kernel knows which holders are alive even where a process number says nothing,
  // as in another process namespace. Does not wait: returns false when other holders prevent it, and this
  // object then no longer holds the lock, either.
  virtual bool hold(Hold how) = 0;
};

class Env {
 public:
  virtual ~Env() = default;

  // Files
  virtual Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) = 0;
  virtual Result<FileStatus> status(const std::string& path) = 0;  // a missing path is ok with exists = false
  // Returns the names, sorted, without . and ..
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;
  // Makes the directory and its parents. Errors: config where this user may not make it, or nobody may.
  virtual Result<void> make_directories(const std::string& path) = 0;
  virtual Result<void> rename(const std::string& source, const std::string& target) = 0;
  // Gives a file a second name; the file lives until its last name is removed. `target` must not exist; fails
  // where the file system has no hard links.
  virtual Result<void> link(const std::string& source, const std::string& target) = 0;
  virtual Result<void> remove(const std::string& path) = 0;  // a file; missing is ok
  // Removes a directory and its content; missing is ok.
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
  // Replaces a whole file: temporary file, sync, rename, directory sync. Readers see the old or the new text.
  virtual Result<void> replace_text(const std::string& path, const std::string& text) = 0;
  // Appends line + '\n' by one write(2) with O_APPEND; lines of several writers do not mix. A link is not
  // followed.
  virtual Result<void> append_line(const std::string& path, std::string_view line) = 0;
  // Takes an exclusive advisory lock (flock) on the file that has the name `path` when the lock is got. The
  // file is made when missing, and gets the holder's `content`; with an empty `content` it stays as it is.
  // Errors: communication after `timeout_ms`, quoting the holder's content; config where this user may not
  // write `path`.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path, const std::string& content,
                                                 std::int64_t timeout_ms) = 0;
  // Puts a new file with `content` under the name `path`, locked and durable, regardless of locks on the file
  // that had the name before: such a lock is then one on a file without a name.
  virtual Result<std::unique_ptr<FileLock>> replace_lock(const std::string& path,
                                                         const std::string& content) = 0;
  // Returns whether some process holds the lock on `path`, which must exist. Makes and writes nothing, and
  // two callers that ask at once do not affect each other.
  virtual Result<bool> is_locked(const std::string& path) = 0;
  virtual Result<std::uint64_t> free_bytes(const std::string& path) = 0;

  // Makes a queue for many operations at a time on files that this Env opened (runtime/os/io_queue.h). The
  // engine depends on the Env; the queue in front of it is the same for all.
  virtual Result<std::unique_ptr<IoEngine>> make_io_engine(const IoQueueOptions& options) = 0;
  Result<std::unique_ptr<IoQueue>> make_io_queue(const IoQueueOptions& options);

  // Shared memory. A name is one file name, without '/'; all of a user's are in one directory that nobody
  // else may enter, /dev/shm/holdfast-UID. Errors of all these methods: config where every possible name of
  // the directory belongs to other users; data where the name belongs to something that is not this user's
  // alone, or is no memory.
  //
  // Makes memory exclusively, zero-filled, with its `bytes` > 0 reserved now: a /dev/shm that is too small is
  // ExitCode::does_not_fit here, not a SIGBUS at the first write.
  virtual Result<std::unique_ptr<SharedMemory>> create_shared_memory(const std::string& name,
                                                                     std::uint64_t bytes) = 0;
  // Maps all of it for reading and writing; it must exist.
  virtual Result<std::unique_ptr<SharedMemory>> open_shared_memory(const std::string& name) = 0;
  // Removes the name; mappings stay; missing is ok.
  virtual Result<void> remove_shared_memory(const std::string& name) = 0;
  // Returns the names, sorted, including those of directories; none where this user has no directory.
  virtual Result<std::vector<std::string>> list_shared_memory() = 0;
  // Returns the path of that name, whether or not it exists: for messages, status() and rename().
  virtual std::string shared_memory_path(const std::string& name) = 0;
  // Makes a directory among them, for files of other programs; it may exist already. Returns its path.
  virtual Result<std::string> make_shared_directory(const std::string& name) = 0;

  // Clock. One that is simulated moves on a little with every look, too, so that a loop ends that does nothing
  // but look at it (PollBackoff).
  virtual std::int64_t monotonic_ns() = 0;
  virtual std::int64_t thread_processor_ns() = 0;  // processor time of the calling thread
  virtual std::int64_t wall_time_us() = 0;
  virtual void sleep_us(std::int64_t microseconds) = 0;

  // Process
  virtual std::int64_t process_id() = 0;
  virtual std::string host_name() = 0;
  // Returns a text that tells this host from others with the same name: it identifies one boot of one kernel,
  // and one /dev/shm. It has no blanks.
  virtual std::string machine_id() = 0;
  // Returns a unique name of this host: "NAME@MACHINE". Messages for people use host_name().
  std::string host_id() { return host_name() + "@" + machine_id(); }
  virtual std::string variable(const std::string& name) = 0;  // empty when unset
  // Returns the names of the variables that begin with `prefix`, in ascending order.
  virtual std::vector<std::string> variable_names(const std::string& prefix) = 0;
  virtual std::uint64_t random_u64() = 0;  // from the kernel; never for anything that decides bits
  // Makes the kernel send SIGKILL to this process when its parent dies; checks that the parent has not died
  // already.
  virtual Result<void> die_with_parent() = 0;
  [[noreturn]] virtual void kill_self() = 0;  // SIGKILL: how a rank leaves a run that goes on
  // Runs the command to its end, which may be a failure of the command; the error is that it could not be
  // started. It blocks, so call it on a thread that has nothing else to do.
  virtual Result<CommandEnd> run_command(const Command& command) = 0;
  virtual int processor_count() = 0;  // processors this process may run on (affinity and cgroup quota)
  // Lowers the priority of the calling thread for processors and for disks, for the rest of its life, without
  // starving it; a hint.
  virtual void lower_thread_priority() = 0;
  virtual Processes& processes() = 0;  // others of this host (runtime/os/processes.h)

  virtual Network& network() = 0;  // plain sockets between hosts (runtime/os/network.h)

  // Threads (runtime/os/thread.h)
  //
  // Starts a thread that runs `work`. Debuggers and ps show `name`, of Thread::name_bytes_max characters at
  // most. Errors: does_not_fit where the system refuses a thread.
  virtual Result<std::unique_ptr<Thread>> start_thread(const std::string& name,
                                                       std::function<void()> work) = 0;
  virtual std::unique_ptr<Condition> make_condition() = 0;
  // Gives the processor to another thread that waits for it; for loops that poll.
  virtual void yield() = 0;
};

// Returns the host's name, as messages show it, from a text that Env::host_id() has returned.
inline std::string host_name_of(const std::string& host_id) {
  return host_id.substr(0, host_id.find('@'));
}

// Returns the real operating system. The object lives as long as the process and is stateless.
Env& posix_env();

}  // namespace holdfast::os
