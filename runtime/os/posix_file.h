// The File of posix_env, and how an errno becomes a sentence. For posix_env.cc and test twins of Env; the
// rest of the tree sees runtime/os/env.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::os {

// Both return "cannot <action> <path>: <reason>" for the errno `reason`, with advice where there is some (a
// full disk).
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
  // Closes before the destruction and returns the outcome: 0, or the errno. With NFS and with quotas a write
  // that seemed to work may turn out here to have failed.
  int close();
  int release() { return std::exchange(value_, -1); }  // to a caller that closes it

 private:
  int value_;
};

// Calls open(2), retried when interrupted; errno is set when the result is -1. `mode` is that of a new file,
// less the umask.
Descriptor open_descriptor(const std::string& path, int flags, unsigned mode = 0666);
// Returns the names in an open directory, sorted, without . and ..
Result<std::vector<std::string>> names_in(Descriptor directory, const std::string& path);
// Opens the file for reading, with additional flags of open(2). Error: data; also where it is a pipe, a
// device or a socket, which may be in the place of a file and never end. Below /dev and /proc it accepts any
// kind.
Result<Descriptor> open_to_read(const std::string& path, int flags = 0);
// Reads from the position of the descriptor to the end; `path` is for the message. Error: data; also where
// there are more than `max_bytes`.
Result<std::string> read_all_of(const Descriptor& descriptor, const std::string& path,
                                std::uint64_t max_bytes);

Result<std::unique_ptr<File>> open_posix_file(const std::string& path, OpenMode mode);

// The descriptor of a file of open_posix_file, as an I/O engine uses it.
struct TransferDescriptor {
  int value = -1;
  bool direct = false;
};
TransferDescriptor transfer_descriptor(File& file);
int sync_descriptor(File& file);
// Sends further operations through the page cache, after one on the direct descriptor ended with this errno
// although nothing is wrong with it.
void stop_direct(File& file, int reason);

}  // namespace holdfast::os
