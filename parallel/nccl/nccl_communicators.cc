#include "parallel/nccl/nccl_communicators.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "runtime/device/cuda_error.h"

namespace holdfast::parallel {
namespace {

constexpr std::int64_t poll_us = 200;

bool is_sticky(CudaError error) {
  return cuda_error_class(error) == CudaErrorClass::sticky;
}

}  // namespace

NcclCommunicators::NcclCommunicators(NcclLibrary& library, Env& env, NcclEnd end)
    : library_(&library), env_(&env), end_(std::move(end)) {
  if (!end_.die) {
    end_.die = [&env](const std::string& sentence) {
      std::fprintf(stderr, "%s\n", sentence.c_str());
      std::fflush(stderr);
      env.kill_self();
    };
  }
  thread_ = std::thread([this] { run(); });  // now: in trouble there may be no memory for one
}

NcclCommunicators::~NcclCommunicators() {
  if (!links_.empty()) static_cast<void>(abort_all("the epoch has ended"));
  {
    const std::lock_guard guard(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

NcclLink& NcclCommunicators::add(NcclLink link) {
  const std::lock_guard guard(calls_);
  links_.push_back(std::make_unique<NcclLink>(std::move(link)));
  return *links_.back();
}

Result<NcclCommunicators::Calls> NcclCommunicators::enter() {
  if (!ended()) {
    Calls calls(calls_);
    if (!ended()) return calls;
  }
  const std::lock_guard guard(mutex_);
  return fail(ExitCode::communication, "the NCCL communicators of this process have ended: {}", reason_);
}

Result<bool> NcclCommunicators::may_launch(const NcclLink& link) {
  if (launching_ == nullptr || launching_ == &link) return true;
  NcclResult state = NcclResult::success;
  const NcclResult result = library_->comm_state(launching_->comm, state);
  const NcclResult outcome = result == NcclResult::success ? state : result;
  if (outcome == NcclResult::in_progress) return false;
  if (outcome != NcclResult::success) {
    return fail(
        ExitCode::communication,
        "NCCL failed on rank {} of {}: {}: {}; where the run does not go on by itself, start it again",
        launching_->rank, launching_->name, library_->text(outcome), library_->last_error(launching_->comm));
  }
  launching_ = nullptr;
  return true;
}

// `way`: stopping or aborting.
Result<void> NcclCommunicators::take_down(Phase way, const std::string& reason, CudaError seen) {
  std::unique_lock lock(mutex_);
  const auto lost_to = [this](std::string outcome) {
    phase_ = Phase::lost;
    outcome_ = std::move(outcome);
    changed_.notify_all();
  };
  const auto wait_for_end_of = [&](Phase begun) {
    if (changed_.wait_for(lock, std::chrono::milliseconds(end_.timeout_ms), [&] { return phase_ != begun; }))
      return;
    lost_to(fmt::format("NCCL did not {} its communicators within {} ms",
                        begun == Phase::stopping ? "stop" : "end", end_.timeout_ms));
  };
  const auto begin = [&](Phase phase) {
    phase_ = phase;
    changed_.notify_all();
  };
  if (phase_ == Phase::live) {
    reason_ = reason;
    if (is_sticky(seen)) {
      lost_to(fmt::format("CUDA met an error that no call survives ({})", library_->text(seen)));
    } else {
      begin(way);
    }
  }
  if (phase_ == Phase::stopping) wait_for_end_of(Phase::stopping);
  if (phase_ == Phase::stopped && way == Phase::aborting) begin(Phase::aborting);
  if (phase_ == Phase::aborting) wait_for_end_of(Phase::aborting);
  if (phase_ != Phase::lost) return {};
  const Error error =
      fail(ExitCode::communication,
           "this process (host {}, pid {}) kills itself, so that the other ranks go on without it: {}. The "
           "communicators were to end because {}",
           env_->host_name(), env_->process_id(), outcome_, reason_);
  if (!std::exchange(dead_, true)) end_.die(error.message);
  return error;
}

// Aborts communicators at once where they cannot be stopped.
void NcclCommunicators::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || (phase_ != Phase::live && phase_ != Phase::stopped); });
    const Phase begun = phase_;
    if (begun != Phase::stopping && begun != Phase::aborting) return;
    lock.unlock();
    bool is_stopped = false;
    Result<void> outcome;
    {
      // Waits for the owner to come out of its call. One that never does is the deadline's.
      const std::lock_guard calls(calls_);
      is_stopped = begun == Phase::stopping && revoke_all();
      if (!is_stopped && phase_ == begun) outcome = end_all();
    }
    lock.lock();
    if (phase_ == begun) {
      phase_ = is_stopped ? Phase::stopped : outcome.ok() ? Phase::ended : Phase::lost;
      if (!outcome.ok()) outcome_ = outcome.error().message;
    }
    changed_.notify_all();
    if (phase_ != Phase::stopped) return;
  }
}

std::vector<NcclComm> NcclCommunicators::comms() const {
  std::vector<NcclComm> comms;
  for (const auto& link : links_) {
    if (link->comm != nullptr) comms.push_back(link->comm);
  }
  return comms;
}

// Returns whether all communicators are revoked, and the streams quiet. Not in a group: each call only sets the flag
// that its kernels look at, and returns; NCCL waits for them in a thread of its own. An unstarted communicator has
// nothing to revoke yet, and waits for its peers until it is aborted.
bool NcclCommunicators::revoke_all() {
  library_->set_device(end_.device);  // of this thread; an error shows below
  const auto is_unstarted = [](const auto& link) { return link->comm != nullptr && !link->started; };
  if (!library_->can_revoke() || std::ranges::any_of(links_, is_unstarted)) return false;
  const std::vector<NcclComm> all = comms();
  for (NcclComm comm : all) {
    const NcclResult result = library_->comm_revoke(comm);
    if (result != NcclResult::success && result != NcclResult::in_progress) return false;
  }
  for (NcclComm comm : all) {
    NcclResult state = NcclResult::in_progress;
    while (state == NcclResult::in_progress) {
      if (phase_ == Phase::lost || library_->comm_state(comm, state) != NcclResult::success) return false;
      if (state == NcclResult::in_progress) env_->sleep_us(poll_us);
    }
    if (state != NcclResult::success) return false;
  }
  return wait_until_quiet().ok();
}

Result<void> NcclCommunicators::end_all() {
  library_->set_device(end_.device);  // of this thread; an error shows below
  const std::vector<NcclComm> all = comms();
  const bool in_group = library_->version() >= NcclLibrary::version_group_abort;
  const NcclResult aborted = in_group ? abort_group(all) : abort_each(all);
  if (aborted != NcclResult::success) {
    // Kernels that could not be aborted may still write into memory that others use by then.
    return fail(ExitCode::communication, "ncclCommAbort failed: {}", library_->text(aborted));
  }
  HF_TRY_VOID(wait_until_quiet());
  const CudaError freeing = free_all(), last = library_->last_cuda_error();
  if (is_sticky(freeing) || is_sticky(last)) {
    return fail(ExitCode::communication, "CUDA met an error that no call survives ({})",
                library_->text(is_sticky(freeing) ? freeing : last));
  }
  return {};
}

NcclResult NcclCommunicators::abort_group(const std::vector<NcclComm>& comms) {
  if (comms.empty()) return NcclResult::success;
  NcclResult first = library_->group_start();
  for (NcclComm comm : comms) {
    const NcclResult result = library_->comm_abort(comm);
    if (first == NcclResult::success) first = result;
  }
  const NcclResult result = library_->group_end();
  return first == NcclResult::success ? result : first;
}

NcclResult NcclCommunicators::abort_each(const std::vector<NcclComm>& comms) {
  std::vector<NcclResult> results(comms.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    threads.emplace_back([this, &results, &comms, i] {
      library_->set_device(end_.device);
      results[i] = library_->comm_abort(comms[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto failed = std::find_if(results.begin(), results.end(),
                                   [](NcclResult result) { return result != NcclResult::success; });
  return failed == results.end() ? NcclResult::success : *failed;
}

// Polls the streams and never synchronises: a synchronise could not be left, but this wait ends when the
// deadline has passed.
Result<void> NcclCommunicators::wait_until_quiet() {
  for (const auto& link : links_) {
    if (link->stream == nullptr) continue;
    CudaError error = library_->stream_query(link->stream);
    while (cuda_error_class(error) == CudaErrorClass::not_ready) {
      if (phase_ == Phase::lost) return fail(ExitCode::communication, "the deadline passed");
      env_->sleep_us(poll_us);
      error = library_->stream_query(link->stream);
    }
    if (is_sticky(error)) {
      return fail(ExitCode::communication, "CUDA met an error that no call survives ({})",
                  library_->text(error));
    }
  }
  return {};
}

CudaError NcclCommunicators::free_all() {
  CudaError first = 0;
  const auto note = [&first](CudaError error) {
    if (first == 0) first = error;
  };
  for (const auto& link : links_) {
    for (std::vector<CudaEvent>* events : {&link->events, &link->ready}) {
      for (CudaEvent event : *events) note(library_->event_destroy(event));
      events->clear();
    }
    if (link->stream != nullptr) note(library_->stream_destroy(link->stream));
    if (link->memory != nullptr) note(library_->free(link->memory));
    link->comm = nullptr;
    link->stream = nullptr;
    link->memory = nullptr;
  }
  return first;
}

}  // namespace holdfast::parallel
