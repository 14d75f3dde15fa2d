// LocalDiskEnv: one directory is at another place for who uses this Env, as a path on a host's own disk is. Commands that
// are started by it get the other place in their variables.
//
//   LocalDiskEnv env(inner, "/scratch/run", "/scratch/disks/n0/run");   // a rank of host n0
#pragma once

#include <string>
#include <utility>

#include "tests/support/forwarding_env.h"

namespace holdfast::test {

class LocalDiskEnv final : public ForwardingEnv {
 public:
  LocalDiskEnv(Env& inner, std::string directory, std::string place)
      : ForwardingEnv(inner), directory_(std::move(directory)), place_(std::move(place)) {}

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    return inner().open(at(path), mode);
  }
  Result<FileStatus> status(const std::string& path) override { return inner().status(at(path)); }
  Result<std::vector<std::string>> list(const std::string& path) override { return inner().list(at(path)); }
  Result<void> make_directories(const std::string& path) override {
    return inner().make_directories(at(path));
  }
  Result<void> rename(const std::string& source, const std::string& target) override {
    return inner().rename(at(source), at(target));
  }
  Result<void> link(const std::string& source, const std::string& target) override {
    return inner().link(at(source), at(target));
  }
  Result<void> remove(const std::string& path) override { return inner().remove(at(path)); }
  Result<void> remove_tree(const std::string& path) override { return inner().remove_tree(at(path)); }
  Result<void> sync_directory(const std::string& path) override { return inner().sync_directory(at(path)); }
  Result<std::string> read_text(const std::string& path) override { return inner().read_text(at(path)); }
  Result<void> replace_text(const std::string& path, const std::string& text) override {
    return inner().replace_text(at(path), text);
  }
  Result<void> append_line(const std::string& path, std::string_view line) override {
    return inner().append_line(at(path), line);
  }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path, const std::string& content,
                                         std::int64_t timeout_ms) override {
    return inner().lock(at(path), content, timeout_ms);
  }
  Result<std::unique_ptr<FileLock>> replace_lock(const std::string& path,
                                                 const std::string& content) override {
    return inner().replace_lock(at(path), content);
  }
  Result<bool> is_locked(const std::string& path) override { return inner().is_locked(at(path)); }
  Result<std::uint64_t> free_bytes(const std::string& path) override { return inner().free_bytes(at(path)); }
  Result<CommandEnd> run_command(const Command& command) override {
    Command there = command;
    for (auto& [name, value] : there.variables) value = at(value);
    return inner().run_command(there);
  }

 private:
  std::string at(const std::string& path) const {
    const bool is_below = path.starts_with(directory_ + "/");
    return path == directory_ || is_below ? place_ + path.substr(directory_.size()) : path;
  }
  std::string directory_, place_;
};

}  // namespace holdfast::test
