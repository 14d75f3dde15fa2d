#include "parallel/nccl/nccl_session.h"

#include <fmt/core.h>

#include "parallel/comm/agreement.h"
#include "parallel/nccl/nccl_transport.h"

namespace holdfast::parallel {
namespace {

constexpr std::size_t first_message_bytes = 16;

// Message that rank 0 sends to all ranks.
struct Invitation {
  std::uint64_t epoch = 0;
  NcclUniqueId id;
};

}  // namespace

NcclSession::NcclSession(NcclLibrary& library, Env& env, NcclOptions options)
    : library_(&library),
      env_(&env),
      options_(std::move(options)),
      communicators_(
          library, env,
          {.device = options_.device, .timeout_ms = options_.abort_timeout_ms, .die = options_.die}) {}

Result<std::unique_ptr<Transport>> NcclSession::connect(Communicator& control, const std::string& name) {
  Result<std::unique_ptr<Transport>> made = make_transport(control, name);
  if (!made.ok()) static_cast<void>(abort_all(made.error().message));
  return made;
}

Result<std::unique_ptr<Transport>> NcclSession::make_transport(Communicator& control,
                                                               const std::string& name) {
  const Waiter waiter(*env_, options_.connect_timeout_ms);
  const std::string host = env_->host_name();
  HF_TRY(const NcclUniqueId id, invite(control, waiter));
  NcclLink& link = communicators_.add({.name = fmt::format("holdfast-e{}-{}", options_.epoch, name),
                                       .rank = control.rank(),
                                       .size = control.size()});
  // Agreed on before anybody starts NCCL, which would wait for the others until the deadline.
  HF_TRY_VOID(agree_on_outcome(control, waiter, prepare(link), host));
  Result<std::unique_ptr<Transport>> mine = start(control, link, id, waiter);
  // Aborts at once: when this rank's sockets close, the others need not wait for their deadline. This rank
  // still waits for theirs.
  if (!mine.ok()) static_cast<void>(abort_all(mine.error().message));
  if (control.abandoned()) return mine;
  const Waiter patient = waiter.with_timeout(2 * options_.connect_timeout_ms + options_.abort_timeout_ms);
  HF_TRY_VOID(agree_on_outcome(control, patient, outcome_of(mine), host));
  return mine;
}

Result<NcclUniqueId> NcclSession::invite(Communicator& control, const Waiter& waiter) {
  const std::string host = env_->host_name();
  Invitation invitation{.epoch = options_.epoch, .id = {}};
  Result<void> mine;
  if (control.rank() == 0 && control.size() > 1) {
    const NcclResult result = library_->unique_id(invitation.id);
    if (result != NcclResult::success) mine = nccl_failed({}, "ncclGetUniqueId", result);
  }
  HF_TRY_VOID(agree_on_outcome(control, waiter, mine, host));
  HF_TRY_VOID(broadcast(control, waiter, std::as_writable_bytes(std::span(&invitation, 1))));
  if (invitation.epoch != options_.epoch) {
    mine = fail(ExitCode::communication, "it is in epoch {}, and rank 0 in epoch {}", options_.epoch,
                invitation.epoch);
  }
  HF_TRY_VOID(agree_on_outcome(control, waiter, mine, host));
  return invitation.id;
}

// Creates the stream, events and memory of a link before NCCL starts. A link of one rank needs none.
Result<void> NcclSession::prepare(NcclLink& link) {
  if (link.size == 1) return {};
  HF_TRY(const NcclCommunicators::Calls calls, communicators_.enter());
  if (const CudaError error = library_->set_device(options_.device); error != 0) {
    return cuda_failed("cudaSetDevice", error);
  }
  if (const CudaError error = library_->stream_create(link.stream); error != 0) {
    return cuda_failed("cudaStreamCreate", error);
  }
  for (std::size_t i = 0; i < NcclTransport::slot_count; ++i) {
    CudaEvent event = nullptr;
    if (const CudaError error = library_->event_create(event); error != 0) {
      return cuda_failed("cudaEventCreate", error);
    }
    link.events.push_back(event);
  }
  const std::size_t messages = static_cast<std::size_t>(link.size) + 1;
  if (const CudaError error = library_->allocate(&link.memory, messages * first_message_bytes); error != 0) {
    return cuda_failed("cudaMalloc", error);
  }
  return {};
}

// NCCL's own sockets wait without a limit, also for the dead: peers are looked for and the deadline is kept
// here, and the abort ends what still waits.
Result<void> NcclSession::initialise(Communicator& control, NcclLink& link, const NcclUniqueId& id) {
  if (link.size == 1) return {};
  PollBackoff backoff(*env_, options_.connect_timeout_ms);
  NcclResult state = NcclResult::in_progress;
  {
    HF_TRY(const NcclCommunicators::Calls calls, communicators_.enter());
    const NcclResult result = library_->comm_init(link.comm, {.ranks = link.size,
                                                              .id = id,
                                                              .rank = link.rank,
                                                              .name = link.name,
                                                              .max_ctas = library_->max_ctas()});
    if (result != NcclResult::success && result != NcclResult::in_progress) {
      return nccl_failed(link, "ncclCommInitRankConfig", result);
    }
  }
  while (state == NcclResult::in_progress) {
    HF_TRY_VOID(control.check_peers());
    {
      HF_TRY(const NcclCommunicators::Calls calls, communicators_.enter());
      const NcclResult result = library_->comm_state(link.comm, state);
      if (result != NcclResult::success) return nccl_failed(link, "ncclCommGetAsyncError", result);
      if (state != NcclResult::success && state != NcclResult::in_progress) {
        return nccl_failed(link, "the start of NCCL", state);
      }
    }
    if (state == NcclResult::in_progress && !backoff.pause()) {
      return fail(
          ExitCode::communication,
          "NCCL did not connect the {} ranks of {} within {} ms: one of them died or hangs, or they do not "
          "reach each other; its own output says more, and NCCL_DEBUG=INFO what NCCL tried",
          link.size, link.name, options_.connect_timeout_ms);
    }
  }
  HF_TRY(const NcclCommunicators::Calls calls, communicators_.enter());
  link.started = true;
  return {};
}

Result<std::unique_ptr<Transport>> NcclSession::start(Communicator& control, NcclLink& link,
                                                      const NcclUniqueId& id, const Waiter& waiter) {
  HF_TRY_VOID(initialise(control, link, id));
  auto transport = std::make_unique<NcclTransport>(communicators_, link);
  HF_TRY_VOID(exchange_first(*transport, link, waiter));
  return std::unique_ptr<Transport>(std::move(transport));
}

// NCCL connects a pair when it first sends something: now, and not under the deadline of the first step. Also
// the proof that every pair can. The content of the messages does not matter.
Result<void> NcclSession::exchange_first(Transport& transport, const NcclLink& link, const Waiter& waiter) {
  auto* const memory = static_cast<std::byte*>(link.memory);
  std::vector<Transport::Incoming> incoming;
  std::vector<Transport::Outgoing> outgoing;
  for (int step = 1; step < link.size; ++step) {
    const int source = (link.rank - step + link.size) % link.size, target = (link.rank + step) % link.size;
    std::byte* const received = memory + (static_cast<std::size_t>(source) + 1) * first_message_bytes;
    incoming.push_back({.target = {received, first_message_bytes}, .peer = source});
    outgoing.push_back({.source = {memory, first_message_bytes}, .peer = target});
  }
  HF_TRY(const Transport::Number number, transport.open(incoming));
  HF_TRY_VOID(transport.send(number, outgoing));
  return finish_exchanges(transport, waiter, number + 1, "NCCL's first exchange");
}

Error NcclSession::nccl_failed(const NcclLink& link, const char* call, NcclResult result) {
  const std::string more = library_->last_error(link.comm);
  return fail(ExitCode::communication, "NCCL failed{}: {}: {}{}{}; NCCL_DEBUG=INFO shows what it tried",
              link.name.empty() ? "" : " in " + link.name, call, library_->text(result),
              more.empty() ? "" : ": ", more);
}

Error NcclSession::cuda_failed(const char* call, CudaError error) {
  return fail(ExitCode::communication, "CUDA failed on device {}: {}: {}", options_.device, call,
              library_->text(error));
}

}  // namespace holdfast::parallel
