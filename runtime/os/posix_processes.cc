#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstring>
#include <set>

extern "C" {  // which the header of glibc 2.36 forgets
#include <sys/pidfd.h>
}

#include "runtime/os/errno_reason.h"
#include "runtime/os/posix_file.h"
#include "runtime/os/process_identity.h"

extern char** environ;

namespace holdfast::os {
namespace {

Error cannot(const std::string& what, int reason) {
  return with_reach(reach_of_reason(reason),
                    fail(ExitCode::communication, "cannot {}: {}", what, reason_text(reason)));
}

int milliseconds_left(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
}

// Returns whether one of the descriptors became readable, as a pidfd does when its process has ended.
bool wait_readable(std::span<pollfd> descriptors, std::int64_t timeout_ms) {
  constexpr std::int64_t longest_ms = std::int64_t{1} << 40;  // keeps the deadline inside the clock's range
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(std::clamp<std::int64_t>(timeout_ms, 0, longest_ms));
  while (true) {
    const int ready = ::poll(descriptors.data(), descriptors.size(), milliseconds_left(deadline));
    if (ready > 0) return true;
    if (ready == 0 && milliseconds_left(deadline) == 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

std::optional<ProcessEnd> end_of_status(int status) {
  if (WIFEXITED(status)) return ProcessEnd{.killed = false, .code = WEXITSTATUS(status)};
  if (WIFSIGNALED(status)) return ProcessEnd{.killed = true, .code = WTERMSIG(status)};
  return std::nullopt;
}

// The first version of the kernel's struct pidfd_info, which the headers of Debian 12 lack.
struct PidfdInfo {
  std::uint64_t mask = 0, control_group = 0;
  std::array<std::uint32_t, 11> ids = {};
  std::int32_t exit_status = 0;
};

// Returns how the process ended; none before it is reaped, and from kernels before 6.15.
std::optional<ProcessEnd> end_of_reaped(int pidfd) {
  constexpr std::uint64_t exit_status_bit = 8;
  PidfdInfo info{.mask = exit_status_bit};
  const bool told = ::ioctl(pidfd, _IOWR(0xFF, 11, PidfdInfo), &info) == 0;
  return told && (info.mask & exit_status_bit) != 0 ? end_of_status(info.exit_status) : std::nullopt;
}

class PosixProcess final : public Process {
 public:
  // Descriptor -1: a process that has ended and is gone.
  PosixProcess(std::int64_t id, Descriptor descriptor) : id_(id), descriptor_(std::move(descriptor)) {}
  // Makes a handle without a pidfd.
  explicit PosixProcess(const ProcessIdentity& identity)
      : id_(identity.id), descriptor_(-1), identity_(identity) {}

  std::int64_t id() const override { return id_; }
  bool has_pidfd() const { return descriptor_.value() >= 0; }

  bool wait_ended(std::int64_t timeout_ms) override {
    if (!has_pidfd()) {
      Process* const self = this;
      return posix_processes().wait_any_ended({&self, 1}, timeout_ms);
    }
    pollfd ended = poll_entry();
    return wait_readable({&ended, 1}, timeout_ms);
  }
  // Returns whether the process is gone, for a handle without a pidfd; does not wait.
  bool is_gone() const {
    return end_.has_value() || !identity_.has_value() || identity_->has_ended(posix_processes());
  }

  std::optional<ProcessEnd> end() override {
    if (end_.has_value() || (!has_pidfd() && !identity_.has_value())) return end_;
    siginfo_t info{};
    const auto named = static_cast<id_t>(has_pidfd() ? descriptor_.value() : id_);
    const idtype_t how = has_pidfd() ? P_PIDFD : P_PID;
    if (::waitid(how, named, &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0) {
      end_ = ProcessEnd{.killed = info.si_code != CLD_EXITED, .code = info.si_status};
    }
    return end_;
  }

  // The parent may reap the process between two of these questions, so their order matters: what /proc says
  // holds if the process was not yet reaped afterwards (until then its number is not given to another), and
  // the pidfd is asked last, when it knows the end of one that was reaped meanwhile.
  std::optional<ProcessEnd> observed_end() override {
    if (end_.has_value()) return end_;
    const std::optional<ProcessFacts> facts = posix_processes().facts(id_);
    if (has_pidfd()) {
      const bool is_reaped = ::pidfd_send_signal(descriptor_.value(), 0, nullptr, 0) != 0;
      if (const std::optional<ProcessEnd> end = end_of_reaped(descriptor_.value())) return end;
      if (is_reaped) return std::nullopt;
    } else if (!facts.has_value() || !identity_.has_value() ||
               facts->started_ticks != identity_->started_ticks) {
      return std::nullopt;
    }
    return facts.has_value() ? facts->end : std::nullopt;
  }

  Result<void> signal(int number) override {
    if (end_.has_value() || (!has_pidfd() && is_gone())) return {};
    const int sent = has_pidfd() ? ::pidfd_send_signal(descriptor_.value(), number, nullptr, 0)
                                 : ::kill(static_cast<pid_t>(id_), number);
    if (sent == 0 || errno == ESRCH) return {};
    return cannot(fmt::format("send signal {} to process {}", number, id_), errno);
  }

  Result<void> signal_group(int number) override {
    HF_CHECK(!end_.has_value(), "process {} is reaped: its group may be another's", id_);
    if (::kill(static_cast<pid_t>(-id_), number) == 0 || errno == ESRCH) return {};
    return cannot(fmt::format("send signal {} to the group of process {}", number, id_), errno);
  }

  pollfd poll_entry() const { return {.fd = descriptor_.value(), .events = POLLIN, .revents = 0}; }

 private:
  std::int64_t id_;
  Descriptor descriptor_;
  std::optional<ProcessIdentity> identity_;
  std::optional<ProcessEnd> end_;
};

// Everything that a new process needs, made before the fork: between fork and exec nothing may be allocated.
struct Image {
  std::vector<char*> arguments;  // both end with nullptr
  std::vector<char*> environment;
  int input = -1;
  int output = -1;  // -1: as in this process
  int report = -1;  // a Report is written there when something fails
  pid_t parent = 0;
  bool own_session = false;
  bool die_with_parent = false;
};

struct Report {
  int failure = 0;   // an errno, or
  pid_t orphan = 0;  // the id of the process that was started
};

void send(int descriptor, Report report) {
  // A pipe takes so few bytes whole.
  while (::write(descriptor, &report, sizeof(report)) < 0 && errno == EINTR) {
  }
}

bool set_up(const Image& image) {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &standard, nullptr);
  if (image.own_session && ::setsid() < 0) return false;
  if (image.die_with_parent) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
    if (::getppid() != image.parent) return false;  // it died before it could be watched
  }
  if (::dup2(image.input, STDIN_FILENO) < 0) return false;
  if (image.output >= 0) {
    if (::dup2(image.output, STDOUT_FILENO) < 0 || ::dup2(image.output, STDERR_FILENO) < 0) return false;
  }
  // Some libraries do not mark their descriptors, and a socket that lives on in a child hides the death of
  // its owner. Kernels before 5.11 refuse, and those descriptors stay.
  ::close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  sigset_t none;
  sigemptyset(&none);
  return ::sigprocmask(SIG_SETMASK, &none, nullptr) == 0;
}

// Becomes the program, in the child: it makes only calls that are safe after the fork of a process with
// several threads.
[[noreturn]] void become(const Image& image) {
  if (set_up(image)) ::execvpe(image.arguments[0], image.arguments.data(), image.environment.data());
  send(image.report, {.failure = errno, .orphan = 0});
  ::_exit(127);
}

// A child that starts the process and ends, so that the process has no parent.
[[noreturn]] void become_between(const Image& image) {
#ifdef __SANITIZE_ADDRESS__
  const pid_t orphan = ::_Fork();  // a second vfork() overwrites where AddressSanitizer has the first return
#else
  const pid_t orphan = ::vfork();
#endif
  if (orphan == 0) become(image);
  send(image.report, {.failure = orphan < 0 ? errno : 0, .orphan = orphan});
  ::_exit(0);
}

// vfork, because a fork copies the page tables of a rank with many GiB and makes it pay for every page it
// writes next. The child runs on this thread's memory until it has become the program: with all signals
// blocked, so that no handler runs in it.
pid_t fork_into(const Image& image, bool orphan) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t child = ::vfork();
  if (child == 0) {
    if (orphan) become_between(image);
    become(image);
  }
  const int reason = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = reason;
  return child;
}

// Returns what the child reported until it became the program.
Report read_report(int descriptor) {
  Report whole, part;
  while (true) {
    const ssize_t got = ::read(descriptor, &part, sizeof(part));
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof(part))) return whole;
    if (whole.failure == 0) whole.failure = part.failure;
    if (whole.orphan == 0) whole.orphan = part.orphan;
  }
}

// This process's own environment, but for the names that there are values for.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> lines;
  for (char** line = environ; *line != nullptr; ++line) {
    const std::string text = *line;
    if (!variables.contains(text.substr(0, text.find('=')))) lines.push_back(text);
  }
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  return lines;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Returns the names in a directory of /proc that are numbers, in ascending order.
std::vector<std::int64_t> numbers_in(const char* directory) {
  std::vector<std::int64_t> ids;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory), ::closedir);
  if (stream == nullptr) return ids;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    std::int64_t id = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error == std::errc() && end == name.data() + name.size()) ids.push_back(id);
  }
  std::ranges::sort(ids);
  return ids;
}

// ProcessorMask is a mask of the kernel for processors from 0 to `processors` - 1.
class ProcessorMask {
 public:
  explicit ProcessorMask(int processors)
      : bytes_(CPU_ALLOC_SIZE(processors)),
        set_(CPU_ALLOC(processors), [](cpu_set_t* set) { CPU_FREE(set); }) {
    if (set_ != nullptr) CPU_ZERO_S(bytes_, set_.get());
  }
  cpu_set_t* set() const { return set_.get(); }  // null: there is no memory
  std::size_t bytes() const { return bytes_; }
  void add(int processor) const { CPU_SET_S(static_cast<std::size_t>(processor), bytes_, set_.get()); }
  std::vector<int> list() const {
    std::vector<int> processors;
    for (std::size_t each = 0; each < 8 * bytes_; ++each) {
      if (CPU_ISSET_S(each, bytes_, set_.get())) processors.push_back(static_cast<int>(each));
    }
    return processors;
  }

 private:
  std::size_t bytes_;
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set_;
};

class PosixProcesses final : public Processes {
  static constexpr int processors_max = 1 << 20;

 public:
  Result<std::unique_ptr<Process>> start(const ProcessStart& start) override {
    HF_CHECK(!start.arguments.empty(), "no program to start");
    HF_CHECK(!start.orphan || !start.die_with_parent, "an orphan has no parent to die with");
    const std::string what = "start " + start.arguments.front();
    const Descriptor input = open_descriptor("/dev/null", O_RDONLY);
    if (input.value() < 0) return cannot(what + ", because of /dev/null", errno);
    const Descriptor output =
        start.output.empty() ? Descriptor(-1) : open_descriptor(start.output, O_WRONLY | O_CREAT | O_APPEND);
    if (!start.output.empty() && output.value() < 0) return cannot(what + ", write " + start.output, errno);
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return cannot(what, errno);
    const Descriptor from(pipe[0]);
    std::optional<Descriptor> to(pipe[1]);
    std::vector<std::string> arguments = start.arguments;
    std::vector<std::string> environment = environment_with(start.variables);
    const Image image{.arguments = pointers_to(arguments),
                      .environment = pointers_to(environment),
                      .input = input.value(),
                      .output = start.output.empty() ? start.output_descriptor : output.value(),
                      .report = to->value(),
                      .parent = ::getpid(),
                      .own_session = start.own_session,
                      .die_with_parent = start.die_with_parent};
    const pid_t child = fork_into(image, start.orphan);
    if (child < 0) return cannot(what, errno);
    to.reset();
    const Report report = read_report(from.value());
    if (start.orphan || report.failure != 0) ::waitpid(child, nullptr, 0);
    if (report.failure != 0) return cannot(what, report.failure);
    HF_TRY(std::unique_ptr<Process> process, find(start.orphan ? report.orphan : child));
    if (process == nullptr) {  // an orphan that has ended already
      process = std::make_unique<PosixProcess>(report.orphan, Descriptor(-1));
    }
    return process;
  }

  Result<std::unique_ptr<Process>> find(std::int64_t id) override {
    Descriptor descriptor(id > 0 && id <= INT_MAX ? ::pidfd_open(static_cast<pid_t>(id), 0) : -1);
    if (descriptor.value() >= 0) {
      return std::unique_ptr<Process>(std::make_unique<PosixProcess>(id, std::move(descriptor)));
    }
    // EINVAL and ENOENT: the id of a thread that is not the first of its process.
    const bool none = id <= 0 || id > INT_MAX || errno == ESRCH || errno == EINVAL || errno == ENOENT;
    if (none) return std::unique_ptr<Process>();
    // Seccomp filters of container engines from before 2020 refuse it, and kernels before 5.3 do not know it.
    const int reason = errno;
    const Result<std::optional<ProcessFacts>> found = look(id);
    if (!found.ok()) return cannot(fmt::format("get hold of process {} (pidfd_open)", id), reason);
    if (!found->has_value()) return std::unique_ptr<Process>();
    return std::unique_ptr<Process>(
        std::make_unique<PosixProcess>(ProcessIdentity{.id = id, .started_ticks = (*found)->started_ticks}));
  }

  Result<std::optional<ProcessFacts>> look(std::int64_t id) override {
    const std::string path = fmt::format("/proc/{}/stat", id);
    const Descriptor descriptor = open_descriptor(path, O_RDONLY);
    if (descriptor.value() < 0) {
      const int reason = errno;
      // No process exists in /proc where there is no /proc at all.
      const bool none = reason == ESRCH || (reason == ENOENT && ::access("/proc/self/stat", F_OK) == 0);
      if (none) return std::optional<ProcessFacts>();
      return cannot("read " + path, reason);
    }
    std::array<char, 4096> buffer{};  // one line, which comes in one read
    const ssize_t got = ::read(descriptor.value(), buffer.data(), buffer.size());
    if (got < 0 && errno == ESRCH) return std::optional<ProcessFacts>();
    if (got < 0) return cannot("read " + path, errno);
    std::optional<ProcessFacts> facts = parse_facts({buffer.data(), static_cast<std::size_t>(got)});
    if (!facts.has_value()) return fail(ExitCode::communication, "{} is no line of facts", path);
    facts->of_other_user = is_of_other_user(id);
    return facts;
  }

  std::string own_namespace() override {
    std::array<char, 64> name{};
    const ssize_t length = ::readlink("/proc/self/ns/pid", name.data(), name.size());
    return {name.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
  }

  std::vector<std::int64_t> list() override { return numbers_in("/proc"); }

  bool wait_any_ended(std::span<Process* const> processes, std::int64_t timeout_ms) override {
    std::vector<pollfd> descriptors;
    std::vector<const PosixProcess*> others;
    for (Process* process : processes) {
      const auto* const each = static_cast<PosixProcess*>(process);  // all handles are made by this class
      if (each->has_pidfd()) {
        descriptors.push_back(each->poll_entry());
      } else {
        others.push_back(each);
      }
    }
    if (others.empty()) return wait_readable(descriptors, timeout_ms);
    constexpr std::int64_t look_ms = 5;
    const auto gone = [](const PosixProcess* process) { return process->is_gone(); };
    for (std::int64_t left_ms = timeout_ms;; left_ms -= look_ms) {
      if (std::ranges::any_of(others, gone)) return true;
      if (wait_readable(descriptors, std::min(left_ms, look_ms))) return true;
      if (left_ms <= 0) return false;
    }
  }

  std::vector<int> own_processors() override {
    // The mask must be as long as the kernel's, which is not known: double it until it is.
    for (int processors = 1024; processors <= processors_max; processors *= 2) {
      const ProcessorMask mask(processors);
      if (mask.set() == nullptr) break;
      if (::sched_getaffinity(0, mask.bytes(), mask.set()) == 0) return mask.list();
      if (errno != EINVAL) break;
    }
    return {};
  }

  // Binds one thread after the other, as the kernel knows no other way. A thread that another one starts
  // meanwhile may have inherited the mask of before: looks until there is none that is new.
  Result<void> run_on(std::span<const int> processors) override {
    HF_CHECK(!processors.empty(), "a process needs a processor");
    const ProcessorMask mask(std::ranges::max(processors) + 1);
    if (mask.set() == nullptr) return cannot("bind to processors", ENOMEM);
    for (const int processor : processors) mask.add(processor);
    std::set<std::int64_t> bound;
    for (bool is_new = true; is_new;) {
      is_new = false;
      for (const std::int64_t thread : numbers_in("/proc/self/task")) {
        if (!bound.insert(thread).second) continue;
        is_new = true;
        const bool is_bound = ::sched_setaffinity(static_cast<pid_t>(thread), mask.bytes(), mask.set()) == 0;
        if (!is_bound && errno != ESRCH) return cannot("bind to processors (sched_setaffinity)", errno);
      }
    }
    if (bound.empty()) return cannot("list the threads of this process (/proc/self/task)", ENOENT);
    return {};
  }

 private:
  // "ID (NAME) STATE PARENT ...", where the name may hold anything; proc(5) counts the fields from 1.
  // The directory of a process has the owner that the process has, whatever its files say.
  static bool is_of_other_user(std::int64_t id) {
    struct stat info {};
    return ::stat(fmt::format("/proc/{}", id).c_str(), &info) == 0 && info.st_uid != ::geteuid();
  }

  static std::optional<ProcessFacts> parse_facts(std::string_view line) {
    constexpr int parent_field = 4, flags_field = 9, minor_field = 10, major_field = 12, threads_field = 20,
                  started_field = 22, memory_field = 23, resident_field = 24, variables_end_field = 51,
                  exit_status_field = 52;
    constexpr std::uint64_t thread_of_kernel = 0x200000;  // PF_KTHREAD of linux/sched.h
    const std::size_t name_end = line.rfind(") ");
    if (name_end == std::string_view::npos || name_end + 2 >= line.size()) return std::nullopt;
    line.remove_prefix(name_end + 2);
    ProcessFacts facts{.state = line.front()};
    std::uint64_t flags = 0, memory = 0, resident_pages = 0, variables_end = 0;
    std::int64_t threads = 0;
    int exit_status = 0;
    for (int field = 3; field <= exit_status_field; ++field) {
      const std::size_t length = std::min(line.find(' '), line.size());
      const auto parse = [&](auto& value) { std::from_chars(line.data(), line.data() + length, value); };
      if (field == parent_field) parse(facts.parent);
      if (field == flags_field) parse(flags);
      if (field == minor_field) parse(facts.minor_faults);
      if (field == major_field) parse(facts.major_faults);
      if (field == threads_field) parse(threads);
      if (field == started_field) parse(facts.started_ticks);
      if (field == memory_field) parse(memory);
      if (field == resident_field) parse(resident_pages);
      if (field == variables_end_field) parse(variables_end);
      if (field == exit_status_field) parse(exit_status);
      line.remove_prefix(std::min(length + 1, line.size()));
    }
    facts.resident_bytes = resident_pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    // A thread of the kernel and a process that has ended have no memory at all.
    facts.becomes_another_program = memory > 0 && variables_end == 0;
    facts.is_ending = memory == 0 && (flags & thread_of_kernel) == 0 && (!facts.has_ended() || threads > 1);
    if (facts.state == 'Z' && exit_status != 0) facts.end = end_of_status(exit_status);
    return facts;
  }
};

}  // namespace

Result<void> become_program(const std::string& path, const std::vector<std::string>& words) {
  std::vector<std::string> arguments = {path};
  arguments.insert(arguments.end(), words.begin(), words.end());
  ::execv(path.c_str(), pointers_to(arguments).data());
  return cannot("start " + path, errno);
}

std::string text_of(const ProcessEnd& end) {
  if (!end.killed) return fmt::format("exit code {}", end.code);
  const char* const name = ::sigabbrev_np(end.code);
  return name == nullptr ? fmt::format("signal {}", end.code)
                         : fmt::format("signal {} (SIG{})", end.code, name);
}

void raise_descriptor_limit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));
}

void forbid_core_files() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = 0;
  static_cast<void>(::setrlimit(RLIMIT_CORE, &limit));
}

Processes& posix_processes() {
  static PosixProcesses processes;  // stateless
  return processes;
}

}  // namespace holdfast::os
