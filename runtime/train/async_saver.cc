#include "runtime/train/async_saver.h"

#include "parallel/agreement.h"
#include "runtime/train/checkpoint_parts.h"
#include "runtime/train/shard_options.h"

namespace holdfast {

AsyncSaver::AsyncSaver(Worker& worker, CheckpointStore& store)
    : worker_(&worker), store_(&store), first_(worker.communicator().rank() == 0), snapshot_(worker) {}

AsyncSaver::~AsyncSaver() {
  drain_.wait();
  publish_.wait();
}

Result<void> AsyncSaver::prepare() {
  return agree_on_outcome(worker_->communicator(), patient_waiter(*worker_),
                          first_ ? store_->remove_leftovers() : Result<void>(), worker_->env().host_name());
}

Result<void> AsyncSaver::begin() {
  Save save{.report = {.step = worker_->state().step, .outcome = {}},
            .begin_ns = worker_->env().monotonic_ns()};
  while (draining_) HF_TRY_VOID(complete_round());
  copy_begun_ = snapshot_.begin();
  copied_ = false;
  drain_.start([this] { return copy_and_drain(); });
  save.report.stall_ns = worker_->env().monotonic_ns() - save.begin_ns;
  draining_ = std::move(save);
  return {};
}

// In the background.
Result<ShardFile> AsyncSaver::copy_and_drain() {
  if (copy_begun_.ok()) snapshot_.complete();
  copied_ = true;
  copied_.notify_one();
  HF_TRY_VOID(copy_begun_);
  Env& env = worker_->env();
  FaultPoints& faults = worker_->faults();
  const std::int64_t begin_ns = env.monotonic_ns();
  const RunState& state = snapshot_.state();
  const std::string directory = store_->pending_directory(state.step);
  HF_FAULT_POINT(faults, "save.before_shard");
  HF_TRY_VOID(env.make_directories(directory));
  ShardWriteOptions options = shard_options(worker_->config().checkpoint, *store_);
  options.pace = [&](std::uint64_t) { HF_FAULT_POINT(faults, "save.mid_shard"); };
  Result<ShardFile> shard =
      write_shard_file(env, directory, CheckpointStore::shard_name(worker_->communicator().rank()),
                       state.step, state.run_id, snapshot_.pieces(), {}, options);
  HF_FAULT_POINT(faults, "save.after_shard");
  drain_ns_ = env.monotonic_ns() - begin_ns;
  return shard;
}

SaveVotes AsyncSaver::vote() {
  SaveVotes votes;
  if (draining_) {
    const std::int64_t begin_ns = worker_->env().monotonic_ns();
    const HostSpan wait(&worker_->spans(), {.kind = SpanKind::wait_snapshot});
    copied_.wait(false);
    draining_->report.stall_ns += worker_->env().monotonic_ns() - begin_ns;
  }
  if (draining_ && drain_.finished()) (drain_.result().ok() ? votes.durable : votes.failed) = 1;
  if (publishing_ && first_ && publish_.finished())
    (publish_.result().ok() ? votes.published : votes.unpublished) = 1;
  return votes;
}

Result<void> AsyncSaver::advance(const SaveVotes& sums) {
  if (sums.published + sums.unpublished > 0) end_publishing(sums.published > 0);
  const bool drained = sums.durable + sums.failed == worker_->communicator().size();
  if (!draining_ || !drained || publishing_) return {};
  return sums.failed == 0 ? begin_publishing() : give_up();
}

Result<void> AsyncSaver::begin_publishing() {
  const std::int64_t begin_ns = worker_->env().monotonic_ns();
  const Result<ShardFile> shard = drain_.take();
  HF_TRY(const std::vector<std::string> texts,
         all_gather_text(worker_->communicator(), worker_->waiter(), to_text(*shard)));
  draining_->report.drain_ns = drain_ns_;
  draining_->report.bytes = bytes_of_shards(texts);
  if (first_) {
    publish_.start(
        [this, manifest = make_manifest(*worker_, snapshot_.state(), texts)]() -> Result<std::int64_t> {
          const std::int64_t publish_begin_ns = worker_->env().monotonic_ns();
          HF_TRY_VOID(publish_and_retain(*store_, manifest, worker_->config().checkpoint.keep));
          return worker_->env().monotonic_ns() - publish_begin_ns;
        });
  }
  draining_->report.stall_ns += worker_->env().monotonic_ns() - begin_ns;
  publishing_ = std::exchange(draining_, std::nullopt);
  return {};
}

void AsyncSaver::end_publishing(bool published) {
  Result<void> outcome;
  if (!published) outcome = fail(ExitCode::checkpoint, "rank 0 could not publish the checkpoint");
  if (first_) {
    const Result<std::int64_t> publish_ns = publish_.take();
    outcome = outcome_of(publish_ns);
    if (publish_ns.ok()) publishing_->report.publish_ns = *publish_ns;
  }
  report(*publishing_, outcome);
  publishing_.reset();
}

// What the others wrote is of no use; the error that made it so is the one to tell.
Result<void> AsyncSaver::give_up() {
  const Result<void> outcome = agree_on_outcome(worker_->communicator(), worker_->waiter(),
                                                outcome_of(drain_.take()), worker_->env().host_name());
  HF_CHECK(!outcome.ok());
  if (outcome.error().code == ExitCode::communication) return outcome;
  if (first_) static_cast<void>(store_->abandon_save(draining_->report.step).ok());
  draining_->report.drain_ns = drain_ns_;
  report(*draining_, outcome);
  draining_.reset();
  return {};
}

void AsyncSaver::report(Save& save, const Result<void>& outcome) {
  save.report.outcome = outcome;
  save.report.duration_ns = worker_->env().monotonic_ns() - save.begin_ns;
  reports_.push_back(std::move(save.report));
}

// A vote of its own, in which every rank has done what it has under way.
Result<void> AsyncSaver::complete_round() {
  drain_.wait();
  publish_.wait();
  SaveVotes::Words words = vote().words();
  HF_TRY_VOID(all_reduce_sum(worker_->communicator(), patient_waiter(*worker_), words));
  return advance(SaveVotes::of(words));
}

Result<void> AsyncSaver::finish() {
  while (draining_ || publishing_) HF_TRY_VOID(complete_round());
  return {};
}

}  // namespace holdfast
