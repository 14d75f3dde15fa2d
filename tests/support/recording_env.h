// RecordingEnv: an Env in front of another one that writes down everything that changes files or makes them
// durable, with the bytes, in order. From the log, tests/support/crash_states.h makes what a crash may leave.
//
// Locks and shared memory are not in it: they mean nothing after a crash. Thread-safe.
#pragma once

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/forwarding_env.h"

namespace holdfast::test {

struct RecordedOperation {
  enum class Kind {
    make_directories,  // path, and its parents
    create,            // path, from now on called `file`
    write,             // bytes of `file` at offset
    allocate,          // at least `size` bytes of `file`
    truncate,          // exactly `size` bytes of `file`
    sync,              // all of `file` before it is durable, but perhaps not its name
    append,            // bytes at the end of path, which may be new
    link,              // target is another name of the file at path
    rename,            // path to target
    remove,            // the file at path
    remove_tree,       // path and what is in it
    sync_directory,    // all names in path before it are durable
    mark               // of the test: `size` is its number
  };
  Kind kind = Kind::mark;
  std::string path = {};
  std::string target = {};
  std::size_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::vector<std::byte> bytes = {};
};

// "sync 3", "rename /a to /b": for the sentence of a test.
inline std::string text_of(const RecordedOperation& operation) {
  constexpr std::array<const char*, 13> names = {
      "make_directories", "create", "write",       "allocate",       "truncate", "sync", "append", "link",
      "rename",           "remove", "remove_tree", "sync_directory", "mark"};
  std::string text = names[static_cast<std::size_t>(operation.kind)];
  if (operation.path.empty()) return fmt::format("{} {}", text, operation.file);
  return fmt::format("{} {}{}", text, operation.path,
                     operation.target.empty() ? "" : " to " + operation.target);
}

class RecordingEnv final : public ForwardingEnv {
 public:
  using ForwardingEnv::ForwardingEnv;
  using Kind = RecordedOperation::Kind;

  const std::vector<RecordedOperation>& log() const { return log_; }
  void mark(std::uint64_t number) { add({.kind = Kind::mark, .size = number}); }

  // Counts, so that a recording has the same names in every process.
  std::uint64_t random_u64() override { return ++numbers_given_; }

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    HF_TRY(std::unique_ptr<File> file, inner().open(path, mode));
    std::size_t number = 0;
    if (!is_read(mode)) {
      const std::lock_guard guard(mutex_);
      number = files_++;
      log_.push_back({.kind = Kind::create, .path = path, .file = number});
    }
    return std::unique_ptr<File>(std::make_unique<RecordingFile>(*this, std::move(file), number));
  }
  Result<void> make_directories(const std::string& path) override {
    return after(inner().make_directories(path), {.kind = Kind::make_directories, .path = path});
  }
  Result<void> link(const std::string& source, const std::string& target) override {
    return after(inner().link(source, target), {.kind = Kind::link, .path = source, .target = target});
  }
  Result<void> rename(const std::string& source, const std::string& target) override {
    return after(inner().rename(source, target), {.kind = Kind::rename, .path = source, .target = target});
  }
  Result<void> remove(const std::string& path) override {
    return after(inner().remove(path), {.kind = Kind::remove, .path = path});
  }
  Result<void> remove_tree(const std::string& path) override {
    return after(inner().remove_tree(path), {.kind = Kind::remove_tree, .path = path});
  }
  Result<void> sync_directory(const std::string& path) override {
    return after(inner().sync_directory(path), {.kind = Kind::sync_directory, .path = path});
  }
  Result<void> append_line(const std::string& path, std::string_view line) override {
    std::vector<std::byte> bytes;
    for (const char one : std::string(line) + "\n") bytes.push_back(static_cast<std::byte>(one));
    return after(inner().append_line(path, line),
                 {.kind = Kind::append, .path = path, .bytes = std::move(bytes)});
  }
  Result<std::unique_ptr<IoEngine>> make_io_engine(const IoQueueOptions& options) override {
    HF_TRY(std::unique_ptr<IoEngine> engine, inner().make_io_engine(options));
    return std::unique_ptr<IoEngine>(std::make_unique<RecordingIoEngine>(std::move(engine), options.depth));
  }

 private:
  class RecordingFile final : public ForwardingFile {
   public:
    RecordingFile(RecordingEnv& env, std::unique_ptr<File> inner, std::size_t number)
        : ForwardingFile(std::move(inner)), env_(&env), number_(number) {}

    // Before it happens: of a write that fails, too, some may be there.
    Result<void> write_at(std::uint64_t offset, std::span<const std::byte> source) override {
      record_write(offset, source);
      return ForwardingFile::write_at(offset, source);
    }
    Result<void> allocate(std::uint64_t bytes) override {
      return env_->after(ForwardingFile::allocate(bytes),
                         {.kind = Kind::allocate, .file = number_, .size = bytes});
    }
    Result<void> truncate(std::uint64_t bytes) override {
      return env_->after(ForwardingFile::truncate(bytes),
                         {.kind = Kind::truncate, .file = number_, .size = bytes});
    }
    Result<void> sync() override {
      return env_->after(ForwardingFile::sync(), {.kind = Kind::sync, .file = number_});
    }

    void record_write(std::uint64_t offset, std::span<const std::byte> source) {
      env_->add({.kind = Kind::write,
                 .file = number_,
                 .offset = offset,
                 .bytes = std::vector<std::byte>(source.begin(), source.end())});
    }
    void record_sync() { env_->add({.kind = Kind::sync, .file = number_}); }

   private:
    RecordingEnv* env_;
    std::size_t number_;
  };

  // A write is in the log when it begins, a sync when it has succeeded.
  class RecordingIoEngine final : public ForwardingIoEngine {
   public:
    RecordingIoEngine(std::unique_ptr<IoEngine> inner, int depth)
        : ForwardingIoEngine(std::move(inner)), syncs_(static_cast<std::size_t>(depth), nullptr) {}

    void start(const IoOperation& operation) override {
      auto& file = static_cast<RecordingFile&>(*operation.file);
      if (operation.kind == IoKind::write) file.record_write(operation.offset, operation.bytes);
      syncs_[operation.slot] = operation.kind == IoKind::sync ? &file : nullptr;
      ForwardingIoEngine::start(operation);
    }
    IoOutcome wait() override {
      const IoOutcome outcome = ForwardingIoEngine::wait();
      if (syncs_[outcome.slot] != nullptr && outcome.result >= 0) syncs_[outcome.slot]->record_sync();
      return outcome;
    }

   private:
    std::vector<RecordingFile*> syncs_;  // by slot
  };

  void add(RecordedOperation operation) {
    const std::lock_guard guard(mutex_);
    log_.push_back(std::move(operation));
  }
  Result<void> after(Result<void> outcome, RecordedOperation operation) {
    if (outcome.ok()) add(std::move(operation));
    return outcome;
  }

  std::mutex mutex_;
  std::vector<RecordedOperation> log_;
  std::atomic<std::uint64_t> numbers_given_ = 0;
  std::size_t files_ = 0;
};

}  // namespace holdfast::test
