// ForwardingEnv: an Env in front of another one that changes nothing, and ForwardingFile and ForwardingIoEngine
// for what it opens. What stands between a test and its Env derives from them and overrides what it is about.
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/os/io_queue.h"
#include "runtime/os/thread.h"

namespace holdfast::test {

class ForwardingFile : public File {
 public:
  explicit ForwardingFile(std::unique_ptr<File> inner) : inner_(std::move(inner)) {}

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) override {
    return inner_->read_at(offset, target);
  }
  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> source) override {
    return inner_->write_at(offset, source);
  }
  Result<void> allocate(std::uint64_t bytes) override { return inner_->allocate(bytes); }
  Result<void> truncate(std::uint64_t bytes) override { return inner_->truncate(bytes); }
  Result<void> sync() override { return inner_->sync(); }
  Result<std::uint64_t> size() override { return inner_->size(); }
  void will_need(std::uint64_t offset, std::uint64_t bytes) override { inner_->will_need(offset, bytes); }
  void drop_cached() override { inner_->drop_cached(); }
  std::string buffered_reason() const override { return inner_->buffered_reason(); }
  const std::string& path() const override { return inner_->path(); }

  File& inner() { return *inner_; }

 private:
  std::unique_ptr<File> inner_;
};

// Its files are ForwardingFiles of the same Env.
class ForwardingIoEngine : public IoEngine {
 public:
  explicit ForwardingIoEngine(std::unique_ptr<IoEngine> inner) : inner_(std::move(inner)) {}

  void start(const IoOperation& operation) override {
    IoOperation passed = operation;
    passed.file = &static_cast<ForwardingFile&>(*operation.file).inner();
    inner_->start(passed);
  }
  IoOutcome wait() override { return inner_->wait(); }
  bool register_buffers(std::span<const std::span<std::byte>> buffers) override {
    return inner_->register_buffers(buffers);
  }
  IoBackend backend() const override { return inner_->backend(); }
  const std::string& fallback_reason() const override { return inner_->fallback_reason(); }

 private:
  std::unique_ptr<IoEngine> inner_;
};

class ForwardingEnv : public Env {
 public:
  explicit ForwardingEnv(Env& inner) : inner_(&inner) {}
  // One made of another of its own type would stand beside that one, not in front of it.
  ForwardingEnv(const ForwardingEnv&) = delete;
  ForwardingEnv(ForwardingEnv&&) = default;
  ForwardingEnv& operator=(const ForwardingEnv&) = delete;

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    return inner_->open(path, mode);
  }
  Result<FileStatus> status(const std::string& path) override { return inner_->status(path); }
  Result<std::vector<std::string>> list(const std::string& directory) override {
    return inner_->list(directory);
  }
  Result<void> make_directories(const std::string& path) override { return inner_->make_directories(path); }
  Result<void> rename(const std::string& source, const std::string& target) override {
    return inner_->rename(source, target);
  }
  Result<void> link(const std::string& source, const std::string& target) override {
    return inner_->link(source, target);
  }
  Result<void> remove(const std::string& path) override { return inner_->remove(path); }
  Result<void> remove_tree(const std::string& path) override { return inner_->remove_tree(path); }
  Result<void> sync_directory(const std::string& path) override { return inner_->sync_directory(path); }
  Result<std::string> read_text(const std::string& path) override { return inner_->read_text(path); }
  // Made of the derived class's own operations, so that it sees each of the steps.
  Result<void> replace_text(const std::string& path, const std::string& text) override {
    const std::string temporary = fmt::format("{}.tmp.{:016x}", path, random_u64());
    {
      HF_TRY(const std::unique_ptr<File> file, open(temporary, OpenMode::create));
      HF_TRY_VOID(file->write_at(0, std::as_bytes(std::span(text.data(), text.size()))));
      HF_TRY_VOID(file->sync());
    }
    HF_TRY_VOID(rename(temporary, path));
    const std::size_t slash = path.rfind('/');
    return sync_directory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
  }
  Result<void> append_line(const std::string& path, std::string_view line) override {
    return inner_->append_line(path, line);
  }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path, const std::string& content,
                                         std::int64_t timeout_ms) override {
    return inner_->lock(path, content, timeout_ms);
  }
  Result<std::unique_ptr<FileLock>> replace_lock(const std::string& path,
                                                 const std::string& content) override {
    return inner_->replace_lock(path, content);
  }
  Result<bool> is_locked(const std::string& path) override { return inner_->is_locked(path); }
  Result<std::uint64_t> free_bytes(const std::string& path) override { return inner_->free_bytes(path); }
  Result<std::unique_ptr<IoEngine>> make_io_engine(const IoQueueOptions& options) override {
    return inner_->make_io_engine(options);
  }

  Result<std::unique_ptr<SharedMemory>> create_shared_memory(const std::string& name,
                                                             std::uint64_t bytes) override {
    return inner_->create_shared_memory(name, bytes);
  }
  Result<std::unique_ptr<SharedMemory>> open_shared_memory(const std::string& name) override {
    return inner_->open_shared_memory(name);
  }
  Result<void> remove_shared_memory(const std::string& name) override {
    return inner_->remove_shared_memory(name);
  }
  Result<std::vector<std::string>> list_shared_memory() override { return inner_->list_shared_memory(); }
  std::string shared_memory_path(const std::string& name) override {
    return inner_->shared_memory_path(name);
  }
  Result<std::string> make_shared_directory(const std::string& name) override {
    return inner_->make_shared_directory(name);
  }

  std::int64_t monotonic_ns() override { return inner_->monotonic_ns(); }
  std::int64_t thread_processor_ns() override { return inner_->thread_processor_ns(); }
  std::int64_t wall_time_us() override { return inner_->wall_time_us(); }
  void sleep_us(std::int64_t microseconds) override { inner_->sleep_us(microseconds); }
  Result<std::unique_ptr<Thread>> start_thread(const std::string& name, std::function<void()> work) override {
    return inner_->start_thread(name, std::move(work));
  }
  std::unique_ptr<Condition> make_condition() override { return inner_->make_condition(); }
  void yield() override { inner_->yield(); }
  std::int64_t process_id() override { return inner_->process_id(); }
  std::string host_name() override { return inner_->host_name(); }
  std::string machine_id() override { return inner_->machine_id(); }
  std::string variable(const std::string& name) override { return inner_->variable(name); }
  std::vector<std::string> variable_names(const std::string& prefix) override {
    return inner_->variable_names(prefix);
  }
  std::uint64_t random_u64() override { return inner_->random_u64(); }
  Result<void> die_with_parent() override { return inner_->die_with_parent(); }
  [[noreturn]] void kill_self() override {
    inner_->kill_self();
    std::abort();  // virtual calls do not carry [[noreturn]]
  }
  Result<CommandEnd> run_command(const Command& command) override { return inner_->run_command(command); }
  int processor_count() override { return inner_->processor_count(); }
  void lower_thread_priority() override { inner_->lower_thread_priority(); }
  Processes& processes() override { return inner_->processes(); }
  Network& network() override { return inner_->network(); }

 protected:
  Env& inner() const { return *inner_; }

 private:
  Env* inner_;
};

}  // namespace holdfast::test
