#include "runtime/core/posix_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

extern char** environ;

namespace holdfast {
namespace {

constexpr int poll_ms = 50;

Error could_not(const char* what, int error) {
  return fail(ExitCode::checkpoint, "cannot {} for a command: {}", what, std::strerror(error));
}

class PipeEnd {
 public:
  explicit PipeEnd(int number) : number_(number) {}
  PipeEnd(const PipeEnd&) = delete;
  PipeEnd& operator=(const PipeEnd&) = delete;
  ~PipeEnd() { close(); }
  int number() const { return number_; }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

// This process's own environment, but for the names that the command has values for.
std::vector<std::string> environment_of(const Command& command) {
  std::vector<std::string> lines;
  for (char** line = environ; *line != nullptr; ++line) {
    const std::string text = *line;
    if (!command.variables.contains(text.substr(0, text.find('=')))) lines.push_back(text);
  }
  for (const auto& [name, value] : command.variables) lines.push_back(name + "=" + value);
  return lines;
}

// A group of its own, so that what it starts can be killed with it; signals as a shell expects to find them.
class Attributes {
 public:
  explicit Attributes(int output) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, output, STDERR_FILENO);
    posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  ~Attributes() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

Result<pid_t> spawn_shell(const Command& command, int output) {
  std::vector<std::string> environment = environment_of(command);
  std::vector<char*> variables;
  for (std::string& line : environment) variables.push_back(line.data());
  variables.push_back(nullptr);
  std::string shell = "sh", option = "-c", line = command.line;
  const std::array<char*, 4> arguments = {shell.data(), option.data(), line.data(), nullptr};
  const Attributes attributes(output);
  pid_t child = 0;
  const int error = posix_spawn(&child, "/bin/sh", attributes.actions(), attributes.attributes(),
                                arguments.data(), variables.data());
  if (error != 0) return could_not("start /bin/sh", error);
  return child;
}

// Reads what is there now, or within `timeout_ms`; not all of what never ends, because there are other
// things to look at.
void read_output(int descriptor, int timeout_ms, std::size_t most_bytes, std::string& output) {
  pollfd ready{.fd = descriptor, .events = POLLIN, .revents = 0};
  std::array<char, 4096> buffer{};
  constexpr int reads_at_once = 16;
  for (int reads = 0; reads<reads_at_once&& ::poll(&ready, 1, timeout_ms)> 0; ++reads) {
    const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
    if (count == 0) ::poll(nullptr, 0, timeout_ms);  // closed by the command, which goes on
    if (count <= 0) return;
    output.append(buffer.data(), static_cast<std::size_t>(count));
    if (output.size() > most_bytes) output.erase(0, output.size() - most_bytes);
    timeout_ms = 0;
  }
}

CommandEnd end_of(int status) {
  if (WIFEXITED(status)) return {.how = CommandEnd::How::exited, .code = WEXITSTATUS(status), .output = {}};
  return {.how = CommandEnd::How::killed, .code = WTERMSIG(status), .output = {}};
}

}  // namespace

Result<CommandEnd> run_posix_command(Env& env, const Command& command) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return could_not("make a pipe", errno);
  const PipeEnd from(pipe[0]);
  PipeEnd to(pipe[1]);
  HF_TRY(const pid_t child, spawn_shell(command, to.number()));
  to.close();
  const std::int64_t deadline_ns = env.monotonic_ns() + command.timeout_ms * 1'000'000;
  std::string output;
  std::optional<CommandEnd::How> why_killed;
  int status = 0;
  while (true) {
    read_output(from.number(), poll_ms, command.output_bytes, output);
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (ended < 0 && errno != EINTR) return could_not("wait", errno);
    if (why_killed.has_value()) continue;
    if (env.monotonic_ns() >= deadline_ns) why_killed = CommandEnd::How::timed_out;
    if (command.cancelled != nullptr && command.cancelled->load()) why_killed = CommandEnd::How::cancelled;
    if (why_killed.has_value()) ::kill(-child, SIGKILL);
  }
  read_output(from.number(), 0, command.output_bytes, output);
  CommandEnd end = end_of(status);
  if (why_killed.has_value()) end.how = *why_killed;
  end.output = std::move(output);
  return end;
}

}  // namespace holdfast
