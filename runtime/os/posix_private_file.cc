#include "runtime/os/posix_private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/os/errno_reason.h"
#include "runtime/os/posix_file.h"

namespace holdfast::os {

Result<void> write_private_file(const std::string& path, const std::string& text) {
  constexpr unsigned mode = 0600;
  const Descriptor descriptor = open_descriptor(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
  const bool is_written = descriptor.value() >= 0 && ::write(descriptor.value(), text.data(), text.size()) ==
                                                         static_cast<ssize_t>(text.size());
  if (is_written) return {};
  const int reason = errno;
  if (descriptor.value() >= 0) ::unlink(path.c_str());  // what was written of it is of no use
  return fail(ExitCode::checkpoint, "cannot make {}: {}", path, reason_text(reason));
}

bool others_may_read(const std::string& path) {
  struct stat status = {};
  constexpr mode_t of_others = 0077;
  return ::lstat(path.c_str(), &status) == 0 && (status.st_mode & of_others) != 0;
}

bool is_of_another_user(const std::string& path) {
  struct stat status = {};
  return ::lstat(path.c_str(), &status) == 0 && status.st_uid != ::geteuid();
}

}  // namespace holdfast::os
