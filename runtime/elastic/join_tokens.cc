#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "parallel/comm/gather.h"
#include "runtime/core/units.h"
#include "runtime/elastic/join.h"
#include "runtime/os/console.h"
#include "runtime/os/thread.h"
#include "runtime/rank/watch.h"
#include "runtime/text/source_tokens.h"

namespace holdfast::elastic {
namespace {

// TokenProgress is what a rank tells the others while text is tokenized.
struct TokenProgress {
  std::uint64_t source = 0;                      // that it makes or waits for; the number of all: it is done
  std::uint64_t read_bytes = 0, text_bytes = 0;  // of the source that it tokenizes itself; none: it waits
  std::uint64_t looks = 0;                       // at what another process makes
  bool has_failed = false, stops = false;

  static void visit_fields(auto& self, auto&& visit) {
    visit("source", self.source);
    visit("read_bytes", self.read_bytes);
    visit("text_bytes", self.text_bytes);
    visit("looks", self.looks);
    visit("has_failed", self.has_failed);
    visit("stops", self.stops);
  }
};

// TokenWork makes the tokens of sources on a thread of its own, so that the rank answers the others meanwhile.
class TokenWork {
 public:
  TokenWork(Env& env, const std::vector<SourceTokens>& all) : env_(env), all_(all) {}
  TokenWork(const TokenWork&) = delete;
  TokenWork& operator=(const TokenWork&) = delete;
  ~TokenWork() { static_cast<void>(end().ok()); }

  void begin() {
    Result<std::unique_ptr<Thread>> thread = env_.start_thread("tokens", [this] { run(); });
    if (thread.ok()) {
      thread_ = std::move(thread).value();
      return;
    }
    outcome_ = thread.error();
    progress_.has_failed = true;
  }
  TokenProgress progress() {
    const std::scoped_lock guard(mutex_);
    return progress_;
  }
  // Stops the work and returns its outcome.
  Result<void> end() {
    stops_ = true;
    thread_.reset();  // waits
    return outcome_;
  }

 private:
  void run() {
    for (std::size_t i = 0; i < all_.size() && outcome_.ok(); ++i) {
      MakeTerms terms{.threads = env_.processor_count()};
      terms.progress = [this](std::uint64_t done, std::uint64_t all) {
        const std::scoped_lock guard(mutex_);
        progress_.read_bytes = done;
        progress_.text_bytes = all;
      };
      terms.waits = [this] {
        const std::scoped_lock guard(mutex_);
        ++progress_.looks;
      };
      terms.stops = [this] { return stops_.load(); };
      if (!all_[i].made.has_value()) outcome_ = make_source_tokens(env_, all_[i], terms);
      const std::scoped_lock guard(mutex_);
      progress_ = {.source = i + (outcome_.ok() ? 1 : 0), .has_failed = !outcome_.ok()};
    }
  }

  Env& env_;
  const std::vector<SourceTokens>& all_;
  std::atomic<bool> stops_ = false;
  std::mutex mutex_;
  TokenProgress progress_;  // guarded
  Result<void> outcome_;    // of the thread; read when it has ended
  std::unique_ptr<Thread> thread_;
};

// TokenConsole tells people what the ranks do, now and then.
class TokenConsole {
 public:
  TokenConsole(const TrainInputs& inputs, const std::vector<SourceTokens>& all)
      : inputs_(inputs), all_(all), next_ns_(inputs.env.monotonic_ns() + 500'000'000) {}

  void show(const std::vector<TokenProgress>& ranks) {
    constexpr std::int64_t pause_ns = 2'000'000'000;
    const std::int64_t now = inputs_.env.monotonic_ns();
    if (inputs_.communicator.rank() != 0 || now < next_ns_) return;
    next_ns_ = now + pause_ns;
    const auto waiting = std::ranges::count(ranks, std::uint64_t{0}, &TokenProgress::text_bytes);
    const std::string others =
        waiting == 0 ? ""
                     : fmt::format("; {} for it",
                                   waiting == 1 ? "1 rank waits" : fmt::format("{} ranks wait", waiting));
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const TokenProgress& rank = ranks[i];
      if (rank.text_bytes == 0 || rank.source >= all_.size()) continue;
      const SourceTokens& tokens = all_[rank.source];
      print_message("rank {} tokenizes {} with {}: {} of {} ({:.0f} %){}", i, tokens.source.path,
                    tokens.source.tokenizer, format_bytes(rank.read_bytes), format_bytes(rank.text_bytes),
                    100.0 * static_cast<double>(rank.read_bytes) / static_cast<double>(rank.text_bytes),
                    others);
    }
    if (waiting < std::ssize(ranks)) return;
    const std::size_t first = std::min<std::size_t>(ranks[0].source, all_.size() - 1);
    print_message("waiting for another process that tokenizes {}", all_[first].source.path);
  }

  // Says what is in the tokens that were made.
  Result<void> tell() {
    for (const SourceTokens& tokens : all_) {
      if (tokens.made.has_value() || inputs_.communicator.rank() != 0) continue;
      HF_TRY(const std::optional<TextTokens> made, find_tokens(inputs_.env, tokens.directory));
      if (made.has_value())
        print_message("tokenized {}: {}; in {}", tokens.source.path, text_of(*made), tokens.directory);
    }
    return {};
  }

 private:
  const TrainInputs& inputs_;
  const std::vector<SourceTokens>& all_;
  std::int64_t next_ns_;  // of the next line; what is short needs none
};

// Returns a number that changes while something is done: a rank that waits is alive while another one makes progress, and where none
// of them does, because a process of another run does, while it sees that this one holds the lock.
std::uint64_t moved_by(const std::vector<TokenProgress>& ranks) {
  const bool some_work =
      std::ranges::any_of(ranks, [](const TokenProgress& one) { return one.text_bytes > 0; });
  std::uint64_t moved = 0;
  for (const TokenProgress& one : ranks) moved += one.read_bytes + one.source + (some_work ? 0 : one.looks);
  return moved;
}

// Lets the tokens be made, while all ranks look at each other a few times a second. Returns whether a rank was asked to stop.
Result<bool> attend(const TrainInputs& inputs, const Waiter& waiter, const std::vector<SourceTokens>& all,
                    TokenWork& work) {
  constexpr std::int64_t pause_us = 100'000;
  const StorageWait storage(inputs.watch, "text that is tokenized");
  TokenConsole console(inputs, all);
  std::uint64_t seen = 0;
  while (true) {
    TokenProgress mine = work.progress();
    mine.stops = inputs.stop.stop_requested();
    HF_TRY(const std::vector<TokenProgress> ranks, gather(inputs.communicator, waiter, mine));
    if (std::ranges::any_of(ranks, &TokenProgress::stops)) return true;
    if (std::ranges::any_of(ranks, &TokenProgress::has_failed)) return false;
    if (std::ranges::all_of(ranks, [&](const TokenProgress& rank) { return rank.source == all.size(); })) {
      HF_TRY_VOID(console.tell());
      return false;
    }
    console.show(ranks);
    const std::uint64_t moved = moved_by(ranks);
    if (moved != seen) storage.progress(1);
    seen = moved;
    inputs.env.sleep_us(pause_us);
  }
}

}  // namespace

Result<void> join_tokens(const TrainInputs& inputs, const Waiter& waiter, const Config& config) {
  if (!has_text_to_tokenize(config)) return {};
  const Result<std::vector<SourceTokens>> all =
      try_storage(inputs, "text that is tokenized", [&] { return find_source_tokens(inputs.env, config); });
  HF_TRY_VOID(
      agree_on_fitness(inputs.communicator, waiter, outcome_of(all), inputs.env.host_name(), Examined::same));
  TokenWork work(inputs.env, *all);
  work.begin();
  HF_TRY(const bool stopped, attend(inputs, waiter, *all, work));
  if (stopped) {
    return fail(ExitCode::saved,
                "asked to stop while text was tokenized; the next start tokenizes what was not done");
  }
  Result<void> outcome = work.end();
  // One that was stopped because another one failed has nothing to say.
  if (!outcome.ok() && outcome.error().code == ExitCode::communication) outcome = {};
  return agree_on_outcome(inputs.communicator, waiter, outcome, inputs.env.host_name());
}

}  // namespace holdfast::elastic
