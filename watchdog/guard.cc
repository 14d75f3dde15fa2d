#include "watchdog/guard.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/os/console.h"
#include "runtime/os/processes.h"
#include "runtime/os/signals.h"
#include "watchdog/board.h"
#include "watchdog/flight_record.h"
#include "watchdog/guard_network.h"
#include "watchdog/guard_writer.h"
#include "watchdog/signs_of_life.h"

namespace holdfast::watchdog {
namespace {

constexpr std::size_t max_unwritten = 256;

// Process of a slot.
struct Watched {
  std::unique_ptr<Process> process;  // null: none, ended before it could be watched, or not watched
  ProcessIdentity identity = {};
  bool ended = false;
  bool not_watched = false;  // the system does not report whether it is alive
  bool foreign = false;      // it is another user's, so no rank of this run: it is left alone
};

class Guard {
 public:
  Guard(Env& env, const GuardSettings& settings, std::unique_ptr<Board> board, SignalWatcher& signals)
      : env_(&env),
        settings_(settings),
        board_(std::move(board)),
        signals_(&signals),
        host_(env.host_name()),
        watched_(board_->slots()),
        mind_(settings.mind, host_, board_->slots()),
        writer_(env) {}

  void run() {
    if (!claim()) return;
    mind_.begin_tick(env_->monotonic_ns(), env_->wall_time_us());
    look_at_processes();
    while (true) {
      const bool all_watched = std::ranges::none_of(watched_, &Watched::not_watched);
      if (mind_.may_leave(env_->monotonic_ns()) && has_written() && all_watched) {
        if (board_->closed()) return;  // by another guard
        if (board_->close(*env_, settings_.board)) {
          PeerHostTable::remove(*env_, settings_.board);
          say_what_is_not_written();
          end_daemons_that_are_cut_off();
          return;
        }
      }
      wait();
      if (!tick()) return;  // another guard has taken over
    }
  }

 private:
  // Makes this process the guard of the board. Returns false when there is another guard.
  bool claim() {
    BoardHeader& header = board_->header();
    const std::int64_t own = env_->process_id();
    std::int64_t before = header.guard_process;
    while (before != own) {
      const ProcessIdentity guard{.id = before, .started_ticks = header.guard_started_ticks};
      if (before > 0 && !guard.has_ended(env_->processes())) return false;
      if (header.guard_process.compare_exchange_strong(before, own)) break;
    }
    header.guard_started_ticks = ProcessIdentity::of(env_->processes(), own).started_ticks;
    return true;
  }

  // Begins the network once the ranks of this host have reported that there are other hosts, and reports to
  // these hosts which ranks have ended until then, as seen by this guard or by one before it. Where there is
  // no network, the guard works without it.
  void begin_network() {
    if (network_ != nullptr || network_failed_) return;
    const std::optional<GuardNetworkFacts> facts = read_guard_network(board_->header());
    if (!facts.has_value()) return;
    Result<std::unique_ptr<GuardNetwork>> network =
        GuardNetwork::begin(*env_, *board_, settings_.board, *facts);
    network_failed_ = !network.ok();
    if (network_failed_) {
      say(fmt::format("host {} does not hear other hosts: {}", host_, network.error().message));
      return;
    }
    network_ = std::move(network).value();
    for (std::uint32_t index = 0; index < board_->slots(); ++index) {
      const SlotView slot = read_slot(board_->slot(index));
      const Watched& watched = watched_[index];
      if (watched.ended && slot.identity() == watched.identity) network_->ended(slot);
    }
  }

  void say_never_heard(const std::string& hosts) const {
    say(
        fmt::format("host {} has heard nothing of {} since the start: it does not notice when they become "
                    "unreachable; the hosts of a run must reach each other by TCP on all ports",
                    host_, hosts));
  }

  void end_daemons_that_are_cut_off() {
    if (network_ == nullptr || !network_->is_cut_off()) return;
    for (std::uint32_t index = 0; index < board_->slots(); ++index) {
      const SlotView slot = read_slot(board_->slot(index));
      const SlotView parent = {.process = slot.parent, .started_ticks = slot.parent_started_ticks};
      constexpr std::int64_t init = 1;  // parent of every process whose parent has ended
      if (parent.process <= init) continue;
      Result<std::unique_ptr<Process>> process = parent.identity().open(env_->processes());
      if (!process.ok() || *process == nullptr || !lives(*env_, parent) || !is_daemon(parent.process))
        continue;
      static_cast<void>((*process)->signal(SIGKILL).ok());
    }
  }

  // Returns whether the process is a daemon of the launcher: mpirun itself has the variable, as the ranks
  // have, but its daemons have not. Without a launcher no process has it.
  bool is_daemon(std::int64_t process) {
    if (settings_.start_variable.empty() || env_->variable(settings_.start_variable).empty()) return false;
    const Result<std::string> environment = env_->read_text(fmt::format("/proc/{}/environ", process));
    const std::string mark = fmt::format("{}{}=", '\0', settings_.start_variable);
    return environment.ok() && ('\0' + *environment).find(mark) == std::string::npos;
  }

  // Waits for one tick, or until a process ends.
  void wait() {
    std::vector<Process*> living;
    for (const Watched& each : watched_) {
      if (each.process != nullptr && !each.ended) living.push_back(each.process.get());
    }
    if (!living.empty()) {
      env_->processes().wait_any_ended(living, settings_.mind.tick_ms);
    } else if (writer_.left() > 0) {
      writer_.wait_until_done(settings_.mind.tick_ms);
    } else if (unwritten_.empty()) {
      env_->sleep_us(1'000 * settings_.mind.tick_ms);
    }
  }

  // Returns whether everything is written, or the last rank ended so long ago that the guard no longer waits
  // for it: mpirun, and the launcher behind it, wait for the guard meanwhile.
  bool has_written() {
    const std::int64_t now_ns = env_->monotonic_ns();
    if (!mind_.nobody_left()) nobody_since_ns_ = 0;
    if (mind_.nobody_left() && nobody_since_ns_ == 0) nobody_since_ns_ = now_ns;
    const bool waited =
        nobody_since_ns_ != 0 && now_ns - nobody_since_ns_ > settings_.write_patience_ms * 1'000'000;
    return unwritten_.empty() && (writer_.left() == 0 || waited);
  }

  void say_what_is_not_written() {
    const std::size_t left = writer_.left();
    if (left == 0) return;
    say(fmt::format(
        "host {}: {} of the reports and flight records about ranks that ended or hung {} not "
        "written: the file system of the run has not responded for {:.1f} s",
        host_, left, left == 1 ? "is" : "are", static_cast<double>(settings_.write_patience_ms) / 1e3));
  }

  bool tick() {
    BoardHeader& header = board_->header();
    if (header.guard_process != env_->process_id() && !claim()) return false;
    const std::int64_t now_ns = env_->monotonic_ns();
    const bool late = mind_.begin_tick(now_ns, env_->wall_time_us());
    header.guard_tick_ns = now_ns;
    look_at_processes();
    tell_run();
    begin_network();
    if (network_ != nullptr) {
      network_->tick(now_ns, late);
      act(GuardMind::post_lost_spares(network_->take_lost_spares()));
      if (const std::string hosts = network_->take_never_heard(now_ns); !hosts.empty())
        say_never_heard(hosts);
      report_silent(network_->take_silent());
    }
    while (const int signal = signals_->poll()) {
      if (signal == SIGUSR1) take_flight("asked for by SIGUSR1");
    }
    find_hangs(now_ns);
    hand_to_writer();
    return true;
  }

  void tell_run() {
    if (settings_.on_run == nullptr) return;
    const std::string directory = read_run_directory(board_->header());
    if (!directory.empty()) std::exchange(settings_.on_run, nullptr)(directory);
  }

  void report_silent(const std::optional<std::vector<std::string>>& hosts) {
    if (!hosts.has_value() || settings_.on_silent == nullptr) return;
    will_write(GuardWriter::Kind::report, [tell = settings_.on_silent, names = *hosts] { tell(names); });
  }

  void look_at_processes() {
    for (std::uint32_t index = 0; index < board_->slots(); ++index) {
      SlotLook look = {.slot = read_slot(board_->slot(index))};
      Watched& watched = watched_[index];
      const bool is_new = look.slot.identity() != watched.identity;
      if (is_new || watched.not_watched) meet(watched, look.slot);
      const bool counts = !watched.not_watched && !watched.foreign;
      if (!counts) look = {};  // the mind sees an empty slot, with no process alive or dead
      const bool lived = watched.identity.id != 0 && !watched.ended && counts;
      if (lived) {
        if (mind_.wants_work(index, look.slot)) look.work = work_of(watched.identity.id);
        watched.ended = watched.process == nullptr || watched.process->wait_ended(0);
        if (watched.ended) {
          // It may have written after the look above that it leaves by itself, which is no death.
          const SlotView last = read_slot(board_->slot(index));
          if (last.identity() == watched.identity) look.slot = last;
          if (watched.process != nullptr) look.end = watched.process->observed_end();
        }
      }
      look.ended = watched.ended;
      mind_.look_at(index, look);
      if (lived) board_->slot(index).life_ns = mind_.life_ns(index);
      if (lived && watched.ended && network_ != nullptr) network_->ended(look.slot);
    }
    const std::vector<SlotProcess> processes =
        mind_.wants_processes() ? all_processes() : std::vector<SlotProcess>();
    act(mind_.end_look(processes, network_ != nullptr && network_->has_peers()));
  }

  void find_hangs(std::int64_t now_ns) {
    HostEvidence evidence;
    for (std::uint32_t index = 0; index < board_->slots(); ++index)
      evidence.slots.push_back(read_slot(board_->slot(index)));
    if (network_ != nullptr) evidence.leaves_because_of = network_->leaves_because_of(now_ns);
    if (network_ != nullptr && mind_.wants_distant(evidence))
      evidence.distant = network_->distant_ranks(now_ns);
    if (mind_.wants_processes(evidence)) evidence.processes = all_processes();
    act(mind_.find_hangs(evidence));
  }

  void act(const GuardActions& actions) {
    for (const GuardAction& action : actions) {
      switch (action.kind) {
        case GuardAction::Kind::take_flight:
          take_flight(action.text);
          break;
        case GuardAction::Kind::post_hang:
          write_notice(board_->header().hangs, action.rank, action.text);
          break;
        case GuardAction::Kind::post_lost_spares:
          write_notice(board_->header().lost_spares, action.rank, action.text);
          break;
        case GuardAction::Kind::kill:
          if (Process* const process = watched_[action.slot].process.get(); process != nullptr)
            static_cast<void>(process->signal(SIGKILL).ok());
          break;
        case GuardAction::Kind::say:
          say(action.text);
          break;
        case GuardAction::Kind::judge_kernel:
          judge_kernel(action);
          break;
        case GuardAction::Kind::report:
          if (settings_.on_hang != nullptr)
            will_write(GuardWriter::Kind::report,
                       [tell = settings_.on_hang, action] { tell(action.rank, action.text); });
          break;
        case GuardAction::Kind::report_end:
          if (settings_.on_end != nullptr)
            will_write(
                GuardWriter::Kind::report,
                [tell = settings_.on_end, death = RankDeath{.rank = action.rank,
                                                            .process = watched_[action.slot].identity.id,
                                                            .cause = action.text,
                                                            .step = action.step}] { tell(death); });
          break;
      }
    }
  }

  void judge_kernel(const GuardAction& action) {
    board_->slot(action.slot).kernel_end = static_cast<std::uint32_t>(action.fault.how);
    if (settings_.on_kernel_fault == nullptr || !action.fault.is_valid()) return;
    will_write(GuardWriter::Kind::report,
               [tell = settings_.on_kernel_fault, directory = read_run_directory(board_->header()),
                fault = action.fault] { tell(directory, fault); });
  }

  std::vector<SlotProcess> all_processes() const {
    std::vector<SlotProcess> processes;
    for (const Watched& each : watched_) processes.push_back(process_of(each));
    return processes;
  }

  SlotProcess process_of(const Watched& watched) const {
    constexpr char not_known = '?';
    if (watched.not_watched) return {.state = not_known};
    if (watched.process == nullptr || watched.ended) return {};
    const Result<std::optional<ProcessFacts>> found = env_->processes().look(watched.identity.id);
    if (!found.ok()) return {.state = not_known};
    if (!found->has_value()) return {};
    return {.state = (*found)->state, .resident_bytes = (*found)->resident_bytes};
  }

  std::optional<ProcessWork> work_of(std::int64_t process) const {
    const std::optional<ProcessFacts> facts = env_->processes().facts(process);
    if (!facts.has_value()) return {};
    return ProcessWork{.minor_faults = facts->minor_faults,
                       .major_faults = facts->major_faults,
                       .resident_bytes = facts->resident_bytes,
                       .io_bytes = io_bytes_of(process),
                       .stopped = facts->state == 'T'};
  }

  // Returns the number of bytes read from and written to anything, and read from disks for pages of files. 0
  // where the kernel does not report it.
  std::uint64_t io_bytes_of(std::int64_t process) const {
    const Result<std::string> text = env_->read_text(fmt::format("/proc/{}/io", process));
    if (!text.ok()) return 0;
    std::uint64_t sum = 0;
    for (const std::string_view name : {"rchar: ", "wchar: ", "\nread_bytes: "}) {
      const std::size_t at = text->find(name);
      std::uint64_t bytes = 0;
      if (at == std::string::npos) continue;
      std::from_chars(text->data() + at + name.size(), text->data() + text->size(), bytes);
      sum += bytes;
    }
    return sum;
  }

  // Begins to watch the process of a slot. One that cannot be watched is tried again in every tick.
  void meet(Watched& watched, const SlotView& slot) {
    const bool reported = watched.not_watched && watched.identity.id == slot.process;
    watched = {.process = nullptr, .identity = slot.identity()};
    if (slot.process <= 0) return;
    Result<std::unique_ptr<Process>> process = slot.identity().open(env_->processes());
    const Result<std::optional<ProcessFacts>> facts = env_->processes().look(slot.process);
    if (facts.ok() && slot.identity().has_ended(*facts)) return;
    watched.foreign = facts.ok() && (*facts)->of_other_user;
    if (watched.foreign) return;
    watched.not_watched = !process.ok() || !facts.ok();
    if (!watched.not_watched) {
      watched.process = std::move(process).value();
    } else if (!reported) {
      say(fmt::format("rank {} (host {}) is not watched: {}; if it hangs or dies, this guard does not notice",
                      slot.launched_rank, host_, (process.ok() ? facts.error() : process.error()).message));
    }
  }

  static void say(const std::string& sentence) {
    write_to_console(stderr, fmt::format("holdfast guard: {}\n", sentence));
  }

  // Copies the flight records into memory; the files follow. Records that exceed `max_unwritten` are left out.
  void take_flight(const std::string& reason) {
    const std::int64_t wall_us = env_->wall_time_us();
    for (std::uint32_t index = 0; index < board_->slots(); ++index) {
      if (watched_[index].identity.id == 0 || unwritten_.size() + writer_.left() >= max_unwritten) continue;
      FlightRecord record =
          take_flight_record(*env_, *board_, index, process_of(watched_[index]).state, reason);
      record.wall_time_us = wall_us;
      will_write(GuardWriter::Kind::flight_record,
                 [env = env_, directory = read_run_directory(board_->header()), said = said_no_records_,
                  record = std::move(record)] { write_record(*env, directory, record, *said); });
    }
  }

  // Runs on the writer's thread. Without a run directory there is no place where the file could be found. The
  // guard does not make it: a start that was refused leaves none.
  static void write_record(Env& env, const std::string& directory, const FlightRecord& record, bool& said) {
    const Result<FileStatus> there = directory.empty() ? FileStatus{} : env.status(directory);
    if (there.ok() && !there->exists) return;
    const Result<void> written = write_flight_record(env, directory + "/flight", record);
    if (!written.ok() && !std::exchange(said, true)) say(written.error().message);
  }

  void will_write(GuardWriter::Kind kind, std::function<void()> work) {
    unwritten_.push_back({.kind = kind, .work = std::move(work)});
  }

  // Called at the end of a tick: other hosts hear of a death before it is written.
  void hand_to_writer() {
    for (Unwritten& each : std::exchange(unwritten_, {})) writer_.add(each.kind, std::move(each.work));
  }

  struct Unwritten {
    GuardWriter::Kind kind = GuardWriter::Kind::report;
    std::function<void()> work = {};
  };

  Env* env_;
  GuardSettings settings_;
  std::unique_ptr<Board> board_;
  SignalWatcher* signals_;
  std::unique_ptr<GuardNetwork> network_;  // null: no other hosts are reported yet, or there is no network
  bool network_failed_ = false;
  std::string host_;
  std::vector<Watched> watched_;  // by slot
  GuardMind mind_;
  GuardWriter writer_;
  std::vector<Unwritten> unwritten_;  // of this tick
  std::int64_t nobody_since_ns_ = 0;  // since when no rank is left; 0: there are some
  // True if the writer's thread has said that it cannot write.
  std::shared_ptr<bool> said_no_records_ = std::make_shared<bool>(false);
};

}  // namespace

Result<void> run_guard(Env& env, const GuardSettings& settings) {
  HF_TRY(std::unique_ptr<Board> board, Board::open(env, settings.board));
  // Signals that end a terminal session or a job's ranks do not end the guard: it ends with the last of them.
  HF_TRY(const std::unique_ptr<SignalWatcher> signals,
         SignalWatcher::watch({SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGHUP, SIGPIPE}));
  Guard(env, settings, std::move(board), *signals).run();
  return {};
}

}  // namespace holdfast::watchdog
