// FileCalls makes the calls that the kernel asks a FUSE file system for, on the files below it. For
// posix_slow_files.cc.
#pragma once

#include <linux/fuse.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/os/posix_file.h"

namespace holdfast::inline os {

// A request as the kernel sends it: its head, and what belongs to the call.
struct FileRequest {
  fuse_in_header head = {};
  std::vector<std::byte> body = {};
  // Returns the structure that the body begins with, zeros where it is shorter.
  template <typename T>
  T as() const {
    T value{};
    std::copy_n(body.begin(), std::min(sizeof(T), body.size()), reinterpret_cast<std::byte*>(&value));
    return value;
  }
  // Returns the index-th name behind the structure of so many bytes.
  std::string name(std::size_t structure_bytes, int index = 0) const;
};

struct FileReply {
  int reason = 0;  // errno; 0: it has worked
  std::vector<std::byte> body = {};
};

class FileCalls {
 public:
  static constexpr std::uint32_t transfer_bytes_max = 1 << 20;

  // `root`: an O_PATH descriptor of the directory or file.
  explicit FileCalls(Descriptor root);
  FileCalls(const FileCalls&) = delete;
  FileCalls& operator=(const FileCalls&) = delete;

  // Makes the call. Thread-safe, as far as the calls of the system are.
  FileReply answer(const FileRequest& request);
  // Returns whether the kernel waits for a reply to the request.
  static bool wants_reply(const FileRequest& request);

 private:
  // A file that the kernel knows, by the number of its node.
  struct Node {
    Descriptor path;  // O_PATH
    std::pair<dev_t, ino_t> file;
    std::uint64_t lookups = 0;
  };
  int path_of(std::uint64_t node);
  std::string link_of(std::uint64_t node);  // in /proc, to open it by
  FileReply entry(std::uint64_t parent, const std::string& name);
  void forget(std::uint64_t node, std::uint64_t lookups);
  void forget_all(const FileRequest& request);
  FileReply begin(const FileRequest& request) const;
  FileReply attributes(std::uint64_t node);
  FileReply set_attributes(const FileRequest& request);
  FileReply create(const FileRequest& request);
  FileReply open(const FileRequest& request);
  FileReply open_directory(const FileRequest& request);
  static FileReply read(const FileRequest& request);
  static FileReply write(const FileRequest& request);
  static FileReply list(const FileRequest& request);
  static FileReply close(const FileRequest& request);
  static FileReply close_directory(const FileRequest& request);
  static FileReply sync(const FileRequest& request);
  static FileReply allocate(const FileRequest& request);
  FileReply free_space(std::uint64_t node);
  FileReply read_link(std::uint64_t node);
  FileReply change_name(const FileRequest& request);
  FileReply move(const FileRequest& request, std::uint64_t to, std::size_t structure_bytes, unsigned flags);

  std::mutex mutex_;  // guards the next three
  std::map<std::uint64_t, Node> nodes_;
  std::map<std::pair<dev_t, ino_t>, std::uint64_t> node_of_file_;
  std::uint64_t last_node_ = FUSE_ROOT_ID;
};

}  // namespace holdfast::inline os
