#include "runtime/os/signals.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace holdfast::os {

Result<std::unique_ptr<SignalWatcher>> SignalWatcher::watch(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    return fail(ExitCode::config, "signals cannot be blocked: {}", std::strerror(error));
  }
  const int descriptor = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (descriptor < 0)
    return fail(ExitCode::config, "signals cannot be watched (signalfd): {}", std::strerror(errno));
  return std::unique_ptr<SignalWatcher>(new SignalWatcher(descriptor));
}

SignalWatcher::~SignalWatcher() {
  ::close(descriptor_);
}

int SignalWatcher::poll() {
  signalfd_siginfo info;
  const ssize_t got = read(descriptor_, &info, sizeof(info));
  return got == static_cast<ssize_t>(sizeof(info)) ? static_cast<int>(info.ssi_signo) : 0;
}

void ignore_closed_pipes() {
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace holdfast::os
