#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/os/fifo.h"
#include "runtime/os/posix_file.h"

namespace holdfast::os {
namespace {

constexpr char filler = '\0';  // no line of text has it

class PosixFifo final : public Fifo {
 public:
  PosixFifo(std::string path, Descriptor descriptor)
      : path_(std::move(path)), descriptor_(std::move(descriptor)) {}
  ~PosixFifo() override { ::unlink(path_.c_str()); }

  std::string read() override {
    std::string text;
    std::array<char, 4096> buffer{};
    ssize_t count = 0;
    while ((count = ::read(descriptor_.value(), buffer.data(), buffer.size())) > 0)
      text.append(buffer.data(), static_cast<std::size_t>(count));
    std::erase(text, filler);
    return text;
  }

  Result<void> fill() override {
    // Byte by byte: a page that is only begun has room for short lines.
    while (::write(descriptor_.value(), &filler, 1) == 1) {
    }
    if (errno == EAGAIN) return {};
    return fail(ExitCode::config, "cannot fill {}: {}", path_, std::strerror(errno));
  }

 private:
  std::string path_;
  Descriptor descriptor_;
};

}  // namespace

Result<std::unique_ptr<Fifo>> make_posix_fifo(const std::string& path) {
  constexpr mode_t mode = 0600;
  constexpr int min_bytes = 4096;
  if (::mkfifo(path.c_str(), mode) != 0)
    return fail(ExitCode::config, "cannot make the named pipe {}: {}", path, std::strerror(errno));
  // A reader that also writes: it never sees the end of a file between two writers.
  Descriptor descriptor = open_descriptor(path.c_str(), O_RDWR | O_NONBLOCK);
  if (descriptor.value() < 0)
    return fail(ExitCode::config, "cannot open the named pipe {}: {}", path, std::strerror(errno));
  static_cast<void>(::fcntl(descriptor.value(), F_SETPIPE_SZ, min_bytes));
  return std::unique_ptr<Fifo>(std::make_unique<PosixFifo>(path, std::move(descriptor)));
}

bool is_stream(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

}  // namespace holdfast::os
