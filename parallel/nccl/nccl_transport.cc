#include "parallel/nccl/nccl_transport.h"

#include <fmt/core.h>

#include "runtime/device/cuda_error.h"

namespace holdfast::parallel {
namespace {

// "ranks 0, 2 and 3"
template <typename Messages>
std::string ranks_of(const Messages& messages) {
  constexpr std::size_t shown_max = 8;
  std::string text = messages.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < messages.size() && i < shown_max; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == messages.size() ? " and " : ", ", messages[i].peer);
  }
  if (messages.size() > shown_max) text += fmt::format(" and {} more", messages.size() - shown_max);
  return text;
}

}  // namespace

NcclTransport::NcclTransport(NcclCommunicators& communicators, const NcclLink& link)
    : communicators_(&communicators),
      library_(&communicators.library()),
      link_(&link),
      rank_(link.rank),
      size_(link.size),
      slots_(slot_count) {
  HF_CHECK(size_ <= ranks_max && (size_ == 1 || link.events.size() == slot_count));
  for (Slot& slot : slots_) {
    slot.incoming.reserve(static_cast<std::size_t>(size_));
    slot.outgoing.reserve(static_cast<std::size_t>(size_));
  }
}

Result<Transport::Number> NcclTransport::open(std::span<const Incoming> incoming) {
  HF_CHECK(can_open());
  Slot& opened = slot(next_);
  opened.sent = false;
  opened.incoming.assign(incoming.begin(), incoming.end());
  opened.outgoing.clear();
  return next_++;
}

void NcclTransport::post(Number number, std::span<const Outgoing> outgoing, bool has_ready_event) {
  HF_CHECK(issued_ <= number && number < next_ && !slot(number).sent, "exchange {}", number);
  slot(number).outgoing.assign(outgoing.begin(), outgoing.end());
  slot(number).sent = true;
  slot(number).has_ready_event = has_ready_event;
}

template <typename Act>
auto NcclTransport::guarded(const Act& act) -> decltype(act()) {
  decltype(act()) outcome = [&]() -> decltype(act()) {
    HF_TRY(const NcclCommunicators::Calls calls, communicators_->enter());
    return act();
  }();
  // Outside the calls, which the stop must enter. Its own error is the end of this process.
  if (!outcome.ok()) HF_TRY_VOID(communicators_->stop_all(outcome.error().message, cuda_error_));
  return outcome;
}

Result<void> NcclTransport::send(Number number, std::span<const Outgoing> outgoing) {
  post(number, outgoing, /*has_ready_event=*/false);
  return outcome_of(advance());
}

// The event is recorded inside enter(), because the end of the communicators destroys it.
Result<void> NcclTransport::send_behind(Number number, std::span<const Outgoing> outgoing,
                                        DeviceQueue& queue) {
  post(number, outgoing, /*has_ready_event=*/true);
  return guarded([&]() -> Result<void> {
    queue.record(link_->ready[number % slot_count]);
    return outcome_of(move());
  });
}

Result<bool> NcclTransport::follow(Number number, DeviceQueue& queue) {
  HF_CHECK(number < next_ && slot(number).sent, "exchange {}", number);
  return guarded([&]() -> Result<bool> {
    if (number >= issued_ || (launching_ && number + 1 == issued_)) return false;
    if (number >= oldest_) queue.wait_for(link_->events[number % slot_count]);
    return true;
  });
}

Result<bool> NcclTransport::advance() {
  return guarded([this] { return move(); });
}

Result<bool> NcclTransport::move() {
  HF_TRY(const bool launched, finish_launch());
  HF_TRY(const bool finished, finish_exchanges());
  HF_TRY(const bool issued, issue());
  return launched || finished || issued;
}

Result<bool> NcclTransport::finish_launch() {
  if (oldest_ == issued_ || link_->comm == nullptr) return false;
  NcclResult state = NcclResult::success;
  const NcclResult result = library_->comm_state(link_->comm, state);
  if (result != NcclResult::success) return nccl_failed(oldest_, "ncclCommGetAsyncError", result);
  if (state == NcclResult::in_progress) return false;
  if (state != NcclResult::success) return nccl_failed(oldest_, "the communicator", state);
  if (!launching_) return false;
  launching_ = false;
  HF_TRY_VOID(record(issued_ - 1));
  return true;
}

Result<bool> NcclTransport::finish_exchanges() {
  const Number before = oldest_, launched = launching_ ? issued_ - 1 : issued_;
  for (; oldest_ < launched; ++oldest_) {
    if (slot(oldest_).empty()) continue;
    const CudaError error = library_->event_query(link_->events[oldest_ % slot_count]);
    if (cuda_error_class(error) == CudaErrorClass::not_ready) break;
    if (error != 0) return cuda_failed(oldest_, "cudaEventQuery", error);
  }
  return oldest_ > before;
}

Result<bool> NcclTransport::issue() {
  const Number before = issued_;
  while (!launching_ && issued_ < next_ && slot(issued_).sent) {
    if (!slot(issued_).empty()) {
      HF_TRY(const bool may_launch, communicators_->may_launch(*link_));
      if (!may_launch) break;  // another transport is launching, which need not be moved on for it
      HF_TRY_VOID(issue_group(issued_));
    }
    ++issued_;
    HF_TRY_VOID(outcome_of(finish_launch()));
  }
  return issued_ > before;
}

// The group is ended even when a call inside it failed: it belongs to this thread.
Result<void> NcclTransport::issue_group(Number number) {
  if (slot(number).has_ready_event) {
    const CudaError error = library_->stream_wait(link_->stream, link_->ready[number % slot_count]);
    if (error != 0) return cuda_failed(number, "cudaStreamWaitEvent", error);
  }
  const char* failed_call = nullptr;
  NcclResult failed = NcclResult::success;
  const auto note = [&](const char* call, NcclResult result) {
    const bool fine = result == NcclResult::success || result == NcclResult::in_progress;
    if (fine || failed_call != nullptr) return;
    failed_call = call;
    failed = result;
  };
  if (const NcclResult result = library_->group_start(); result != NcclResult::success) {
    return nccl_failed(number, "ncclGroupStart", result);
  }
  for (const Outgoing& message : slot(number).outgoing) {
    note("ncclSend", library_->send(message.source.data(), message.source.size(), message.peer, link_->comm,
                                    link_->stream));
  }
  for (const Incoming& message : slot(number).incoming) {
    note("ncclRecv", library_->receive(message.target.data(), message.target.size(), message.peer,
                                       link_->comm, link_->stream));
  }
  const NcclResult result = library_->group_end();
  note("ncclGroupEnd", result);
  if (failed_call != nullptr) return nccl_failed(number, failed_call, failed);
  communicators_->launching(*link_);
  launching_ = true;  // success or not: before 2.24 it could come before the group was on the stream
  return {};
}

Result<void> NcclTransport::record(Number number) {
  const CudaError error = library_->event_record(link_->events[number % slot_count], link_->stream);
  if (error != 0) return cuda_failed(number, "cudaEventRecord", error);
  return {};
}

Transport::Awaited NcclTransport::awaited() const {
  Awaited awaited{.number = oldest_};
  if (oldest_ == next_) return awaited;
  const Slot& slot_of = slot(oldest_);
  if (slot_of.incoming.size() == 1 && slot_of.outgoing.empty()) {
    awaited.peer = slot_of.incoming.front().peer;
    awaited.receiving = true;
  } else if (size_ == 2) {
    awaited.peer = 1 - rank_;
    awaited.receiving = !slot_of.incoming.empty();
  }
  return awaited;
}

void NcclTransport::abandon() {
  static_cast<void>(communicators_->stop_all(
      fmt::format("rank {} of {} gave up in {}", rank_, link_->name, describe(oldest_))));
}

std::string NcclTransport::describe(Number number) const {
  if (number >= next_) return fmt::format("exchange {}, which is not open", number);
  const Slot& described = slot(number);
  std::string text = fmt::format("exchange {}", number);
  if (!described.outgoing.empty()) text += fmt::format(", sending to {}", ranks_of(described.outgoing));
  if (!described.incoming.empty()) text += fmt::format(", receiving from {}", ranks_of(described.incoming));
  return text;
}

Error NcclTransport::nccl_failed(Number number, const char* call, NcclResult result) {
  cuda_error_ = result == NcclResult::unhandled_cuda_error ? library_->last_cuda_error() : 0;
  const std::string more = library_->last_error(link_->comm);
  return fail(
      ExitCode::communication,
      "NCCL failed on rank {} of {} ({}): {}: {}{}{}; where the run does not go on by itself, start it again",
      rank_, link_->name, describe(number), call, library_->text(result), more.empty() ? "" : ": ", more);
}

Error NcclTransport::cuda_failed(Number number, const char* call, CudaError error) {
  cuda_error_ = error;
  return fail(
      ExitCode::communication,
      "CUDA failed on rank {} of {} ({}): {}: {}; where the run does not go on by itself, start it again",
      rank_, link_->name, describe(number), call, library_->text(error));
}

}  // namespace holdfast::parallel
