#include "runtime/os/posix_file_calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

namespace holdfast::inline os {
namespace {

// All changes of these files come through this one kernel, so what it has learned stays true.
constexpr std::uint64_t valid_s = 3600;

template <typename T>
FileReply reply_of(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {.reason = 0, .body = {bytes.begin(), bytes.end()}};
}

FileReply outcome(long result) {
  return {.reason = result < 0 ? errno : 0};
}

fuse_attr attributes_of(const struct stat& file) {
  fuse_attr attributes{};
  attributes.ino = file.st_ino;
  attributes.size = static_cast<std::uint64_t>(file.st_size);
  attributes.blocks = static_cast<std::uint64_t>(file.st_blocks);
  attributes.atime = static_cast<std::uint64_t>(file.st_atim.tv_sec);
  attributes.mtime = static_cast<std::uint64_t>(file.st_mtim.tv_sec);
  attributes.ctime = static_cast<std::uint64_t>(file.st_ctim.tv_sec);
  attributes.atimensec = static_cast<std::uint32_t>(file.st_atim.tv_nsec);
  attributes.mtimensec = static_cast<std::uint32_t>(file.st_mtim.tv_nsec);
  attributes.ctimensec = static_cast<std::uint32_t>(file.st_ctim.tv_nsec);
  attributes.mode = file.st_mode;
  attributes.nlink = static_cast<std::uint32_t>(file.st_nlink);
  attributes.uid = file.st_uid;
  attributes.gid = file.st_gid;
  attributes.rdev = static_cast<std::uint32_t>(file.st_rdev);
  attributes.blksize = static_cast<std::uint32_t>(file.st_blksize);
  return attributes;
}

// Each read and write is a request of its own: no page of the kernel stands between.
FileReply opened(int descriptor) {
  if (descriptor < 0) return outcome(descriptor);
  fuse_open_out open{};
  open.fh = static_cast<std::uint64_t>(descriptor);
  open.open_flags = FOPEN_DIRECT_IO;
  return reply_of(open);
}

DIR* directory_of(std::uint64_t handle) {
  return reinterpret_cast<DIR*>(handle);  // NOLINT(performance-no-int-to-ptr)
}

// Flags of open(2) that are for the file below: buffers of requests are not aligned as O_DIRECT wants them.
int flags_below(std::uint32_t flags) {
  constexpr int not_below = O_CREAT | O_EXCL | O_NOCTTY | O_DIRECT | O_NOFOLLOW;
  return (static_cast<int>(flags) & ~not_below) | O_CLOEXEC;
}

timespec time_to_set(std::uint32_t valid, std::uint32_t given, std::uint32_t now, std::uint64_t seconds,
                     std::uint32_t nanoseconds) {
  if ((valid & now) != 0) return {.tv_sec = 0, .tv_nsec = UTIME_NOW};
  if ((valid & given) == 0) return {.tv_sec = 0, .tv_nsec = UTIME_OMIT};
  return {.tv_sec = static_cast<time_t>(seconds), .tv_nsec = static_cast<long>(nanoseconds)};
}

}  // namespace

std::string FileRequest::name(std::size_t structure_bytes, int index) const {
  std::string_view text(reinterpret_cast<const char*>(body.data()), body.size());
  text.remove_prefix(std::min(structure_bytes, text.size()));
  for (int i = 0; i < index; ++i) text.remove_prefix(std::min(text.find('\0'), text.size() - 1) + 1);
  return std::string(text.substr(0, text.find('\0')));
}

FileCalls::FileCalls(Descriptor root) {
  struct stat file {};
  static_cast<void>(::fstat(root.value(), &file));
  const std::pair key(file.st_dev, file.st_ino);
  nodes_.emplace(FUSE_ROOT_ID, Node{.path = std::move(root), .file = key, .lookups = 1});
  node_of_file_[key] = FUSE_ROOT_ID;
}

bool FileCalls::wants_reply(const FileRequest& request) {
  return request.head.opcode != FUSE_FORGET && request.head.opcode != FUSE_BATCH_FORGET &&
         request.head.opcode != FUSE_INTERRUPT;
}

FileReply FileCalls::answer(const FileRequest& request) {
  const std::uint64_t node = request.head.nodeid;
  switch (request.head.opcode) {
    case FUSE_INIT:
      return begin(request);
    case FUSE_LOOKUP:
      return entry(node, request.name(0));
    case FUSE_FORGET:
      forget(node, request.as<fuse_forget_in>().nlookup);
      return {};
    case FUSE_BATCH_FORGET:
      forget_all(request);
      return {};
    case FUSE_GETATTR:
      return attributes(node);
    case FUSE_SETATTR:
      return set_attributes(request);
    case FUSE_OPEN:
      return open(request);
    case FUSE_CREATE:
      return create(request);
    case FUSE_READ:
      return read(request);
    case FUSE_WRITE:
      return write(request);
    case FUSE_FSYNC:
      return sync(request);
    case FUSE_FALLOCATE:
      return allocate(request);
    case FUSE_RELEASE:
      return close(request);
    case FUSE_OPENDIR:
      return open_directory(request);
    case FUSE_READDIR:
      return list(request);
    case FUSE_FSYNCDIR:
      return outcome(::fsync(::dirfd(directory_of(request.as<fuse_fsync_in>().fh))));
    case FUSE_RELEASEDIR:
      return close_directory(request);
    case FUSE_STATFS:
      return free_space(node);
    case FUSE_READLINK:
      return read_link(node);
    case FUSE_INTERRUPT:
    case FUSE_DESTROY:
      return {};
    default:
      return change_name(request);
  }
}

// Makes the calls that change an entry of a directory.
FileReply FileCalls::change_name(const FileRequest& request) {
  const std::uint64_t node = request.head.nodeid;
  const int parent = path_of(node);
  switch (request.head.opcode) {
    case FUSE_MKDIR: {
      const std::string name = request.name(sizeof(fuse_mkdir_in));
      if (::mkdirat(parent, name.c_str(), request.as<fuse_mkdir_in>().mode) != 0) return outcome(-1);
      return entry(node, name);
    }
    case FUSE_SYMLINK: {
      const std::string name = request.name(0);
      if (::symlinkat(request.name(0, 1).c_str(), parent, name.c_str()) != 0) return outcome(-1);
      return entry(node, name);
    }
    case FUSE_LINK: {
      const std::string name = request.name(sizeof(fuse_link_in));
      const std::string old = link_of(request.as<fuse_link_in>().oldnodeid);
      if (::linkat(AT_FDCWD, old.c_str(), parent, name.c_str(), AT_SYMLINK_FOLLOW) != 0) return outcome(-1);
      return entry(node, name);
    }
    case FUSE_UNLINK:
      return outcome(::unlinkat(parent, request.name(0).c_str(), 0));
    case FUSE_RMDIR:
      return outcome(::unlinkat(parent, request.name(0).c_str(), AT_REMOVEDIR));
    case FUSE_RENAME:
      return move(request, request.as<fuse_rename_in>().newdir, sizeof(fuse_rename_in), 0);
    case FUSE_RENAME2: {
      const auto in = request.as<fuse_rename2_in>();
      return move(request, in.newdir, sizeof(in), in.flags);
    }
    default:
      return {.reason = ENOSYS};  // the kernel asks no more for it, and does without
  }
}

FileReply FileCalls::move(const FileRequest& request, std::uint64_t to, std::size_t structure_bytes,
                          unsigned flags) {
  return outcome(::renameat2(path_of(request.head.nodeid), request.name(structure_bytes).c_str(), path_of(to),
                             request.name(structure_bytes, 1).c_str(), flags));
}

int FileCalls::path_of(std::uint64_t node) {
  const std::lock_guard guard(mutex_);
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? -1 : found->second.path.value();
}

std::string FileCalls::link_of(std::uint64_t node) {
  return fmt::format("/proc/self/fd/{}", path_of(node));
}

// One file is one node, by whatever name and however often it is looked up: its locks are of the node.
FileReply FileCalls::entry(std::uint64_t parent, const std::string& name) {
  Descriptor path(::openat(path_of(parent), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat file {};
  if (path.value() < 0 || ::fstat(path.value(), &file) != 0) return outcome(-1);
  const std::pair key(file.st_dev, file.st_ino);
  fuse_entry_out entry{};
  entry.entry_valid = entry.attr_valid = valid_s;
  entry.attr = attributes_of(file);
  const std::lock_guard guard(mutex_);
  const auto known = node_of_file_.find(key);
  entry.nodeid = known != node_of_file_.end() ? known->second : ++last_node_;
  if (known == node_of_file_.end()) {
    node_of_file_[key] = entry.nodeid;
    nodes_.emplace(entry.nodeid, Node{.path = std::move(path), .file = key});
  }
  ++nodes_.at(entry.nodeid).lookups;
  return reply_of(entry);
}

void FileCalls::forget(std::uint64_t node, std::uint64_t lookups) {
  const std::lock_guard guard(mutex_);
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || node == FUSE_ROOT_ID) return;
  found->second.lookups -= std::min(found->second.lookups, lookups);
  if (found->second.lookups > 0) return;
  node_of_file_.erase(found->second.file);
  nodes_.erase(found);
}

void FileCalls::forget_all(const FileRequest& request) {
  const std::size_t count = request.as<fuse_batch_forget_in>().count;
  std::size_t at = sizeof(fuse_batch_forget_in);
  for (std::size_t i = 0; i < count && at + sizeof(fuse_forget_one) <= request.body.size(); ++i) {
    fuse_forget_one one{};
    std::memcpy(&one, request.body.data() + at, sizeof(one));
    forget(one.nodeid, one.nlookup);
    at += sizeof(one);
  }
}

FileReply FileCalls::begin(const FileRequest& request) const {
  constexpr std::uint32_t wanted = FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES | FUSE_ASYNC_DIO |
                                   FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES;
  constexpr std::uint16_t at_once = 64;
  constexpr std::uint32_t page_bytes = 4096;
  const auto in = request.as<fuse_init_in>();
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = std::min<std::uint32_t>(in.minor, FUSE_KERNEL_MINOR_VERSION);
  out.max_readahead = in.max_readahead;
  out.flags = in.flags & wanted;
  out.max_background = at_once;
  out.congestion_threshold = at_once;
  out.max_write = transfer_bytes_max;
  out.time_gran = 1;
  out.max_pages = transfer_bytes_max / page_bytes;
  return reply_of(out);
}

FileReply FileCalls::attributes(std::uint64_t node) {
  struct stat file {};
  if (::fstat(path_of(node), &file) != 0) return outcome(-1);
  fuse_attr_out out{};
  out.attr_valid = valid_s;
  out.attr = attributes_of(file);
  return reply_of(out);
}

FileReply FileCalls::set_attributes(const FileRequest& request) {
  const auto in = request.as<fuse_setattr_in>();
  const std::string path = link_of(request.head.nodeid);
  if ((in.valid & FATTR_MODE) != 0 && ::chmod(path.c_str(), in.mode) != 0) return outcome(-1);
  if ((in.valid & (FATTR_UID | FATTR_GID)) != 0) {
    const uid_t user = (in.valid & FATTR_UID) != 0 ? in.uid : static_cast<uid_t>(-1);
    const gid_t group = (in.valid & FATTR_GID) != 0 ? in.gid : static_cast<gid_t>(-1);
    if (::fchownat(path_of(request.head.nodeid), "", user, group, AT_EMPTY_PATH) != 0) return outcome(-1);
  }
  if ((in.valid & FATTR_SIZE) != 0) {
    const auto bytes = static_cast<off_t>(in.size);
    const bool is_open = (in.valid & FATTR_FH) != 0;
    if ((is_open ? ::ftruncate(static_cast<int>(in.fh), bytes) : ::truncate(path.c_str(), bytes)) != 0)
      return outcome(-1);
  }
  if ((in.valid & (FATTR_ATIME | FATTR_MTIME)) != 0) {
    const std::array times = {time_to_set(in.valid, FATTR_ATIME, FATTR_ATIME_NOW, in.atime, in.atimensec),
                              time_to_set(in.valid, FATTR_MTIME, FATTR_MTIME_NOW, in.mtime, in.mtimensec)};
    if (::utimensat(AT_FDCWD, path.c_str(), times.data(), 0) != 0) return outcome(-1);
  }
  return attributes(request.head.nodeid);
}

FileReply FileCalls::open(const FileRequest& request) {
  return opened(::open(link_of(request.head.nodeid).c_str(), flags_below(request.as<fuse_open_in>().flags)));
}

FileReply FileCalls::create(const FileRequest& request) {
  const auto in = request.as<fuse_create_in>();
  const std::string name = request.name(sizeof(in));
  const int exclusive = static_cast<int>(in.flags) & O_EXCL;
  const int descriptor = ::openat(path_of(request.head.nodeid), name.c_str(),
                                  flags_below(in.flags) | O_CREAT | O_NOFOLLOW | exclusive, in.mode);
  FileReply open = opened(descriptor);
  if (open.reason != 0) return open;
  FileReply reply = entry(request.head.nodeid, name);
  if (reply.reason != 0) {
    ::close(descriptor);
    return reply;
  }
  reply.body.insert(reply.body.end(), open.body.begin(), open.body.end());
  return reply;
}

FileReply FileCalls::read(const FileRequest& request) {
  const auto in = request.as<fuse_read_in>();
  FileReply reply{.reason = 0, .body = std::vector<std::byte>(std::min(in.size, transfer_bytes_max))};
  const ssize_t count =
      ::pread(static_cast<int>(in.fh), reply.body.data(), reply.body.size(), static_cast<off_t>(in.offset));
  if (count < 0) return outcome(count);
  reply.body.resize(static_cast<std::size_t>(count));
  return reply;
}

FileReply FileCalls::write(const FileRequest& request) {
  const auto in = request.as<fuse_write_in>();
  const std::span<const std::byte> bytes = std::span(request.body).subspan(sizeof(in));
  const ssize_t count =
      ::pwrite(static_cast<int>(in.fh), bytes.data(), bytes.size(), static_cast<off_t>(in.offset));
  if (count < 0) return outcome(count);
  fuse_write_out out{};
  out.size = static_cast<std::uint32_t>(count);
  return reply_of(out);
}

FileReply FileCalls::close(const FileRequest& request) {
  ::close(static_cast<int>(request.as<fuse_release_in>().fh));
  return {};
}

FileReply FileCalls::close_directory(const FileRequest& request) {
  ::closedir(directory_of(request.as<fuse_release_in>().fh));
  return {};
}

FileReply FileCalls::sync(const FileRequest& request) {
  const auto in = request.as<fuse_fsync_in>();
  const int descriptor = static_cast<int>(in.fh);
  const bool only_data = (in.fsync_flags & FUSE_FSYNC_FDATASYNC) != 0;
  return outcome(only_data ? ::fdatasync(descriptor) : ::fsync(descriptor));
}

FileReply FileCalls::allocate(const FileRequest& request) {
  const auto in = request.as<fuse_fallocate_in>();
  return outcome(::fallocate(static_cast<int>(in.fh), static_cast<int>(in.mode),
                             static_cast<off_t>(in.offset), static_cast<off_t>(in.length)));
}

FileReply FileCalls::open_directory(const FileRequest& request) {
  DIR* directory = ::opendir(link_of(request.head.nodeid).c_str());
  if (directory == nullptr) return outcome(-1);
  fuse_open_out open{};
  open.fh = reinterpret_cast<std::uint64_t>(directory);
  return reply_of(open);
}

FileReply FileCalls::list(const FileRequest& request) {
  const auto in = request.as<fuse_read_in>();
  DIR* directory = directory_of(in.fh);
  ::seekdir(directory, static_cast<long>(in.offset));
  FileReply reply;
  errno = 0;
  while (const dirent* each = ::readdir(directory)) {
    const std::string_view name = each->d_name;
    const std::size_t bytes = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + name.size());
    const std::size_t at = reply.body.size();
    if (at + bytes > in.size) break;
    reply.body.resize(at + bytes);
    fuse_dirent entry{};
    entry.ino = each->d_ino;
    entry.off = static_cast<std::uint64_t>(::telldir(directory));
    entry.namelen = static_cast<std::uint32_t>(name.size());
    entry.type = each->d_type;
    std::memcpy(reply.body.data() + at, &entry, FUSE_NAME_OFFSET);
    std::memcpy(reply.body.data() + at + FUSE_NAME_OFFSET, name.data(), name.size());
  }
  if (reply.body.empty() && errno != 0) return outcome(-1);
  return reply;
}

FileReply FileCalls::free_space(std::uint64_t node) {
  struct statvfs space {};
  if (::fstatvfs(path_of(node), &space) != 0) return outcome(-1);
  fuse_statfs_out out{};
  out.st.blocks = space.f_blocks;
  out.st.bfree = space.f_bfree;
  out.st.bavail = space.f_bavail;
  out.st.files = space.f_files;
  out.st.ffree = space.f_ffree;
  out.st.bsize = static_cast<std::uint32_t>(space.f_bsize);
  out.st.frsize = static_cast<std::uint32_t>(space.f_frsize);
  out.st.namelen = static_cast<std::uint32_t>(space.f_namemax);
  return reply_of(out);
}

FileReply FileCalls::read_link(std::uint64_t node) {
  std::array<char, PATH_MAX> target{};
  const ssize_t count = ::readlinkat(path_of(node), "", target.data(), target.size());
  if (count < 0) return outcome(count);
  const auto bytes = std::as_bytes(std::span(target)).first(static_cast<std::size_t>(count));
  return {.reason = 0, .body = {bytes.begin(), bytes.end()}};
}

}  // namespace holdfast::inline os
