// MemoryEnv: an Env whose files are in memory and gone with it. Every path begins with '/', which is there.
// Clock, process and shared memory are the system's. Not for several threads at a time.
#pragma once

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/os/posix_file.h"
#include "tests/support/forwarding_env.h"

namespace holdfast::test {

class MemoryEnv final : public ForwardingEnv {
 public:
  using Content = std::shared_ptr<std::vector<std::byte>>;

  MemoryEnv() : ForwardingEnv(posix_env()) {}

  // Whole files and directories, put there from outside; parents are made.
  void put_file(const std::string& path, Content content) {
    put_directory(parent_of(path));
    nodes_[path] = std::move(content);
  }
  void put_directory(const std::string& path) {
    if (path.empty() || is_directory(path)) return;
    put_directory(parent_of(path));
    nodes_[path] = nullptr;
  }
  // Every path with its content; of a directory it is null.
  const std::map<std::string, Content>& nodes() const { return nodes_; }

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    const auto found = nodes_.find(path);
    if (is_read(mode)) {
      if (found == nodes_.end()) return read_error("open", path, ENOENT);
      if (found->second == nullptr) return read_error("open", path, EISDIR);
      return std::unique_ptr<File>(std::make_unique<MemoryFile>(found->second, path));
    }
    if (found != nodes_.end()) return write_error("create", path, EEXIST);
    if (!is_directory(parent_of(path))) return write_error("create", path, ENOENT);
    Content content = std::make_shared<std::vector<std::byte>>();
    nodes_[path] = content;
    return std::unique_ptr<File>(std::make_unique<MemoryFile>(std::move(content), path));
  }
  Result<FileStatus> status(const std::string& path) override {
    if (is_directory(without_slash(path))) return FileStatus{.exists = true, .directory = true};
    const auto found = nodes_.find(path);
    if (found == nodes_.end()) return FileStatus{};
    return FileStatus{.exists = true, .bytes = found->second->size()};
  }
  Result<std::vector<std::string>> list(const std::string& directory) override {
    const std::string inside = without_slash(directory) + "/";
    if (!is_directory(without_slash(directory))) return read_error("list", directory, ENOENT);
    std::vector<std::string> names;
    for (auto node = nodes_.lower_bound(inside); node != nodes_.end() && node->first.starts_with(inside);
         ++node) {
      const std::string name = node->first.substr(inside.size());
      if (name.find('/') == std::string::npos) names.push_back(name);
    }
    return names;
  }
  Result<void> make_directories(const std::string& path) override {
    for (std::string one = without_slash(path); !one.empty(); one = parent_of(one)) {
      const auto found = nodes_.find(one);
      if (found != nodes_.end() && found->second != nullptr)
        return lock_error("create the directory", path, ENOTDIR);
    }
    put_directory(without_slash(path));
    return {};
  }
  Result<void> rename(const std::string& source, const std::string& target) override {
    const bool is_moved_directory = is_directory(source);
    const bool is_in_the_way = nodes_.contains(target) && (is_moved_directory || is_directory(target)) &&
                               !list(target).value().empty();
    if (!nodes_.contains(source) || !is_directory(parent_of(target)))
      return write_error("rename", source + " to " + target, ENOENT);
    if (is_in_the_way) return write_error("rename", source + " to " + target, ENOTEMPTY);
    std::map<std::string, Content> moved;
    for (auto& [path, content] : nodes_) {
      if (path == source || path.starts_with(source + "/"))
        moved[target + path.substr(source.size())] = content;
    }
    static_cast<void>(remove_tree(source).ok());
    for (auto& [path, content] : moved) nodes_[path] = content;
    return {};
  }
  Result<void> link(const std::string& source, const std::string& target) override {
    const auto found = nodes_.find(source);
    if (found == nodes_.end() || found->second == nullptr || !is_directory(parent_of(target)))
      return write_error("link", source + " to " + target, ENOENT);
    if (nodes_.contains(target)) return write_error("link", source + " to " + target, EEXIST);
    nodes_[target] = found->second;
    return {};
  }
  Result<void> remove(const std::string& path) override {
    if (is_directory(path)) return write_error("remove", path, EISDIR);
    nodes_.erase(path);
    return {};
  }
  Result<void> remove_tree(const std::string& path) override {
    std::erase_if(nodes_,
                  [&](const auto& node) { return node.first == path || node.first.starts_with(path + "/"); });
    return {};
  }
  Result<void> sync_directory(const std::string& path) override {
    if (!is_directory(without_slash(path))) return write_error("open the directory", path, ENOENT);
    return {};
  }
  Result<std::string> read_text(const std::string& path) override {
    HF_TRY(const std::unique_ptr<File> file, open(path, OpenMode::read));
    const std::vector<std::byte>& bytes = *nodes_.at(path);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  Result<void> append_line(const std::string& path, std::string_view line) override {
    if (!nodes_.contains(path)) HF_TRY_VOID(outcome_of(open(path, OpenMode::create)));
    std::vector<std::byte>& bytes = *nodes_.at(path);
    for (const char one : std::string(line) + "\n") bytes.push_back(static_cast<std::byte>(one));
    return {};
  }
  // Locks exclude nobody, as those of a file system that keeps them to each host do not exclude other hosts.
  Result<std::unique_ptr<FileLock>> lock(const std::string& path, const std::string& content,
                                         std::int64_t) override {
    if (!nodes_.contains(path)) HF_TRY_VOID(outcome_of(open(path, OpenMode::create)));
    if (is_directory(path)) return lock_error("open the lock file", path, EISDIR);
    auto lock = std::make_unique<MemoryLock>(nodes_.at(path));
    if (!content.empty()) HF_TRY_VOID(lock->rewrite(content));
    return std::unique_ptr<FileLock>(std::move(lock));
  }
  Result<std::unique_ptr<FileLock>> replace_lock(const std::string& path,
                                                 const std::string& content) override {
    nodes_.erase(path);
    return lock(path, content, 0);
  }
  Result<bool> is_locked(const std::string&) override { return false; }
  int processor_count() override { return 1; }  // so nobody starts threads
  Result<std::uint64_t> free_bytes(const std::string&) override { return std::uint64_t{1} << 40; }
  Result<std::unique_ptr<IoEngine>> make_io_engine(const IoQueueOptions&) override {
    return std::unique_ptr<IoEngine>(std::make_unique<MemoryIoEngine>());
  }

 private:
  class MemoryFile final : public File {
   public:
    MemoryFile(Content content, std::string path) : content_(std::move(content)), path_(std::move(path)) {}

    Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) override {
      if (offset + target.size() > content_->size())
        return fail(ExitCode::data, "cannot read {}: it ends", path_);
      std::ranges::copy(std::span(*content_).subspan(offset, target.size()), target.begin());
      return {};
    }
    Result<void> write_at(std::uint64_t offset, std::span<const std::byte> source) override {
      if (content_->size() < offset + source.size()) content_->resize(offset + source.size());
      std::ranges::copy(source, content_->begin() + static_cast<std::ptrdiff_t>(offset));
      return {};
    }
    Result<void> allocate(std::uint64_t bytes) override {
      if (content_->size() < bytes) content_->resize(bytes);
      return {};
    }
    Result<void> truncate(std::uint64_t bytes) override {
      content_->resize(bytes);
      return {};
    }
    Result<void> sync() override { return {}; }
    Result<std::uint64_t> size() override { return content_->size(); }
    void will_need(std::uint64_t, std::uint64_t) override {}
    void drop_cached() override {}
    std::string buffered_reason() const override { return "it is in memory"; }
    const std::string& path() const override { return path_; }

   private:
    Content content_;
    std::string path_;
  };

  class MemoryLock final : public FileLock {
   public:
    explicit MemoryLock(Content content) : content_(std::move(content)) {}
    Result<void> rewrite(const std::string& content) override {
      content_->clear();
      for (const char one : content) content_->push_back(static_cast<std::byte>(one));
      return {};
    }

   private:
    Content content_;
  };

  // Does everything when it is begun.
  class MemoryIoEngine final : public IoEngine {
   public:
    void start(const IoOperation& operation) override {
      File& file = *operation.file;
      std::span<std::byte> bytes = operation.bytes;
      if (operation.kind == IoKind::read) {
        const std::uint64_t size = file.size().value();
        bytes = bytes.first(std::min(bytes.size(), size - std::min(size, operation.offset)));
        HF_CHECK(file.read_at(operation.offset, bytes).ok());
      } else if (operation.kind == IoKind::write) {
        HF_CHECK(file.write_at(operation.offset, bytes).ok());
      }
      outcomes_.push_back({.slot = operation.slot, .result = static_cast<std::int64_t>(bytes.size())});
    }
    IoOutcome wait() override {
      const IoOutcome outcome = outcomes_.front();
      outcomes_.pop_front();
      return outcome;
    }
    bool register_buffers(std::span<const std::span<std::byte>>) override { return false; }
    IoBackend backend() const override { return IoBackend::threads; }
    const std::string& fallback_reason() const override { return reason_; }

   private:
    std::deque<IoOutcome> outcomes_;
    std::string reason_ = "files are in memory";
  };

  static std::string without_slash(std::string path) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    return path;
  }
  static std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
  bool is_directory(const std::string& path) const {
    const auto found = nodes_.find(path);
    return path.empty() || (found != nodes_.end() && found->second == nullptr);
  }

  std::map<std::string, Content> nodes_;  // by path; of a directory: null
};

}  // namespace holdfast::test
