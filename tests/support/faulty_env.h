// FaultyEnv: an Env in front of another one that counts the operations on files and shared memory and lets
// chosen ones fail, as a bad disk, a full disk or a crash would. The path of shared memory is its name.
//
//   FaultyEnv env(posix_env());
//   env.inject({.operation = Operation::sync, .at = 2, .reason = EIO});   // the second sync fails, once
//   env.inject({.at = n, .for_ever = true});                              // everything from the n-th
//   operation on
//
//   env.move_to_host("node1");                                            // of another machine
//   env.move_to_machine("m2");                        // the same for one whose name may be that of another
//
// Walking `at` from 1 until nothing fails any more tries a protocol at every one of its steps. What an
// IoQueue starts counts as a read, write or sync like any other. A fault with the reason EINTR or EAGAIN, or
// one that is `only_short`, is for whoever retries: below a queue it happens, below a File nobody would see
// it. Clock and process calls pass through. Thread-safe.
#pragma once

#include <array>
#include <cerrno>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/os/posix_file.h"
#include "tests/support/forwarding_env.h"

namespace holdfast::test {

enum class Operation : std::size_t {
  open,
  read,
  write,
  allocate,
  truncate,
  sync,
  size,
  status,
  list,
  make_directories,
  rename,
  link,
  remove,
  remove_tree,
  sync_directory,
  read_text,
  append_line,
  lock,
  free_bytes,
  make_io_queue,
  create_shared_memory,
  open_shared_memory,
  remove_shared_memory,
  list_shared_memory,
  make_shared_directory
};
inline constexpr std::size_t operation_count = 25;

struct InjectedFault {
  std::optional<Operation> operation = {};  // any operation when empty
  std::string path_contains = {};           // any path when empty
  std::uint64_t at = 1;                     // the at-th matching operation after inject()
  bool for_ever = false;                    // and every matching one after it
  bool short_write = false;                 // a write first writes half of its bytes
  bool only_short = false;                  // what a queue starts moves half of its bytes, and nothing fails
  int reason = EIO;                         // the errno whose sentence the error has
};

class FaultyEnv final : public ForwardingEnv {
 public:
  using ForwardingEnv::ForwardingEnv;

  std::int64_t clock_shift_ns = 0;  // of the monotonic clock, as on another host
  std::int64_t wall_shift_us = 0;   // of the wall clock

  void inject(InjectedFault fault) {
    const std::lock_guard guard(mutex_);
    faults_.push_back({.fault = std::move(fault), .seen = 0});
  }
  void move_to_host(std::string name) { host_name_ = std::move(name); }  // before others use it
  void move_to_machine(std::string id) { machine_id_ = std::move(id); }  // before others use it
  void clear_faults() {
    const std::lock_guard guard(mutex_);
    faults_.clear();
  }
  std::uint64_t count(Operation operation) const {
    const std::lock_guard guard(mutex_);
    return counts_[static_cast<std::size_t>(operation)];
  }
  std::uint64_t count() const {
    const std::lock_guard guard(mutex_);
    std::uint64_t total = 0;
    for (const std::uint64_t one : counts_) total += one;
    return total;
  }
  std::uint64_t failure_count() const {
    const std::lock_guard guard(mutex_);
    return failed_.size();
  }
  // What failed, in order.
  struct FailedCall {
    Operation operation;
    std::string path;
  };
  std::vector<FailedCall> failed_calls() const {
    const std::lock_guard guard(mutex_);
    return failed_;
  }

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    if (const auto fault = next(Operation::open, path)) {
      return is_read(mode) ? read_error("open", path, fault->reason)
                           : write_error("create", path, fault->reason);
    }
    HF_TRY(std::unique_ptr<File> file, inner().open(path, mode));
    return std::unique_ptr<File>(std::make_unique<FaultyFile>(*this, std::move(file)));
  }
  Result<FileStatus> status(const std::string& path) override {
    if (const auto fault = next(Operation::status, path)) return read_error("look at", path, fault->reason);
    return inner().status(path);
  }
  Result<std::vector<std::string>> list(const std::string& directory) override {
    if (const auto fault = next(Operation::list, directory))
      return read_error("list", directory, fault->reason);
    return inner().list(directory);
  }
  Result<void> make_directories(const std::string& path) override {
    if (const auto fault = next(Operation::make_directories, path)) {
      return lock_error("create the directory", path, fault->reason);
    }
    return inner().make_directories(path);
  }
  Result<void> rename(const std::string& source, const std::string& target) override {
    if (const auto fault = next(Operation::rename, target))
      return write_error("rename to", target, fault->reason);
    return inner().rename(source, target);
  }
  Result<void> link(const std::string& source, const std::string& target) override {
    if (const auto fault = next(Operation::link, target)) return write_error("link", target, fault->reason);
    return inner().link(source, target);
  }
  Result<void> remove(const std::string& path) override {
    if (const auto fault = next(Operation::remove, path)) return write_error("remove", path, fault->reason);
    return inner().remove(path);
  }
  Result<void> remove_tree(const std::string& path) override {
    if (const auto fault = next(Operation::remove_tree, path))
      return write_error("remove", path, fault->reason);
    return inner().remove_tree(path);
  }
  Result<void> sync_directory(const std::string& path) override {
    if (const auto fault = next(Operation::sync_directory, path)) {
      return write_error("make durable", path, fault->reason);
    }
    return inner().sync_directory(path);
  }
  Result<std::string> read_text(const std::string& path) override {
    if (const auto fault = next(Operation::read_text, path)) return read_error("read", path, fault->reason);
    return inner().read_text(path);
  }
  Result<void> append_line(const std::string& path, std::string_view line) override {
    if (const auto fault = next(Operation::append_line, path))
      return write_error("append to", path, fault->reason);
    return inner().append_line(path, line);
  }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path, const std::string& content,
                                         std::int64_t timeout_ms) override {
    if (const auto fault = next(Operation::lock, path)) return lock_error("lock", path, fault->reason);
    return inner().lock(path, content, timeout_ms);
  }
  Result<std::unique_ptr<FileLock>> replace_lock(const std::string& path,
                                                 const std::string& content) override {
    if (const auto fault = next(Operation::lock, path)) return lock_error("lock", path, fault->reason);
    return inner().replace_lock(path, content);
  }
  Result<std::uint64_t> free_bytes(const std::string& path) override {
    if (const auto fault = next(Operation::free_bytes, path)) {
      return read_error("get the free space of", path, fault->reason);
    }
    return inner().free_bytes(path);
  }

  Result<std::unique_ptr<IoEngine>> make_io_engine(const IoQueueOptions& options) override {
    if (const auto fault = next(Operation::make_io_queue, ""))
      return write_error("prepare", "an I/O queue", fault->reason);
    HF_TRY(std::unique_ptr<IoEngine> engine, inner().make_io_engine(options));
    return std::unique_ptr<IoEngine>(std::make_unique<FaultyIoEngine>(*this, std::move(engine)));
  }

  Result<std::unique_ptr<SharedMemory>> create_shared_memory(const std::string& name,
                                                             std::uint64_t bytes) override {
    if (const auto fault = next(Operation::create_shared_memory, name)) {
      return write_error("create the shared memory", name, fault->reason);
    }
    return inner().create_shared_memory(name, bytes);
  }
  Result<std::unique_ptr<SharedMemory>> open_shared_memory(const std::string& name) override {
    if (const auto fault = next(Operation::open_shared_memory, name)) {
      return read_error("open the shared memory", name, fault->reason);
    }
    return inner().open_shared_memory(name);
  }
  Result<void> remove_shared_memory(const std::string& name) override {
    if (const auto fault = next(Operation::remove_shared_memory, name))
      return write_error("remove", name, fault->reason);
    return inner().remove_shared_memory(name);
  }
  Result<std::vector<std::string>> list_shared_memory() override {
    if (const auto fault = next(Operation::list_shared_memory, ""))
      return read_error("list", "shared memory", fault->reason);
    return inner().list_shared_memory();
  }
  Result<std::string> make_shared_directory(const std::string& name) override {
    if (const auto fault = next(Operation::make_shared_directory, name))
      return lock_error("create the directory", name, fault->reason);
    return inner().make_shared_directory(name);
  }

  std::int64_t wall_time_us() override { return inner().wall_time_us() + wall_shift_us; }
  std::int64_t monotonic_ns() override { return inner().monotonic_ns() + clock_shift_ns; }
  std::string host_name() override { return host_name_.empty() ? inner().host_name() : host_name_; }
  std::string machine_id() override { return machine_id_.empty() ? inner().machine_id() : machine_id_; }

 private:
  struct Armed {
    InjectedFault fault;
    std::uint64_t seen = 0;
  };

  class FaultyFile final : public ForwardingFile {
   public:
    FaultyFile(FaultyEnv& env, std::unique_ptr<File> inner) : ForwardingFile(std::move(inner)), env_(&env) {}

    Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) override {
      if (const auto fault = env_->next_seen(Operation::read, path()))
        return read_error("read", path(), fault->reason);
      return ForwardingFile::read_at(offset, target);
    }
    Result<void> write_at(std::uint64_t offset, std::span<const std::byte> source) override {
      if (const auto fault = env_->next_seen(Operation::write, path())) {
        if (fault->short_write)
          HF_TRY_VOID(ForwardingFile::write_at(offset, source.first(source.size() / 2)));
        return write_error("write", path(), fault->reason);
      }
      return ForwardingFile::write_at(offset, source);
    }
    Result<void> allocate(std::uint64_t bytes) override {
      if (const auto fault = env_->next(Operation::allocate, path())) {
        return write_error("reserve space for", path(), fault->reason);
      }
      return ForwardingFile::allocate(bytes);
    }
    Result<void> truncate(std::uint64_t bytes) override {
      if (const auto fault = env_->next(Operation::truncate, path())) {
        return write_error("set the size of", path(), fault->reason);
      }
      return ForwardingFile::truncate(bytes);
    }
    Result<void> sync() override {
      if (const auto fault = env_->next_seen(Operation::sync, path())) {
        return write_error("make durable", path(), fault->reason);
      }
      return ForwardingFile::sync();
    }
    Result<std::uint64_t> size() override {
      if (const auto fault = env_->next(Operation::size, path())) {
        return read_error("get the size of", path(), fault->reason);
      }
      return ForwardingFile::size();
    }

   private:
    FaultyEnv* env_;
  };

  class FaultyIoEngine final : public ForwardingIoEngine {
   public:
    FaultyIoEngine(FaultyEnv& env, std::unique_ptr<IoEngine> inner)
        : ForwardingIoEngine(std::move(inner)), env_(&env) {}

    void start(const IoOperation& operation) override {
      const auto fault = env_->next(counted_as(operation.kind), operation.file->path());
      IoOperation passed = operation;
      const std::span<std::byte> half = operation.bytes.first(operation.bytes.size() / 2);
      if (fault.has_value() && fault->only_short && operation.kind != IoKind::sync) passed.bytes = half;
      if (!fault.has_value() || fault->only_short) return ForwardingIoEngine::start(passed);
      std::int64_t result = -fault->reason;
      if (fault->short_write && operation.kind == IoKind::write) {
        const Result<void> torn =
            static_cast<FaultyFile&>(*operation.file).inner().write_at(operation.offset, half);
        if (!torn.ok()) result = -EIO;
      }
      failed_.push_back({.slot = operation.slot, .result = result});
    }
    IoOutcome wait() override {
      if (failed_.empty()) return ForwardingIoEngine::wait();
      const IoOutcome outcome = failed_.front();
      failed_.pop_front();
      return outcome;
    }

   private:
    static Operation counted_as(IoKind kind) {
      if (kind == IoKind::sync) return Operation::sync;
      return kind == IoKind::read ? Operation::read : Operation::write;
    }

    FaultyEnv* env_;
    std::deque<IoOutcome> failed_;
  };

  // Counts one operation; the fault that hits it, if any.
  std::optional<InjectedFault> next(Operation operation, const std::string& path) {
    const std::lock_guard guard(mutex_);
    ++counts_[static_cast<std::size_t>(operation)];
    std::optional<InjectedFault> result;
    for (Armed& armed : faults_) {
      const InjectedFault& fault = armed.fault;
      if (fault.operation.has_value() && *fault.operation != operation) continue;
      if (path.find(fault.path_contains) == std::string::npos) continue;
      ++armed.seen;
      const bool hit = armed.seen == fault.at || (fault.for_ever && armed.seen > fault.at);
      if (hit && !result.has_value()) result = fault;
    }
    if (result.has_value()) failed_.push_back({operation, path});
    return result;
  }

  // The same for a File, which retries by itself.
  std::optional<InjectedFault> next_seen(Operation operation, const std::string& path) {
    std::optional<InjectedFault> fault = next(operation, path);
    if (!fault.has_value() || fault->only_short || fault->reason == EINTR || fault->reason == EAGAIN)
      return {};
    return fault;
  }

  std::string host_name_, machine_id_;  // empty: the inner one's
  mutable std::mutex mutex_;
  std::array<std::uint64_t, operation_count> counts_{};
  std::vector<FailedCall> failed_;
  std::vector<Armed> faults_;
};

}  // namespace holdfast::test
