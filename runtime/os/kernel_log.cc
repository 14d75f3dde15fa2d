#include "runtime/os/kernel_log.h"

#include <sys/klog.h>

#include <cerrno>

#include "runtime/core/text.h"
#include "runtime/os/errno_reason.h"

namespace holdfast::os {
namespace {

// Actions of syslog(2).
constexpr int read_all = 3, size_of_buffer = 10;

}  // namespace

Result<std::vector<std::string>> kernel_log() {
  const int size = klogctl(size_of_buffer, nullptr, 0);
  std::string text(size > 0 ? static_cast<std::size_t>(size) : 0, '\0');
  const int length = text.empty() ? size : klogctl(read_all, text.data(), static_cast<int>(text.size()));
  if (length < 0) {
    return fail(ExitCode::config,
                "the kernel's log may not be read by this user ({}; kernel.dmesg_restrict = 0, or "
                "CAP_SYSLOG, allows it)",
                reason_text(errno));
  }
  text.resize(static_cast<std::size_t>(length));
  return lines_of_kernel_log(text);
}

std::vector<std::string> lines_of_kernel_log(const std::string& text) {
  std::vector<std::string> lines = split_list(text, '\n');
  for (std::string& line : lines) {
    const std::size_t end = line.starts_with("<") ? line.find('>') : std::string::npos;
    if (end != std::string::npos) line.erase(0, end + 1);
  }
  return lines;
}

}  // namespace holdfast::os
