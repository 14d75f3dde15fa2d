#include "watchdog/rank_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "runtime/os/processes.h"

namespace holdfast::watchdog {
namespace {

constexpr std::int64_t look_ns = 100'000'000;
constexpr std::int64_t longest_gap_ns = 10'000'000'000;  // between two starts of a guard that does not stay
constexpr std::int64_t hung_guard_ns = 10'000'000'000, late_look_ns = 1'000'000'000;
constexpr int tries_to_begin = 20;

// Makes the stores until the end of the block visible together. A reader that sees one of the values also
// sees the odd version, because the stores in between release.
class Together {
 public:
  explicit Together(BoardSlot& slot) : slot_(&slot) {
    slot.version.store(slot.version.load(std::memory_order_relaxed) | 1U, std::memory_order_release);
  }
  ~Together() {
    slot_->version.store(slot_->version.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

 private:
  BoardSlot* slot_;
};

template <typename T, typename Value>
void put(std::atomic<T>& word, Value value) {
  word.store(static_cast<T>(value), std::memory_order_release);
}

}  // namespace

Result<std::unique_ptr<RankWatch>> RankWatch::begin(Env& env, const Setup& setup) {
  for (int left = tries_to_begin;; --left) {
    HF_TRY(std::unique_ptr<Board> board,
           Board::open_or_create(env, setup.board, BoardSize{.slots = setup.slots}));
    const Result<std::uint32_t> slot = board->take_slot(env, setup.launched_rank);
    if (!slot.ok() && left > 0 && board->closed()) continue;  // its guard left at this moment: another one
    if (!slot.ok()) return slot.error();
    return std::unique_ptr<RankWatch>(new RankWatch(env, setup, std::move(board), *slot));
  }
}

RankWatch::RankWatch(Env& env, Setup setup, std::unique_ptr<Board> board, std::uint32_t slot)
    : env_(&env),
      setup_(std::move(setup)),
      board_(std::move(board)),
      slot_(slot),
      deadlines_(setup_.limits),
      hangs_taken_(board_->header().hangs.count),
      spares_taken_(board_->header().lost_spares.count),
      left_taken_(board_->header().left.count),
      restart_gap_ns_(look_ns) {
  const std::int64_t now_ns = env_->monotonic_ns();
  begin_phase(Phase::start_up, 0, {}, now_ns);
  keep_guard(now_ns);
}

RankWatch::~RankWatch() {
  slot().left = 1;
}

void RankWatch::run_directory(const std::string& directory) {
  write_run_directory(board_->header(), directory);
}

void RankWatch::begin_epoch(const MembershipEpoch& epoch) {
  deadlines_.rescale(epoch.work_times);
  begun_in_epoch_ = {};
  BoardSlot& slot = this->slot();
  const Together together(slot);
  put(slot.members, epoch.members);
  put(slot.epoch, epoch.number);
}

void RankWatch::enter(Phase phase, std::uint64_t step) {
  const std::int64_t now_ns = env_->monotonic_ns();
  learn(now_ns);
  begin_phase(phase, step, {}, now_ns);
  keep_guard(now_ns);
}

void RankWatch::enter(Phase phase, std::uint64_t step, std::int64_t deadline_ms, std::int64_t ceiling_ms) {
  const std::int64_t now_ns = env_->monotonic_ns();
  learn(now_ns);
  deadline_ms = std::max<std::int64_t>(deadline_ms, 1);
  ceiling_ms = std::max(deadline_ms, ceiling_ms);
  begin_phase(phase, step, {deadline_ms * 1'000'000, ceiling_ms * 1'000'000}, now_ns);
  keep_guard(now_ns);
}

void RankWatch::mark() {
  const std::int64_t now_ns = env_->monotonic_ns();
  learn(now_ns);
  begin_phase(present_.phase, slot().step.load(std::memory_order_relaxed), present_.fixed, now_ns);
  keep_guard(now_ns);
}

void RankWatch::learn(std::int64_t now_ns) {
  if (present_.phase != Phase::spare)
    deadlines_.took(present_.phase, present_.kind, now_ns - present_.begun_ns);
}

// A spare waits as long as the others compute. What it may not do is to be silent.
std::int64_t RankWatch::deadline() const {
  if (present_.fixed.deadline_ns > 0) return present_.fixed.deadline_ns;
  return present_.phase == Phase::spare ? deadlines_.limits().floor_ns
                                        : deadlines_.of(present_.phase, present_.kind);
}

WorkKind RankWatch::next_kind(Phase phase) {
  const bool was_begun = std::exchange(begun_in_epoch_[static_cast<std::size_t>(phase)], true);
  const bool has_kinds = phase == Phase::step || phase == Phase::evaluation;
  return has_kinds && !was_begun ? WorkKind::first : WorkKind::usual;
}

void RankWatch::begin_phase(Phase phase, std::uint64_t step, const FixedLimits& fixed, std::int64_t now_ns) {
  present_ = {.phase = phase, .kind = next_kind(phase), .begun_ns = now_ns, .fixed = fixed};
  wait_since_ns_ = 0;
  BoardSlot& slot = this->slot();
  const Together together(slot);
  put(slot.phase, phase);
  put(slot.step, step);
  put(slot.begun_ns, now_ns);
  put_deadline();
  put(slot.wait_begun_ns, 0);
  put(slot.storage_begun_ns, 0);
  put(slot.heartbeat_ns, now_ns);
}

void RankWatch::put_deadline() {
  BoardSlot& slot = this->slot();
  put(slot.kind, present_.kind);
  put(slot.deadline_ns, deadline());
  put(slot.ceiling_ns,
      present_.fixed.ceiling_ns > 0 ? present_.fixed.ceiling_ns : deadlines_.limits().ceiling_ns);
  put(slot.floor_ns, deadlines_.limits().floor_ns);
  put(slot.median_ns, present_.phase == Phase::spare ? 0 : deadlines_.usual(present_.phase, present_.kind));
}

// The first of an epoch stays one: it is slower for that.
void RankWatch::beside_save() {
  if (present_.kind != WorkKind::usual) return;
  present_.kind = WorkKind::beside_save;
  const Together together(slot());
  put_deadline();
}

// The end of a kernel is one store: the first word of the text.
void RankWatch::runs_plugin(std::string_view kernel) {
  const std::span words(slot().plugin);
  store_text(kernel.empty() ? words.first(1) : words, kernel);
}

KernelFaults RankWatch::kernel_faults_of(std::span<const int> launched_ranks, std::int64_t patience_ms) {
  constexpr std::int64_t look_us = 2'000;
  const std::int64_t until_ns = env_->monotonic_ns() + patience_ms * 1'000'000;
  KernelFaults faults;
  for (std::uint32_t index = 0; index < board_->slots(); ++index) {
    SlotView slot = read_slot(board_->slot(index));
    const bool is_asked = std::ranges::find(launched_ranks, slot.launched_rank) != launched_ranks.end();
    if (index == slot_ || !is_asked || slot.left || slot.plugin.empty()) continue;
    while (slot.kernel_end == KernelEnd::unknown && env_->monotonic_ns() < until_ns) {
      env_->sleep_us(look_us);
      slot = read_slot(board_->slot(index));
    }
    const KernelFault fault = fault_of(slot, slot.kernel_end, env_->host_name());
    if (fault.is_valid()) faults.push_back(fault);
  }
  return faults;
}

void RankWatch::waits_for_storage(const char* what) {
  BoardSlot& slot = this->slot();
  const std::int64_t now_ns = env_->monotonic_ns();
  const Together together(slot);
  store_text(slot.storage_what, what);
  put(slot.ceiling_ns, deadlines_.limits().ceiling_ns);
  put(slot.storage_begun_ns, std::max<std::int64_t>(now_ns, 1));
}

// Lets the limits of the phase begin anew. The time that is learned of it still counts from its own begin.
void RankWatch::renew_limits() {
  BoardSlot& slot = this->slot();
  const std::int64_t now_ns = std::max<std::int64_t>(env_->monotonic_ns(), 1);
  const Together together(slot);
  put(slot.begun_ns, now_ns);
  if (slot.storage_begun_ns.load(std::memory_order_relaxed) != 0) put(slot.storage_begun_ns, now_ns);
  put(slot.heartbeat_ns, now_ns);
}

void RankWatch::storage_answers() {
  BoardSlot& slot = this->slot();
  const Together together(slot);
  put(slot.storage_begun_ns, 0);
  put(slot.heartbeat_ns, env_->monotonic_ns());
  put_deadline();
}

void RankWatch::on_wait(std::int64_t since_ns, std::int64_t now_ns, const Awaited& awaited) {
  BoardSlot& slot = this->slot();
  since_ns = std::max<std::int64_t>(since_ns, 1);
  if (counts_waits_ && awaited.peer >= 0) count_wait(awaited.peer, now_ns - std::max(since_ns, counted_ns_));
  counted_ns_ = now_ns;
  const bool same = since_ns == wait_since_ns_ && awaited.operation == awaited_.operation &&
                    awaited.peer == awaited_.peer && awaited.number == awaited_.number;
  if (same) {
    put(slot.heartbeat_ns, now_ns);
  } else {
    wait_since_ns_ = since_ns;
    awaited_ = awaited;
    const Together together(slot);
    put(slot.wait_begun_ns, since_ns);
    put(slot.wait_peer, awaited.peer);
    put(slot.wait_number, awaited.number);
    store_text(slot.wait_operation, awaited.operation);
    put(slot.heartbeat_ns, now_ns);
  }
  keep_guard(now_ns);
}

void RankWatch::on_resume() {
  if (wait_since_ns_ == 0) return;
  wait_since_ns_ = 0;
  BoardSlot& slot = this->slot();
  const Together together(slot);
  put(slot.wait_begun_ns, 0);
  put(slot.heartbeat_ns, env_->monotonic_ns());
}

void RankWatch::count_wait(int peer, std::int64_t waited_ns) {
  auto found = std::ranges::find(waits_, peer, &PeerWait::peer);
  if (found == waits_.end()) {
    found = std::ranges::min_element(waits_, {}, &PeerWait::waited_ms);
    *found = {.peer = peer};
  }
  found->waited_ms += static_cast<float>(static_cast<double>(waited_ns) / 1e6);
}

PeerWaits RankWatch::take_waits() {
  PeerWaits longest;
  const auto longer = [](const PeerWait& one, const PeerWait& other) {
    return one.waited_ms > other.waited_ms;
  };
  std::ranges::partial_sort_copy(waits_, longest, longer);
  waits_.fill({});
  return longest;
}

void RankWatch::drains(std::uint64_t step, std::uint64_t bytes) {
  BoardSlot& slot = this->slot();
  put(slot.drain_step, step);
  put(slot.drain_bytes, bytes);
  moved(1);
  if (slot.drain_begun_ns.load(std::memory_order_relaxed) == 0)
    put(slot.drain_begun_ns, std::max<std::int64_t>(env_->monotonic_ns(), 1));
}

void RankWatch::drained() {
  put(slot().drain_begun_ns, 0);
}

std::span<Span> RankWatch::ring() {
  const std::span<Span> spans = board_->ring(slot_);
  put(slot().ring_spans, spans.size());
  return spans;
}

std::atomic<std::uint64_t>& RankWatch::ring_count() {
  return slot().spans_opened;
}

std::string RankWatch::take_hang() {
  return take(board_->header().hangs, hangs_taken_, "; ");
}

std::string RankWatch::take_lost_spares() {
  return take(board_->header().lost_spares, spares_taken_, ", ");
}

void RankWatch::leaves(std::string_view why) {
  write_notice(board_->header().left, setup_.launched_rank, why);
}

std::string RankWatch::take_why_left() {
  const std::vector<Notice> notices = read_notices(board_->header().left, left_taken_);
  if (notices.empty()) return {};
  left_taken_ = notices.back().number;
  return notices.back().sentence;
}

// Asked after every step, so nothing but the number is read where there is nothing new.
std::string RankWatch::take(const BoardNotices& notices, std::uint64_t& taken, std::string_view between) {
  if (notices.count.load(std::memory_order_acquire) <= taken) return {};
  std::string text;
  for (const Notice& notice : read_notices(notices, taken)) {
    taken = notice.number;
    text += fmt::format("{}{}", text.empty() ? "" : between, notice.sentence);
  }
  return text;
}

Board& RankWatch::board() {
  return *board_;
}

// A rank that finds no guard tries to become the one that starts it. Where there was one before, it looks
// once more first: another rank may be about to start it.
void RankWatch::keep_guard(std::int64_t now_ns) {
  if (now_ns < next_look_ns_ || setup_.guard.empty()) return;
  const bool looked_just_now = now_ns - next_look_ns_ < late_look_ns;
  next_look_ns_ = now_ns + look_ns;
  BoardHeader& header = board_->header();
  const std::int64_t process = header.guard_process;
  const Result<std::optional<ProcessFacts>> facts =
      process > 0 ? env_->processes().look(process) : std::optional<ProcessFacts>();
  if (!facts.ok()) return;  // it may be there
  // After the look: a guard writes its number first.
  const ProcessIdentity guard{.id = process, .started_ticks = header.guard_started_ticks};
  if (!guard.has_ended(*facts)) {
    if (now_ns - guard_started_ns_ > longest_gap_ns) restart_gap_ns_ = look_ns;
    // One that somebody stopped guards nobody, and neither does one that hangs itself: in a file system, or
    // because nobody reads what it says. After a pause of this rank the guard may have paused, too.
    const bool hangs = looked_just_now && now_ns - header.guard_tick_ns > hung_guard_ns;
    if ((*facts)->state == 'T') {
      signal_guard(guard, SIGCONT);
    } else if (hangs) {
      signal_guard(guard, SIGKILL);
    }
    return;
  }
  std::uint64_t generation = header.guard_generation;
  if (generation != seen_generation_) {
    seen_generation_ = generation;
    return;
  }
  if (header.guard_generation.compare_exchange_strong(generation, generation + 1)) start_guard(now_ns);
}

void RankWatch::signal_guard(const ProcessIdentity& identity, int number) {
  const Result<std::unique_ptr<Process>> guard = identity.open(env_->processes());
  if (guard.ok() && *guard != nullptr) static_cast<void>((*guard)->signal(number).ok());
}

void RankWatch::start_guard(std::int64_t now_ns) {
  BoardHeader& header = board_->header();
  header.guard_tick_ns = now_ns;  // it has its time from here on
  seen_generation_ = header.guard_generation;
  guard_started_ns_ = now_ns;
  next_look_ns_ = now_ns + restart_gap_ns_;
  restart_gap_ns_ = std::min(2 * restart_gap_ns_, longest_gap_ns);
  Result<std::unique_ptr<Process>> guard =
      env_->processes().start({.arguments = setup_.guard, .own_session = true, .orphan = true});
  if (!guard.ok() || *guard == nullptr) return;
  const ProcessIdentity identity = ProcessIdentity::of(env_->processes(), (*guard)->id());
  if (identity.started_ticks == 0) return;  // it has ended
  header.guard_started_ticks = identity.started_ticks;
  header.guard_process = identity.id;
}

}  // namespace holdfast::watchdog
