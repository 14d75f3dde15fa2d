#include "runtime/os/posix_start.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>
#include <initializer_list>

namespace holdfast::os {

void replace_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest number that is free is the one it gets.
    if (::fcntl(stream, F_GETFD) < 0) static_cast<void>(::open("/dev/null", O_RDONLY));
  }
}

void replace_unread_streams() {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    pollfd state{.fd = stream, .events = 0, .revents = 0};
    if (::poll(&state, 1, 0) != 1 || (state.revents & POLLERR) == 0) continue;
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere < 0) continue;
    ::dup2(nowhere, stream);
    ::close(nowhere);
  }
}

void set_variable_if_unset(const std::string& name, const std::string& value) {
  setenv(name.c_str(), value.c_str(), 0);
}

}  // namespace holdfast::os
