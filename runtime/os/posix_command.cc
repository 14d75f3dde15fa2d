#include "runtime/os/posix_parts.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>

#include "runtime/os/posix_file.h"
#include "runtime/os/processes.h"

namespace holdfast::os {
namespace {

constexpr int poll_ms = 50;

// Reads what is there now, or within `timeout_ms`; not all of what never ends, because there are other
// things to look at.
void read_output(int descriptor, int timeout_ms, std::size_t max_bytes, std::string& output) {
  pollfd ready{.fd = descriptor, .events = POLLIN, .revents = 0};
  std::array<char, 4096> buffer{};
  constexpr int reads_at_once = 16;
  for (int reads = 0; reads<reads_at_once&& ::poll(&ready, 1, timeout_ms)> 0; ++reads) {
    const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
    if (count == 0) ::poll(nullptr, 0, timeout_ms);  // closed by the command, which goes on
    if (count <= 0) return;
    output.append(buffer.data(), static_cast<std::size_t>(count));
    if (output.size() > max_bytes) output.erase(0, output.size() - max_bytes);
    timeout_ms = 0;
  }
}

}  // namespace

// Runs it in a group of its own, so that what it starts can be killed with it. Where this process is killed
// the shell dies, too, and with it a command that it has become by exec.
Result<CommandEnd> run_posix_command(Env& env, const Command& command) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    return fail(ExitCode::checkpoint, "cannot make a pipe for a command: {}", std::strerror(errno));
  const Descriptor from(pipe[0]);
  std::optional<Descriptor> to(pipe[1]);
  const Result<std::unique_ptr<Process>> started =
      posix_processes().start({.arguments = {"/bin/sh", "-c", command.line},
                               .variables = command.variables,
                               .output_descriptor = to->value(),
                               .own_session = true,
                               .die_with_parent = true});
  if (!started.ok()) return with_code(ExitCode::checkpoint, started.error());
  Process& shell = **started;
  to.reset();
  const std::int64_t deadline_ns = env.monotonic_ns() + command.timeout_ms * 1'000'000;
  std::string output;
  std::optional<CommandEnd::How> why_killed;
  std::optional<ProcessEnd> ended;
  while (true) {
    read_output(from.value(), poll_ms, command.output_bytes, output);
    if ((ended = shell.end()).has_value()) break;
    if (why_killed.has_value()) continue;
    if (env.monotonic_ns() >= deadline_ns) why_killed = CommandEnd::How::timed_out;
    if (command.cancelled != nullptr && command.cancelled->load()) why_killed = CommandEnd::How::cancelled;
    if (why_killed.has_value()) HF_TRY_VOID(shell.signal_group(SIGKILL));
  }
  read_output(from.value(), 0, command.output_bytes, output);
  CommandEnd end{.how = ended->killed ? CommandEnd::How::killed : CommandEnd::How::exited,
                 .code = ended->code,
                 .output = std::move(output)};
  if (why_killed.has_value()) end.how = *why_killed;
  return end;
}

}  // namespace holdfast::os
