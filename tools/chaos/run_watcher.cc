#include "tools/chaos/run_watcher.h"

#include <algorithm>

#include "runtime/core/json.h"
#include "runtime/core/record.h"
#include "runtime/os/fault_point.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/log_reader.h"

namespace holdfast::chaos {

std::vector<std::string> starts_of_run(Env& env, const std::string& directory) {
  const std::string launch = RunPaths{directory}.launch();
  const Result<std::vector<std::string>> names = env.list(launch);
  std::vector<std::string> starts;
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const Result<FileStatus> status = env.status(launch + "/" + name);
    if (status.ok() && status->directory) starts.push_back(name);
  }
  return starts;
}

std::string text_of_file(Env& env, const std::string& path, std::uint64_t begin) {
  const Result<FileStatus> status = env.status(path);
  if (!status.ok() || status->bytes <= begin) return "";
  const Result<std::unique_ptr<File>> file = env.open(path, OpenMode::read);
  if (!file.ok()) return "";
  std::string text(status->bytes - begin, '\0');
  if (!(*file)->read_at(begin, std::as_writable_bytes(std::span(text))).ok()) return "";
  return text;
}

std::string text_of_log(Env& env, const RunPaths& paths, std::uint64_t begin) {
  const Result<LogReader> log = LogReader::open(env, paths);
  if (!log.ok() || log->bytes() <= begin) return "";
  const Result<std::string> text = log->read(begin, log->bytes() - begin);
  return text.ok() ? *text : "";
}

std::vector<std::string> LineFollower::take_lines() {
  std::vector<std::string> lines;
  const std::string text = text_from_(read_bytes_);
  read_bytes_ += text.size();
  rest_ += text;
  std::size_t begin = 0;
  for (std::size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n', begin)) {
    lines.push_back(rest_.substr(begin, end - begin));
    begin = end + 1;
  }
  rest_.erase(0, begin);
  return lines;
}

void RunWatcher::look(std::int64_t launcher) {
  launcher_ = launcher;
  for (const std::string& line : log_.take_lines()) read_line(line);
  find_ranks();
  for (RankProcess& rank : ranks_) rank.ended = rank.ended || rank.process->wait_ended(0);
}

void RunWatcher::read_line(const std::string& line) {
  const Json event = Json::parse_any(line);
  const std::string_view kind = event_kind(event);
  if (kind.empty()) return;
  finished_ = kind == FinishEvent::kind;
  if (kind == RecoveryEvent::kind) ++recoveries_seen_;
  const std::optional<std::uint64_t> step = event_step(event);
  if (kind != StepEvent::kind || !step.has_value()) return;
  step_ = *step;
  ++steps_seen_;
}

// Finds the ranks of the current start. There is one start at a time; its directory is removed with it. This
// search costs more than all other work of the watcher.
void RunWatcher::find_ranks() {
  constexpr std::int64_t every_ns = 10'000'000;
  const std::int64_t now_ns = env_->monotonic_ns();
  if (now_ns < find_ns_) return;
  find_ns_ = now_ns + every_ns;
  const std::vector<std::string> names = starts_of_run(*env_, paths_.directory);
  const std::string name = names.empty() ? "" : names.front();
  if (name != start_) {
    ranks_.clear();
    board_.reset();
    start_ = name;
    steps_before_ = steps_seen_;  // the log was read before: what the dead had written is in it
    verdicts_before_ = verdicts_.size();
    if (!name.empty()) starts_.push_back(name);
  }
  if (name.empty()) return;
  for (const LaunchedRank& reported : read_launched_ranks(*env_, paths_.launch() + "/" + name)) {
    if (std::ranges::find(ranks_, reported.rank, &RankProcess::rank) != ranks_.end()) continue;
    rank_of_process_[{reported.host, reported.process}] = reported.rank;
    if (!is_here(*env_, reported)) continue;  // signals do not reach it
    Result<std::unique_ptr<Process>> process = reported.identity().open(env_->processes());
    if (!process.ok() || *process == nullptr) continue;  // gone already
    ranks_.push_back({.rank = reported.rank, .process = std::move(process).value()});
  }
  if (board_ == nullptr && !ranks_.empty()) find_board();
  find_verdicts();
}

// A start whose directory is being removed has said what it had to say.
void RunWatcher::find_verdicts() {
  const std::vector<ReportedHang> reported = read_reported_hangs(*env_, paths_.launch() + "/" + start_);
  if (reported.size() <= verdicts_.size() - verdicts_before_) return;
  verdicts_.resize(verdicts_before_);
  verdicts_.insert(verdicts_.end(), reported.begin(), reported.end());
}

// The one whose slots name these ranks.
void RunWatcher::find_board() {
  const std::string any = board_name("");
  const Result<std::vector<std::string>> names = env_->list_shared_memory();
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const bool is_board = name.size() == any.size() && name.starts_with(any.substr(0, any.rfind('-')));
    if (!is_board) continue;
    Result<std::unique_ptr<Board>> board = Board::open(*env_, name);
    if (!board.ok()) continue;
    for (std::uint32_t i = 0; i < (*board)->slots(); ++i) {
      const std::int64_t process = read_slot((*board)->slot(i)).process;
      const bool ours =
          std::ranges::any_of(ranks_, [&](const RankProcess& rank) { return rank.process->id() == process; });
      if (!ours) continue;
      board_ = std::move(board).value();
      return;
    }
  }
}

std::vector<SlotView> RunWatcher::living_slots() {
  std::vector<SlotView> slots;
  const std::vector<RankProcess*> ranks = living();
  for (std::uint32_t i = 0; board_ != nullptr && i < board_->slots(); ++i) {
    SlotView slot = read_slot(board_->slot(i));
    const bool lives = std::ranges::any_of(
        ranks, [&](const RankProcess* rank) { return rank->process->id() == slot.process; });
    if (lives) slots.push_back(std::move(slot));
  }
  return slots;
}

RunWatcher::RecoveryMark RunWatcher::recovery_mark() {
  RecoveryMark mark{.epoch = 0, .recoveries = recoveries_seen_};
  for (const SlotView& slot : living_slots()) mark.epoch = std::max(mark.epoch, slot.epoch);
  return mark;
}

RunWatcher::Recovery RunWatcher::recovery_since(const RecoveryMark& mark) {
  if (recoveries_seen_ > mark.recoveries) return Recovery::over;
  const bool begun = std::ranges::any_of(living_slots(), [&](const SlotView& slot) {
    return slot.phase == Phase::recovery || slot.epoch > mark.epoch;
  });
  return begun ? Recovery::under_way : Recovery::not_seen;
}

std::uint64_t RunWatcher::step_on_board() {
  std::uint64_t newest = 0;
  for (const SlotView& slot : living_slots()) newest = std::max(newest, slot.step);
  return newest;
}

std::vector<RankProcess*> RunWatcher::living() {
  std::vector<RankProcess*> found;
  for (RankProcess& rank : ranks_) {
    if (!rank.ended && !rank.process->wait_ended(0)) found.push_back(&rank);
  }
  std::ranges::sort(found, {}, [](const RankProcess* rank) { return rank->rank; });
  return found;
}

std::vector<TriggeredFault> RunWatcher::take_points() {
  std::vector<TriggeredFault> points;
  for (const std::string& line : points_log_.take_lines()) {
    const Result<FaultPointRecord> reported = record_from_text<FaultPointRecord>(line);
    if (!reported.ok() || reported->event != FaultPointRecord::kind) continue;
    const auto rank = rank_of_process_.find({reported->host, reported->process});
    points.push_back({.name = reported->point,
                      .action = reported->action,
                      .hit = reported->hit,
                      .rank = rank == rank_of_process_.end() ? -1 : rank->second,
                      .time_us = reported->time_us});
  }
  return points;
}

std::unique_ptr<Process> RunWatcher::mpirun() const {
  Processes& processes = env_->processes();
  for (const std::int64_t id : processes.list()) {
    const std::optional<ProcessFacts> facts = processes.facts(id);
    if (!facts.has_value() || facts->parent != launcher_ || facts->has_ended()) continue;
    Result<std::unique_ptr<Process>> process = processes.find(id);
    if (process.ok() && *process != nullptr) return std::move(process).value();
  }
  return nullptr;
}

}  // namespace holdfast::chaos
