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

Result<NcclStart> NcclSession::begin(Communicator& control, const std::string& name) {
  Result<NcclStart> begun = prepare_start(control, name);
  if (!begun.ok()) static_cast<void>(abort_all(begun.error().message));
  return begun;
}

Result<std::unique_ptr<Transport>> NcclSession::make_transport(Communicator& control,
                                                               const std::string& name) {
  HF_TRY(NcclStart start, prepare_start(control, name));
  const Result<void> mine = wait_for(start);
  // Aborts at once: when this rank's sockets close, the others need not wait for their deadline. This rank
  // still waits for theirs.
  if (!mine.ok()) static_cast<void>(abort_all(mine.error().message));
  if (!mine.ok() && control.abandoned()) return mine.error();
  const Waiter patient(*env_, 2 * options_.connect_timeout_ms + options_.abort_timeout_ms);
  HF_TRY_VOID(agree_on_outcome(control, patient, mine, env_->host_name()));
  return std::move(start.transport);
}

Result<NcclStart> NcclSession::prepare_start(Communicator& control, const std::string& name) {
  const Waiter waiter(*env_, options_.connect_timeout_ms);
  HF_TRY(const NcclUniqueId id, invite(control, waiter));
  NcclLink& link = communicators_.add({.name = fmt::format("holdfast-e{}-{}", options_.epoch, name),
                                       .rank = control.rank(),
                                       .size = control.size()});
  // Agreed on before anybody starts NCCL, which would wait for the others until the deadline.
  HF_TRY_VOID(agree_on_outcome(control, waiter, prepare(link), env_->host_name()));
  return NcclStart{.control = &control, .link = &link, .id = id, .moved_ns = env_->monotonic_ns()};
}

Result<void> NcclSession::wait_for(NcclStart& start) {
  PollBackoff backoff(*env_, options_.connect_timeout_ms);
  while (true) {
    const std::int64_t before_ns = start.moved_ns;
    HF_TRY(const bool has_begun, has_started(start));
    HF_TRY(const bool is_ready, has_begun ? has_exchanged(start) : Result<bool>(false));
    if (is_ready) return {};
    if (start.moved_ns != before_ns) backoff.reset();
    static_cast<void>(backoff.pause());  // start.moved_ns has the deadline
  }
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
  for (std::vector<CudaEvent>* events : {&link.events, &link.ready}) {
    for (std::size_t i = 0; i < NcclTransport::slot_count; ++i) {
      CudaEvent event = nullptr;
      if (const CudaError error = library_->event_create(event); error != 0) {
        return cuda_failed("cudaEventCreate", error);
      }
      events->push_back(event);
    }
  }
  const std::size_t messages = static_cast<std::size_t>(link.size) + 1;
  if (const CudaError error = library_->allocate(&link.memory, messages * first_message_bytes); error != 0) {
    return cuda_failed("cudaMalloc", error);
  }
  return {};
}

bool NcclSession::is_late(const NcclStart& start) const {
  return env_->monotonic_ns() - start.moved_ns > options_.connect_timeout_ms * 1'000'000;
}

Result<void> NcclSession::initialise(NcclLink& link, const NcclUniqueId& id) {
  HF_TRY(const NcclCommunicators::Calls calls, communicators_.enter());
  const NcclResult result = library_->comm_init(
      link.comm,
      {.ranks = link.size, .id = id, .rank = link.rank, .name = link.name, .max_ctas = library_->max_ctas()});
  if (result == NcclResult::success || result == NcclResult::in_progress) return {};
  return nccl_failed(link, "ncclCommInitRankConfig", result);
}

// NCCL's own sockets wait without a limit, also for the dead: peers are looked for and the deadline is kept
// here, and the abort ends what still waits.
Result<bool> NcclSession::has_started(NcclStart& start) {
  NcclLink& link = *start.link;
  if (link.size == 1 || link.started) return true;
  HF_TRY_VOID(start.control->check_peers());
  if (link.comm == nullptr) HF_TRY_VOID(initialise(link, start.id));
  NcclResult state = NcclResult::in_progress;
  HF_TRY(const NcclCommunicators::Calls calls, communicators_.enter());
  const NcclResult result = library_->comm_state(link.comm, state);
  if (result != NcclResult::success) return nccl_failed(link, "ncclCommGetAsyncError", result);
  link.started = state == NcclResult::success;
  if (link.started) return true;
  if (state != NcclResult::in_progress) return nccl_failed(link, "the start of NCCL", state);
  if (!is_late(start)) return false;
  return fail(
      ExitCode::communication,
      "NCCL did not connect the {} ranks of {} within {} ms: one of them died or hangs, or they do not "
      "reach each other; its own output says more, and NCCL_DEBUG=INFO what NCCL tried",
      link.size, link.name, options_.connect_timeout_ms);
}

Result<bool> NcclSession::has_exchanged(NcclStart& start) {
  HF_TRY_VOID(start.control->check_peers());
  if (start.transport == nullptr) {
    start.transport = std::make_unique<NcclTransport>(communicators_, *start.link);
    start.moved_ns = env_->monotonic_ns();
    HF_TRY_VOID(begin_first_exchange(start));
  }
  Transport& transport = *start.transport;
  HF_TRY(const bool has_moved, transport.advance());
  if (transport.oldest() > start.first) return true;
  if (has_moved) {
    start.moved_ns = env_->monotonic_ns();
  } else if (is_late(start)) {
    return give_up_exchange(transport, Waiter(*env_, options_.connect_timeout_ms), "NCCL's first exchange");
  }
  return false;
}

// NCCL connects a pair when it first sends something: now, and not under the deadline of the first step. Also
// the proof that every pair can. The content of the messages does not matter.
Result<void> NcclSession::begin_first_exchange(NcclStart& start) {
  const NcclLink& link = *start.link;
  auto* const memory = static_cast<std::byte*>(link.memory);
  std::vector<Transport::Incoming> incoming;
  std::vector<Transport::Outgoing> outgoing;
  for (int step = 1; step < link.size; ++step) {
    const int source = (link.rank - step + link.size) % link.size, target = (link.rank + step) % link.size;
    std::byte* const received = memory + (static_cast<std::size_t>(source) + 1) * first_message_bytes;
    incoming.push_back({.target = {received, first_message_bytes}, .peer = source});
    outgoing.push_back({.source = {memory, first_message_bytes}, .peer = target});
  }
  HF_TRY(start.first, start.transport->open(incoming));
  return start.transport->send(start.first, outgoing);
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
