#include "runtime/run/claim.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::run {
namespace {

constexpr std::string_view host_id_word = "host_id ", epoch_word = "epoch ", id_word = "claim ",
                           renewals_word = "renewals ";

std::uint64_t number_of(std::string_view text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Takes the value of a line that begins with `word`; the first one counts, as an older text may stand behind
// it for a moment.
bool take_value(std::string_view line, std::string_view word, std::string_view& value) {
  if (!line.starts_with(word) || !value.empty()) return false;
  value = line.substr(word.size());
  return true;
}

constexpr std::int64_t look_ms = 250;        // at the holder's record, while its lock is waited for
constexpr std::int64_t settle_us = 500'000;  // in which another that waited may have taken over, too
constexpr std::int64_t renew_every_ms = 2'000, end_patience_ms = 2'000;
constexpr std::int64_t fresh_ns = 1'000'000'000;  // of a look that counts for a loose fence

std::string directory_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

ClaimRecord next_claim(Env& env, const ClaimRecord& before) {
  return {.holder = fmt::format("host {} pid {}", env.host_name(), env.process_id()),
          .host_id = env.host_id(),
          .epoch = before.epoch + 1,
          .id = fmt::format("{:016x}", env.random_u64()),
          .renewals = 0};
}

}  // namespace

std::string to_text(const ClaimRecord& record) {
  return fmt::format("{}\n{}{}\n{}{}\n{}{}\n{}{:020}\n", record.holder, host_id_word, record.host_id,
                     epoch_word, record.epoch, id_word, record.id, renewals_word, record.renewals);
}

ClaimRecord claim_record_of(std::string_view text) {
  std::string_view holder, host_id, epoch, id, renewals;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (holder.empty()) {
      holder = line;
      continue;
    }
    static_cast<void>(take_value(line, host_id_word, host_id) || take_value(line, epoch_word, epoch) ||
                      take_value(line, id_word, id) || take_value(line, renewals_word, renewals));
  }
  return {.holder = std::string(holder),
          .host_id = std::string(host_id),
          .epoch = number_of(epoch),
          .id = std::string(id),
          .renewals = number_of(renewals)};
}

bool is_of_another_host(const ClaimRecord& record, const std::string& own_host_id) {
  return !record.host_id.empty() && record.host_id != own_host_id;
}

HolderWatch::Answer HolderWatch::look(const ClaimRecord& record, std::int64_t now_ns) {
  if (!has_seen_ || record != seen_) {
    renewed_ = has_seen_ && record.id == seen_.id;
    has_seen_ = true;
    seen_ = record;
    changed_ns_ = now_ns;
  }
  const bool patience_is_over = now_ns - begin_ns_ >= ns(terms_.patience_ms);
  if (!is_of_another_host(record, own_host_id_)) return patience_is_over ? Answer::refuse : Answer::wait;
  const std::int64_t quiet_ns = now_ns - changed_ns_;
  if (quiet_ns >= ns(terms_.lease_ms)) return Answer::take_over;
  const bool lives = renewed_ && quiet_ns < ns(terms_.alive_ms);
  return patience_is_over && lives ? Answer::refuse : Answer::wait;
}

struct Claim::State {
  State(Env& of_env, std::string of_path, ClaimRecord claimed)
      : env(&of_env), path(std::move(of_path)), mine(std::move(claimed)) {}

  Result<void> still_held() {
    const std::lock_guard guard(mutex);
    if (lost.has_value()) return *lost;
    return {};
  }
  bool may_write() {
    {
      const std::lock_guard guard(mutex);
      if (lost.has_value()) return false;
      if (checked_ns != 0 && is_fresh()) return true;
    }
    const Result<void> checked = check();
    return checked.ok() || checked.error().code != ExitCode::communication;
  }
  // Asks both clocks: that of a virtual machine which is stopped for a while, or moved, may stand still, and the wall
  // clock may be set. With `mutex` held.
  bool is_fresh() const {
    const std::int64_t wall_ns = (env->wall_time_us() - checked_wall_us) * 1000;
    return env->monotonic_ns() - checked_ns < fresh_ns && wall_ns >= 0 && wall_ns < fresh_ns;
  }
  Result<void> check() {
    HF_TRY_VOID(still_held());
    const std::int64_t begin_ns = env->monotonic_ns(), begin_wall_us = env->wall_time_us();
    const Result<std::string> text = env->read_text_within(path, text_limits::identity);
    if (!text.ok()) {
      const Result<FileStatus> status = env->status(path);
      if (status.ok() && !status->exists) return {};  // somebody removed it, and nobody has claimed it since
      return fail_because(text.error(), ExitCode::checkpoint,
                          "it cannot be seen whether another start writes {} now: {}", directory_of(path),
                          text.error().message);
    }
    const ClaimRecord now = claim_record_of(*text);
    const std::lock_guard guard(mutex);
    if (now.id == mine.id) {
      checked_ns = begin_ns;
      checked_wall_us = begin_wall_us;
      return {};
    }
    lost = fail(ExitCode::communication,
                "{} is written by another start by now ({}, claim {}): this one ({}, claim {}) did not renew "
                "its claim in time, or its lock kept no other host out. It ends, and publishes nothing more; "
                "the other one goes on",
                directory_of(path), now.holder, now.epoch, mine.holder, mine.epoch);
    return *lost;
  }

  Env* const env;
  const std::string path;
  const ClaimRecord mine;  // as it was claimed
  std::mutex mutex;        // of what follows
  std::optional<Error> lost;
  std::int64_t checked_ns = 0, checked_wall_us = 0;
};

struct Claim::Held {
  Held(Env& env, std::unique_ptr<FileLock> of_lock)
      : lock(std::move(of_lock)), changed(env.make_condition()) {}

  const std::unique_ptr<FileLock> lock;
  std::uint64_t renewals = 0;
  std::mutex mutex;  // of what follows
  const std::unique_ptr<Condition> changed;
  bool stops = false, has_ended = false;

  Result<void> renew(State& state) {
    HF_TRY_VOID(state.check());
    ClaimRecord record = state.mine;
    record.renewals = ++renewals;
    return lock->rewrite(to_text(record));
  }
  // Tries again what cannot be written: the lease is long.
  void keep_renewed(State& state) {
    std::unique_lock guard(mutex);
    while (!changed->wait_at_most(guard, renew_every_ms, [this] { return stops; })) {
      guard.unlock();
      static_cast<void>(renew(state).ok());
      guard.lock();
      if (!state.still_held().ok()) break;
    }
    has_ended = true;
    changed->notify();
  }
};

namespace {

// Takes the place of a holder whose host says nothing any more; none: it lives, or another was faster.
Result<std::unique_ptr<FileLock>> take_over(Env& env, const std::string& path, const ClaimRecord& silent,
                                            const ClaimRecord& mine) {
  std::unique_ptr<FileLock> none;
  if (claim_record_of(text_within_or_empty(env, path, text_limits::identity)) != silent) return none;
  HF_TRY(std::unique_ptr<FileLock> lock, env.replace_lock(path, to_text(mine)));
  env.sleep_us(settle_us);
  if (claim_record_of(text_within_or_empty(env, path, text_limits::identity)).id != mine.id) return none;
  print_message("{}: {} has not renewed its claim: claim {} takes over", directory_of(path), silent.holder,
                mine.epoch);
  return lock;
}

// Writes the record of one that has got the lock. A holder on another host may still have one, where locks do
// not exclude hosts; its renewals then go to a file without a name. Where there is no room for a new file the
// old one does.
Result<void> claim_locked(Env& env, const std::string& path, const ClaimRecord& before,
                          const ClaimRecord& mine, std::unique_ptr<FileLock>& lock) {
  if (is_of_another_host(before, mine.host_id)) {
    Result<std::unique_ptr<FileLock>> replaced = env.replace_lock(path, to_text(mine));
    if (replaced.ok()) {
      lock = std::move(replaced).value();
      return {};
    }
  }
  return lock->rewrite(to_text(mine));
}

}  // namespace

Result<std::unique_ptr<Claim>> Claim::take(Env& env, const std::string& path, const InUse& in_use,
                                           const LeaseTerms& terms, bool renews) {
  HolderWatch watch(terms, env.host_id(), env.monotonic_ns());
  std::unique_ptr<FileLock> held;
  ClaimRecord mine;
  for (bool reported = false; held == nullptr;) {
    Result<std::unique_ptr<FileLock>> lock = env.lock(path, "", std::min(look_ms, terms.patience_ms));
    if (!lock.ok() && lock.error().code != ExitCode::communication) return lock.error();
    HF_TRY(const std::string text, env.read_text_within(path, text_limits::identity));
    const ClaimRecord found = claim_record_of(text);
    mine = next_claim(env, found);
    if (lock.ok()) {
      held = std::move(lock).value();
      HF_TRY_VOID(claim_locked(env, path, found, mine, held));
      break;
    }
    const std::int64_t now_ns = env.monotonic_ns();
    const HolderWatch::Answer answer = watch.look(found, now_ns);
    if (answer == HolderWatch::Answer::refuse) return in_use(found.holder);
    if (answer == HolderWatch::Answer::take_over) {
      HF_TRY(held, take_over(env, path, found, mine));
    } else if (watch.waits_for_lease(now_ns) && !std::exchange(reported, true)) {
      print_message(
          "{} is held by {}, which may be gone with its host: waiting until its claim has not been renewed "
          "for {} s",
          directory_of(path), found.holder, terms.lease_ms / 1000);
    }
  }
  auto state = std::make_shared<State>(env, path, std::move(mine));
  std::unique_ptr<Claim> claim(new Claim(std::move(state), std::make_shared<Held>(env, std::move(held))));
  if (renews) HF_TRY_VOID(claim->start_renewing());
  return claim;
}

Result<void> Claim::start_renewing() {
  HF_TRY(thread_, state_->env->start_thread("claim renewal",
                                            [state = state_, held = held_] { held->keep_renewed(*state); }));
  return {};
}

Claim::~Claim() {
  if (thread_ == nullptr) return;
  std::unique_lock guard(held_->mutex);
  held_->stops = true;
  held_->changed->notify();
  const bool ended =
      held_->changed->wait_at_most(guard, end_patience_ms, [this] { return held_->has_ended; });
  guard.unlock();
  if (!ended) thread_->leave();
}

std::uint64_t Claim::epoch() const {
  return state_->mine.epoch;
}

Result<void> Claim::still_held() const {
  return state_->still_held();
}

ClaimCheck Claim::fence() const {
  return [state = state_] { return state->check(); };
}

std::function<bool()> Claim::loose_fence() const {
  return [state = state_] { return state->may_write(); };
}

Result<void> Claim::renew() {
  return held_->renew(*state_);
}

}  // namespace holdfast::run
