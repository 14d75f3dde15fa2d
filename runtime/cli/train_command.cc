#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>

#include "parallel/comm/launcher.h"
#include "parallel/group/membership.h"
#include "parallel/group/mpi_loader.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/common/program.h"
#include "runtime/cli/rank_group.h"
#include "runtime/config/document.h"
#include "runtime/elastic/new_rank.h"
#include "runtime/elastic/train_run.h"
#include "runtime/os/console.h"
#include "runtime/os/posix_output.h"
#include "runtime/os/processes.h"
#include "runtime/os/signals.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/leaving.h"
#include "runtime/rank/transport_choice.h"
#include "runtime/rank/watch.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/preemption_notice.h"

namespace holdfast::cli {
namespace {

constexpr const char* train_usage =
    "usage: holdfast train RUN.toml [--section.key=value ...]\n"
    "\n"
    "Trains the model that RUN.toml describes. Alone it is one rank; under mpirun every process is one "
    "rank:\n"
    "  mpirun -np 4 holdfast train RUN.toml\n"
    "A rank that dies is healed in place where MPI has ULFM switched on (tools/mpirun): the others go on.\n"
    "A run that was interrupted goes on from its newest checkpoint when it is started again.\n"
    "SIGUSR1, like holdfast save, saves after the step and goes on; mpirun passes it on to all ranks.\n"
    "SIGUSR2, SIGTERM and SIGINT finish the step, save, and end with exit code 75. tools/mpirun and "
    "holdfast launch pass\n"
    "them on to the ranks. On SIGTERM or Ctrl-C, plain mpirun kills the ranks after 0.5 s: send it SIGUSR2. "
    "holdfast launch\n"
    "also starts the run again after a fault.\n"
    "The keys: holdfast config help. The console's \"mfu\" is the share of the rate that one large matrix "
    "product\n"
    "reaches on the same cores, measured at the first start there, with 6 FLOP per weight and token and "
    "causal attention "
    "once.\n";

// Stop source that reads signals. SIGUSR1 requests a save, SIGUSR2 a save and the end; mpirun passes both on
// to every rank. SIGTERM may leave half a second; SIGINT is Ctrl-C. SIGPWR says that the host is about to go
// away.
class SignalStop final : public StopSource {
 public:
  SignalStop(Env& env, SignalWatcher& watcher) : env_(env), watcher_(watcher) {}
  bool stop_requested() override {
    while (const int signal = watcher_.poll()) {
      if (signal == SIGPWR) {
        if (notice_ != nullptr) notice_->signalled();
      } else if (signal == SIGUSR1) {
        save_requested_ = save_requested_ || env_.monotonic_ns() - answered_ns_ > one_request_ns;
      } else {
        signal_ = signal;
        report_signal_to_launcher(env_, number_, signal);
      }
    }
    return signal_ != 0 || (notice_ != nullptr && notice_->stops());
  }
  bool save_requested() override { return save_requested_; }
  void save_begun(bool asked_for) override {
    save_requested_ = false;
    if (asked_for) answered_ns_ = env_.monotonic_ns();
  }
  void directory_is_local() override {
    if (notice_ != nullptr) notice_->launcher_does_not_see();
  }
  // Sets this rank's number for messages to the launcher.
  void is_rank(int number) { number_ = number; }
  int signal() const { return signal_; }  // last signal; 0: none
  // Makes `notice` a reason to stop; it outlives the last call of this object.
  void heeds(PreemptionNotice* notice) { notice_ = notice; }

 private:
  // Time after an answer in which further signals belong to the same request: one signal to mpirun reaches
  // the ranks one after another, some of them after another has been answered.
  static constexpr std::int64_t one_request_ns = 1'000'000'000;
  Env& env_;
  SignalWatcher& watcher_;
  PreemptionNotice* notice_ = nullptr;
  int signal_ = 0, number_ = 0;
  bool save_requested_ = false;
  std::int64_t answered_ns_ = -one_request_ns;
};

// Group holds the ranks of a start, and the membership that lets it shrink and grow.
struct Group {
  RankGroup ranks;
  std::unique_ptr<Membership> membership;  // null: a death ends the run
  Communicator& communicator() { return ranks.communicator(); }
};

// Joins the group of the ranks. `watch` outlives it; null: there is none. `preparation` is for a process that
// other ranks have started.
Result<Group> join_group(Env& env, RankWatch* watch, const Preparation& preparation) {
  Group group;
  HF_TRY(group.ranks, join_ranks(env, watch, preparation));
  if (group.ranks.mpi == nullptr) return group;
  MpiSession& mpi = *group.ranks.mpi;
  if (group.communicator().rank() == 0 && !mpi.facts().fault_tolerant) {
    const bool by_srun = launched_by_srun(env);
    print_message(
        "{} runs without ULFM fault tolerance: when a rank dies, {} ends the whole run, and the next start "
        "resumes it from the newest checkpoint ({})",
        mpi.facts().library, by_srun ? "srun" : "mpirun",
        by_srun ? "holdfast launch in the job switches it on" : "tools/mpirun switches it on");
  }
  if (ShrinkingWorld* world = mpi.shrinking_world(); world != nullptr && world->current().size() > 1) {
    HF_TRY(group.membership, Membership::begin(env, *world, join_timeout_ms, {}, watch));
  }
  return group;
}

int leave(Env& env, Group& group, int number, std::unique_ptr<RankWatch> watch, const RunEnd& end, int signal,
          OutputThread& output, FaultPoints& faults) {
  report_end_to_launcher(env, number, end.code, signal);
  const int code = static_cast<int>(end.code);
  // Prints the result once, by rank 0, when all ranks have agreed on it; a rank that lost its peers prints
  // its own, which names the rank.
  const bool peer_gone = group.communicator().abandoned(), speaks = group.communicator().rank() == 0;
  const bool error = end.code != ExitCode::done && end.code != ExitCode::saved;
  if (peer_gone || (speaks && error)) {
    complain({end.code, end.message});
  } else if (speaks) {
    print_line("holdfast: {}", end.message);
  }
  static_cast<void>(output.drain());  // MPI may end the process
  const int left = leave_ranks(group.ranks, code, end.code, [&watch] { watch.reset(); });
  if (group.ranks.mpi) HF_FAULT_POINT(faults, "end.before_exit");
  return left;
}

Result<LoadedConfig> read_config(Env& env, const std::vector<std::string>& words) {
  if (words.empty() || words.front().starts_with("--")) {
    return fail(ExitCode::config, "train needs a config file first\n{}", train_usage);
  }
  if (std::ranges::any_of(words, [](const std::string& word) { return word == "-np" || word == "-n"; })) {
    return fail(
        ExitCode::config,
        "train does not start ranks, so it takes no -np; write mpirun -np N holdfast train RUN.toml, or "
        "holdfast launch -np N RUN.toml");
  }
  HF_TRY(const std::vector<Override> overrides, parse_overrides({words.begin() + 1, words.end()}));
  return load_config(env, words.front(), overrides);
}

// Returns the number of this rank. A process that ranks of the run have started is numbered after them, not
// as its launcher does.
int number_of(Group& group) {
  return group.communicator().global_rank(group.communicator().rank());
}

// Trains as a rank. Every rank joins before it reports on its input, so that all learn of an error together
// and one reports it.
Result<int> train(const std::vector<std::string>& words, OutputThread& output) {
  Env& env = posix_env();
  const std::int64_t started_ns = env.monotonic_ns();
  ignore_closed_pipes();
  raise_descriptor_limit();
  HF_TRY(const std::unique_ptr<SignalWatcher> watcher,
         SignalWatcher::watch({SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGPWR}));
  SignalStop stop(env, *watcher);
  const bool is_joiner = launched_by_ranks(env);
  if (!is_joiner)
    report_ready_to_launcher(env, launched_rank(env));  // from here on signals are not lost and end nothing
  Result<LoadedConfig> config = read_config(env, words);
  std::unique_ptr<RankWatch> watch =
      is_joiner ? nullptr : begin_watch(env, config, launched_rank(env), join_timeout_ms);
  ProcessMemory prepared;
  const auto prepare = [&](const std::string& task, const std::function<void()>& look_up) {
    // Rules for a single rank do not apply here, because the process has no number yet.
    if (const auto faults = FaultPoints::parse(env.variable("HOLDFAST_FAULTS"), -1, env); faults.ok())
      HF_FAULT_POINT(**faults, "grow.prepare");
    if (!config.ok()) return;
    prepare_new_rank(env, task, {.threads = threads_of_rank(env, config->config, 1), .progress = look_up},
                     prepared);
  };
  Result<Group> joined = join_group(env, watch.get(), prepare);
  if (!joined.ok() && is_joiner) env.kill_self();  // an exit code would end the ranks that go on without it
  HF_TRY(Group group, std::move(joined));
  const int number = launched_by_mpi(env) ? number_of(group) : 0;
  stop.is_rank(number);
  if (is_joiner) {
    report_ready_to_launcher(env, number);
    watch = begin_watch(env, config, number, join_timeout_ms);
  }
  enter(watch.get(), Phase::start_up, 0);
  if (config.ok()) {
    const Result<void> cuda = prepare_cuda_for_nccl(env, config->config, group.communicator().size());
    // A joiner does not end the run: where it cannot use NCCL, the transport goes over the host.
    if (!cuda.ok() && !is_joiner) config = cuda.error();
  }
  Result<std::unique_ptr<FaultPoints>> faults =
      FaultPoints::parse(env.variable("HOLDFAST_FAULTS"), number, env);
  if (!faults.ok()) {
    config = faults.error();
    faults = std::make_unique<FaultPoints>();
  }
  std::optional<PreemptionNotice> notice;
  if (config.ok()) {
    notice.emplace(env, RunPaths{config->config.run.directory},
                   PreemptionNotice::Settings{.config = config->config.elastic,
                                              .looks = launched_rank_on_host(env) == 0,
                                              .has_launcher = !launched_start(env).empty()});
    stop.heeds(&*notice);
  }
  if (group.membership != nullptr) {
    group.membership->leaves_by(
        [&] { die_if_awaited(env, *group.membership, watch != nullptr, ExitCode::communication, ""); });
  }
  const RunEnd end = train_run({{.env = env,
                                 .faults = **faults,
                                 .communicator = group.communicator(),
                                 .watch = watch.get(),
                                 .ranks_on_host = launched_ranks_on_host(env)},
                                {.build = program_digest(env),
                                 .place = {.rank_on_host = launched_rank_on_host(env)},
                                 .started_ns = started_ns,
                                 .membership = group.membership.get(),
                                 .prepared = &prepared},
                                stop,
                                config});
  return leave(env, group, number, std::move(watch), end, stop.signal(), output, **faults);
}

}  // namespace

int run_train_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", train_usage);
    return 0;
  }
  OutputThread output;
  const Result<int> code = train(arguments, output);
  if (code.ok()) return *code;
  report_end_to_launcher(posix_env(), launched_rank(posix_env()), code.error().code);
  return complain(code.error());
}

}  // namespace holdfast::cli
