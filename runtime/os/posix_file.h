// The File of posix_env, and how an errno becomes a sentence. For posix_env.cc and test twins of Env; the
// rest of the tree sees runtime/os/env.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::inline os {

// "cannot <action> <path>: <reason>" for the errno `reason`, with what to do where that is known (a full
// disk).
Error read_error(std::string_view action, const std::string& path, int reason);   // ExitCode::data
Error write_error(std::string_view action, const std::string& path, int reason);  // ExitCode::checkpoint
// Does what write_error does, for locks and directories: ExitCode::config where this user may not write
// `path`, or nobody may. Other reasons, such as a server that does not answer, pass.
Error lock_error(std::string_view action, const std::string& path, int reason);

// Closes on destruction; -1 is no descriptor.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.value_) { other.value_ = -1; }
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor();
  int value() const { return value_; }
  // Before the destruction, for its outcome: 0, or the errno. With NFS and with quotas it is here that a
  // write which seemed to work turns out to have failed.
  int close();
  int release() { return std::exchange(value_, -1); }  // to somebody else, who closes it

 private:
  int value_;
};

// open(2), retried when interrupted; errno is set when the result is -1. `mode`: of a file that is made, less
// the umask.
Descriptor open_descriptor(const std::string& path, int flags, unsigned mode = 0666);
// The names in an open directory, sorted, no . and ..
Result<std::vector<std::string>> names_in(Descriptor directory, const std::string& path);
// Opens it for reading, with these flags of open(2) besides. Error: data; also where it is a pipe, a device
// or a socket, which may be in the place of a file and never end. Below /dev and /proc it takes what is
// there.
Result<Descriptor> open_to_read(const std::string& path, int flags = 0);
// Reads from where the descriptor is to the end; `path` is for the sentence. Error: data; also where there
// are more than `max_bytes`.
Result<std::string> read_all_of(const Descriptor& descriptor, const std::string& path,
                                std::uint64_t max_bytes);

Result<std::unique_ptr<File>> open_posix_file(const std::string& path, OpenMode mode);

// What an engine uses of a file that open_posix_file opened.
struct TransferDescriptor {
  int value = -1;
  bool direct = false;
};
TransferDescriptor transfer_descriptor(File& file);
int sync_descriptor(File& file);
// An operation on the direct descriptor ended with this errno although nothing is wrong with it: from now on
// they go through the page cache.
void stop_direct(File& file, int reason);

}  // namespace holdfast::inline os
