#include "watchdog/guard.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <deque>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/core/processes.h"
#include "runtime/core/signals.h"
#include "watchdog/board.h"
#include "watchdog/detector.h"
#include "watchdog/flight_record.h"
#include "watchdog/guard_network.h"
#include "watchdog/signs_of_life.h"

namespace holdfast {
namespace {

constexpr std::int64_t silent_ns = 2'000'000'000;  // a rank that waits looks every some milliseconds
constexpr std::size_t most_pending = 256;
constexpr std::int64_t tell_for_ns = 500'000'000, distant_look_ns = 500'000'000;

struct Watched {
  std::unique_ptr<Process> process;  // null: nobody, or ended before it could be watched
  std::int64_t id = 0, started_ticks = 0;
  bool ended = false;
  std::int64_t anew_ns = 0;  // evidence from before counts no more
  SignsOfLife life = {};
  std::int64_t killed_ns = 0;
  std::uint64_t killed_bytes = 0;  // what it had in memory then
};

class Guard {
 public:
  Guard(Env& env, const GuardSettings& settings, std::unique_ptr<Board> board, SignalWatcher& signals)
      : env_(&env),
        settings_(settings),
        board_(std::move(board)),
        signals_(&signals),
        host_(env.host_name()),
        watched_(board_->slots()) {}

  void run() {
    if (!claim()) return;
    last_ns_ = env_->monotonic_ns();
    last_wall_us_ = env_->wall_time_us();
    Result<std::unique_ptr<GuardNetwork>> network = GuardNetwork::begin(*env_, *board_, settings_.board);
    if (network.ok()) network_ = std::move(network).value();
    look_at_processes();
    while (true) {
      if (may_leave()) {
        if (board_->closed()) return;  // by another one
        if (board_->close(*env_, settings_.board)) {
          HostTable::remove(*env_, settings_.board);
          end_daemons_that_are_cut_off();
          return;
        }
      }
      if (!nobody_left() || pending_.empty()) wait();
      if (!tick()) return;  // another guard has taken over
    }
  }

 private:
  // Whether this process is the guard of the board now; not when another one is.
  bool claim() {
    BoardHeader& header = board_->header();
    const std::int64_t own = env_->process_id();
    const std::optional<ProcessFacts> facts = env_->processes().facts(own);
    std::int64_t before = header.guard_process;
    while (before != own) {
      const std::optional<ProcessFacts> other = env_->processes().facts(before);
      if (before > 0 && other.has_value() && other->state != 'Z' &&
          other->started_ticks == header.guard_started_ticks)
        return false;
      if (header.guard_process.compare_exchange_strong(before, own)) break;
    }
    header.guard_started_ticks = facts.has_value() ? facts->started_ticks : 0;
    return true;
  }

  // At once: it holds the output streams of the rank that started it, and mpirun waits for their end. But a
  // death is told to other hosts some times, as their ranks wait for the proof.
  bool may_leave() const {
    return nobody_left() && pending_.empty() && env_->monotonic_ns() - told_since_ns_ > tell_for_ns;
  }

  void end_daemons_that_are_cut_off() {
    if (network_ == nullptr || !network_->is_cut_off()) return;
    for (std::uint32_t index = 0; index < board_->slots(); ++index) {
      const SlotView slot = read_slot(board_->slot(index));
      const SlotView parent = {.process = slot.parent, .started_ticks = slot.parent_started_ticks};
      constexpr std::int64_t init = 1;  // whom everybody has who lost a parent
      if (parent.process <= init) continue;
      // The handle first: if the facts are still those of the parent, the handle is the parent's.
      Result<std::unique_ptr<Process>> process = env_->processes().find(parent.process);
      if (!process.ok() || *process == nullptr || !lives(*env_, parent) || !is_daemon(parent.process))
        continue;
      static_cast<void>((*process)->signal(SIGKILL).ok());
    }
  }

  // mpirun itself has the variable, as the ranks have; and without a launcher nobody has it.
  bool is_daemon(std::int64_t process) {
    if (settings_.start_variable.empty() || env_->variable(settings_.start_variable).empty()) return false;
    const Result<std::string> environment = env_->read_text(fmt::format("/proc/{}/environ", process));
    const std::string mark = fmt::format("{}{}=", '\0', settings_.start_variable);
    return environment.ok() && ('\0' + *environment).find(mark) == std::string::npos;
  }

  // One tick, or until a process ends.
  void wait() {
    std::vector<Process*> living;
    for (const Watched& each : watched_) {
      if (each.process != nullptr && !each.ended) living.push_back(each.process.get());
    }
    if (living.empty()) {
      env_->sleep_us(1'000 * settings_.tick_ms);
    } else {
      env_->processes().wait_any_ended(living, settings_.tick_ms);
    }
  }

  bool tick() {
    BoardHeader& header = board_->header();
    if (header.guard_process != env_->process_id() && !claim()) return false;
    const std::int64_t now_ns = env_->monotonic_ns();
    const bool late = was_late(now_ns);
    if (late) begin_anew(now_ns, true);
    header.guard_tick_ns = now_ns;
    look_at_processes();
    if (network_ != nullptr) {
      network_->tick(now_ns, late);
      tell_lost_spares(network_->take_lost_spares());
    }
    while (const int signal = signals_->poll()) {
      if (signal == SIGUSR1) take_flight("asked for by SIGUSR1");
    }
    look_at_killed(now_ns);
    tell_of_storage(now_ns);
    if (anybody_may_hang(now_ns)) {
      judge(now_ns);
    } else {
      suspected_ = {};
    }
    write_one();
    return true;
  }

  // The machine slept, this process was stopped, or had no processor: then the ranks may have had none,
  // either. The clocks of a suspended machine differ in what they count.
  bool was_late(std::int64_t now_ns) {
    const std::int64_t wall_us = env_->wall_time_us();
    const std::int64_t passed_ms = (now_ns - last_ns_) / 1'000'000;
    const std::int64_t wall_passed_ms = (wall_us - last_wall_us_) / 1'000;
    last_ns_ = now_ns;
    last_wall_us_ = wall_us;
    const std::int64_t limit_ms = settings_.tick_ms + settings_.late_ms;
    return passed_ms > limit_ms || wall_passed_ms > limit_ms;
  }

  // Whoever is stopped has done nothing that would excuse it.
  void begin_anew(std::int64_t now_ns, bool stopped_ones_too) {
    anew_ns_ = now_ns;
    for (Watched& each : watched_) {
      if (stopped_ones_too || state_of(each) != 'T') each.anew_ns = now_ns;
    }
    suspected_ = {};
  }

  char state_of(const Watched& watched) const {
    if (watched.process == nullptr || watched.ended) return 'X';
    const std::optional<ProcessFacts> facts = env_->processes().facts(watched.id);
    return facts.has_value() ? facts->state : 'X';
  }

  void look_at_processes() {
    std::string dead;
    std::vector<WatchedRank> lost_spares;
    for (std::uint32_t index = 0; index < board_->slots(); ++index) {
      const SlotView slot = read_slot(board_->slot(index));
      Watched& watched = watched_[index];
      if (slot.process != watched.id || slot.started_ticks != watched.started_ticks) meet(watched, slot);
      if (watched.id == 0 || watched.ended) continue;
      look_for_life(watched, slot, board_->slot(index));
      if (watched.process != nullptr && !watched.process->wait_ended(0)) continue;
      watched.ended = true;
      if (network_ != nullptr) network_->ended(slot);
      if (slot.left) continue;
      if (slot.phase == Phase::spare) lost_spares.push_back({.slot = slot, .host = host_});
      if (network_ != nullptr && network_->has_peers()) told_since_ns_ = env_->monotonic_ns();
      if (watched.killed_ns != 0) continue;
      dead += fmt::format("{}rank {}", dead.empty() ? "" : ", ", slot.launched_rank);
    }
    tell_lost_spares(lost_spares);
    if (!dead.empty()) take_flight(fmt::format("{} (host {}) died", dead, host_));
    if (count_ended() != ended_) {  // those that are left have something to do that nobody foresaw
      ended_ = count_ended();
      begin_anew(env_->monotonic_ns(), false);
    }
  }

  void look_for_life(Watched& watched, const SlotView& slot, BoardSlot& told) {
    watched.life.look_at_board(slot, last_ns_);
    if (watched.life.wants_process_look(slot, last_ns_)) {
      const std::optional<ProcessFacts> facts = env_->processes().facts(watched.id);
      if (facts.has_value()) {
        watched.life.look_at_process({.minor_faults = facts->minor_faults,
                                      .major_faults = facts->major_faults,
                                      .resident_bytes = facts->resident_bytes,
                                      .io_bytes = io_bytes_of(watched.id)},
                                     last_ns_);
      }
    }
    told.life_ns = watched.life.last_ns();
  }

  // What is read from and written to anything, and what disks gave for pages of files. 0 where the kernel
  // does not tell.
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

  // The others exchange nothing with a spare, so they would miss it when they need it.
  void tell_lost_spares(std::span<const WatchedRank> spares) {
    if (spares.empty()) return;
    std::string names;
    for (const WatchedRank& spare : spares) {
      names +=
          fmt::format("{}rank {} (host {})", names.empty() ? "" : ", ", spare.slot.launched_rank, spare.host);
    }
    write_notice(board_->header().lost_spares, spares.front().slot.launched_rank, names);
  }

  // The handle first: if the facts are still those of the slot, the handle is that process's.
  void meet(Watched& watched, const SlotView& slot) {
    watched = {.process = nullptr,
               .id = slot.process,
               .started_ticks = slot.started_ticks,
               .ended = false,
               .anew_ns = 0,
               .life = {},
               .killed_ns = 0,
               .killed_bytes = 0};
    if (slot.process <= 0) return;
    Result<std::unique_ptr<Process>> process = env_->processes().find(slot.process);
    if (process.ok() && *process != nullptr && lives(*env_, slot)) {
      watched.process = std::move(process).value();
    }
  }

  std::size_t count_ended() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(watched_, [](const Watched& each) { return each.ended; }));
  }
  bool nobody_left() const {
    return std::ranges::all_of(watched_, [](const Watched& each) { return each.id == 0 || each.ended; });
  }

  WatchedRank evidence(std::uint32_t index) {
    return {.slot = read_slot(board_->slot(index)),
            .host = host_,
            .own_host = true,
            .ended = watched_[index].ended,
            .anew_ns = watched_[index].anew_ns};
  }

  // Of other hosts, as far as their guards are heard.
  std::vector<WatchedRank> distant_ranks(std::int64_t now_ns) const {
    if (network_ == nullptr) return {};
    std::vector<WatchedRank> ranks = network_->distant_ranks(now_ns);
    for (WatchedRank& rank : ranks) rank.anew_ns = anew_ns_;
    return ranks;
  }

  // Cheap, for the ticks in which there is nothing to see.
  bool anybody_may_hang(std::int64_t now_ns) {
    for (std::uint32_t index = 0; index < board_->slots(); ++index) {
      if (watched_[index].id == 0 || watched_[index].ended) continue;
      if (may_hang(evidence(index), now_ns)) return true;
    }
    if (now_ns - distant_look_ns_ > distant_look_ns) {
      distant_look_ns_ = now_ns;
      distant_may_hang_ = std::ranges::any_of(
          distant_ranks(now_ns), [&](const WatchedRank& rank) { return may_hang(rank, now_ns); });
    }
    return distant_may_hang_;
  }

  // Once, until nobody waits so any more.
  void tell_of_storage(std::int64_t now_ns) {
    std::vector<WatchedRank> ranks;
    for (std::uint32_t index = 0; index < board_->slots(); ++index) {
      if (watched_[index].id != 0 && board_->slot(index).storage_begun_ns != 0)
        ranks.push_back(evidence(index));
    }
    const std::string sentence =
        ranks.empty() ? "" : storage_sentence(ranks, now_ns, settings_.storage_quiet_ms * 1'000'000);
    if (!sentence.empty() && !told_of_storage_) say(sentence);
    told_of_storage_ = !ranks.empty() && (told_of_storage_ || !sentence.empty());
  }

  void judge(std::int64_t now_ns) {
    std::vector<WatchedRank> ranks;
    std::vector<std::uint32_t> slots;
    for (std::uint32_t index = 0; index < board_->slots(); ++index) {
      const Watched& watched = watched_[index];
      if (watched.id == 0) continue;
      if (watched.killed_ns != 0 && !watched.ended) return;  // one after the other
      ranks.push_back(evidence(index));
      ranks.back().stopped = state_of(watched) == 'T';
      slots.push_back(index);
    }
    std::ranges::move(distant_ranks(now_ns), std::back_inserter(ranks));
    const HangVerdict verdict = find_culprit(ranks, now_ns, silent_ns);
    std::vector<HangVerdict::Another> culprits = verdict.others;
    culprits.insert(culprits.begin(), {.index = verdict.index, .sentence = verdict.sentence});
    Suspicion suspicion = {.kind = verdict.kind, .indices = {}};
    for (const HangVerdict::Another& each : culprits) suspicion.indices.push_back(each.index);
    const bool again = suspicion == suspected_;  // a single look may have caught a slot between two moments
    suspected_ = std::move(suspicion);
    if (verdict.kind == HangVerdict::Kind::none || !again) return;
    if (verdict.kind == HangVerdict::Kind::no_sink) return end_all(verdict.sentence, now_ns);
    std::erase_if(culprits, [&](const HangVerdict::Another& each) { return !ranks[each.index].own_host; });
    for (HangVerdict::Another& each : culprits) each.index = slots[each.index];
    end(culprits, now_ns);
  }

  // What all were at is one record, and told before any of them has gone. `index`: of the slot.
  void end(std::span<const HangVerdict::Another> culprits, std::int64_t now_ns) {
    std::string sentences;
    for (const HangVerdict::Another& each : culprits)
      sentences += fmt::format("{}{}", sentences.empty() ? "" : "; ", each.sentence);
    if (!culprits.empty()) take_flight(sentences);
    for (const HangVerdict::Another& each : culprits) {
      const auto index = static_cast<std::uint32_t>(each.index);
      write_notice(board_->header().verdicts, read_slot(board_->slot(index)).launched_rank, each.sentence);
    }
    for (const HangVerdict::Another& each : culprits) {
      kill(watched_[each.index], now_ns);
      say(each.sentence + "; it is ended");
      if (settings_.on_verdict == nullptr) continue;
      const auto index = static_cast<std::uint32_t>(each.index);
      settings_.on_verdict(read_slot(board_->slot(index)).launched_rank, each.sentence);
    }
  }

  // Level 2: nobody of this host goes on; the launcher starts the run again.
  void end_all(const std::string& sentence, std::int64_t now_ns) {
    take_flight(sentence);
    write_notice(board_->header().verdicts, -1, sentence);
    for (Watched& each : watched_) {
      if (each.id != 0 && !each.ended) kill(each, now_ns);
    }
    say(sentence + "; all ranks of this host are ended");
    if (settings_.on_verdict != nullptr) settings_.on_verdict(-1, sentence);
  }

  void kill(Watched& watched, std::int64_t now_ns) {
    if (watched.killed_ns == 0) {
      watched.killed_ns = now_ns;
      watched.killed_bytes = resident_bytes_of(watched.id);
    }
    if (watched.process != nullptr) static_cast<void>(watched.process->signal(SIGKILL).ok());
  }

  std::uint64_t resident_bytes_of(std::int64_t process) const {
    const std::optional<ProcessFacts> facts = env_->processes().facts(process);
    return facts.has_value() ? facts->resident_bytes : 0;
  }

  // A process that the system holds, for a device or a dead file system, keeps its peers waiting.
  void look_at_killed(std::int64_t now_ns) {
    for (Watched& each : watched_) {
      if (each.killed_ns == 0 || each.ended || said_that_one_stays_) continue;
      const std::int64_t least_ns = settings_.kill_patience_ms * 1'000'000;
      if (now_ns - each.killed_ns < least_ns) continue;
      if (now_ns - each.killed_ns <
          death_patience_ns(least_ns, each.killed_bytes, resident_bytes_of(each.id)))
        continue;
      said_that_one_stays_ = true;
      end_all(
          fmt::format("process {} (host {}) does not die of SIGKILL: the system holds it", each.id, host_),
          now_ns);
      return;
    }
  }

  // One write; whoever read it may have gone, so no exception and no signal.
  static void say(const std::string& sentence) {
    std::fputs(fmt::format("holdfast guard: {}\n", sentence).c_str(), stderr);
  }

  // A copy in memory; the files follow tick by tick. More than the disk takes is left out.
  void take_flight(const std::string& reason) {
    const std::int64_t wall_us = env_->wall_time_us();
    for (std::uint32_t index = 0; index < board_->slots(); ++index) {
      if (watched_[index].id == 0 || pending_.size() >= most_pending) continue;
      pending_.push_back(take_flight_record(*env_, *board_, index, state_of(watched_[index]), reason));
      pending_.back().wall_time_us = wall_us;
    }
  }

  // One file a tick: a slow disk must not keep the guard from looking.
  void write_one() {
    const std::string directory = read_run_directory(board_->header());
    if (directory.empty()) pending_.clear();  // nobody could find them
    if (pending_.empty()) return;
    const Result<void> written = write_flight_record(*env_, directory + "/flight", pending_.front());
    if (!written.ok() && !said_that_it_cannot_write_) {
      said_that_it_cannot_write_ = true;
      say(written.error().message);
    }
    pending_.pop_front();
  }

  struct Suspicion {
    HangVerdict::Kind kind = HangVerdict::Kind::none;
    std::vector<std::size_t> indices = {};  // of the culprits
    bool operator==(const Suspicion&) const = default;
  };

  Env* env_;
  GuardSettings settings_;
  std::unique_ptr<Board> board_;
  SignalWatcher* signals_;
  std::unique_ptr<GuardNetwork> network_;  // null: this host has none
  std::string host_;
  std::vector<Watched> watched_;  // by slot
  std::size_t ended_ = 0;
  std::deque<FlightRecord> pending_;
  Suspicion suspected_;
  std::int64_t last_ns_ = 0, last_wall_us_ = 0;
  std::int64_t distant_look_ns_ = 0;
  bool distant_may_hang_ = false;
  std::int64_t anew_ns_ = 0;  // newest Watched::anew_ns of all
  std::int64_t told_since_ns_ = std::numeric_limits<std::int64_t>::min() / 2;  // the newest death
  bool told_of_storage_ = false, said_that_one_stays_ = false, said_that_it_cannot_write_ = false;
};

}  // namespace

Result<void> run_guard(Env& env, const GuardSettings& settings) {
  HF_TRY(std::unique_ptr<Board> board, Board::open(env, settings.board));
  // What ends a terminal or a job's ranks does not end it: it goes with the last of them.
  HF_TRY(const std::unique_ptr<SignalWatcher> signals,
         SignalWatcher::watch({SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGHUP, SIGPIPE}));
  Guard(env, settings, std::move(board), *signals).run();
  return {};
}

}  // namespace holdfast
