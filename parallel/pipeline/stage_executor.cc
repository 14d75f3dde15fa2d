#include "parallel/pipeline/stage_executor.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "parallel/comm/device_wait.h"

namespace holdfast::parallel {
namespace {

StagePosition position_of(const Action& action) {
  return {.chunk = action.chunk, .microbatch = action.microbatch};
}

// Records one wait as spans: what the executor waits for may change during the wait.
class WaitSpan {
 public:
  explicit WaitSpan(SpanRecorder* spans) : spans_(spans) {}
  ~WaitSpan() { end(); }
  WaitSpan(const WaitSpan&) = delete;
  WaitSpan& operator=(const WaitSpan&) = delete;
  bool on() const { return spans_ != nullptr && (spans_->on() || spans_->sums() != nullptr); }
  void is_for(const Span& about) {
    if (is_open_ && kind_ == about.kind) return;
    end();
    is_open_ = true;
    kind_ = about.kind;
    span_ = spans_->on() ? spans_->begin(about) : nullptr;
    if (spans_->sums() != nullptr) idle_ns_ = spans_->sums()->idle_ns();
  }

 private:
  void end() {
    if (!is_open_) return;
    if (span_ != nullptr) spans_->end(span_);
    if (spans_->sums() != nullptr) spans_->sums()->add(kind_, spans_->sums()->idle_ns() - idle_ns_);
  }

  SpanRecorder* spans_;
  bool is_open_ = false;
  SpanKind kind_ = SpanKind::count;
  Span* span_ = nullptr;
  std::int64_t idle_ns_ = 0;  // of the device at the begin
};

}  // namespace

void StageExecutor::Link::opened_as(Transport::Number number) {
  if (opened == 0) first = number;
  ++opened;
}

bool StageExecutor::Link::arrived(int message) const {
  if (message == none) return true;
  return message < opened && transport->received(first + index(message), 1 - transport->rank());
}

bool StageExecutor::Link::finished(int message) const {
  if (message == none) return true;
  return message < opened && transport->oldest() > first + index(message);
}

bool StageExecutor::Link::all_finished() const {
  return finished(static_cast<int>(messages.size()) - 1);
}

StageExecutor::StageExecutor(StageWork& work, Device& device, const StageLinks& links, const Waiter& waiter,
                             std::vector<Action> actions, std::vector<int> activation_buffers)
    : work_(&work),
      device_(&device),
      waiter_(waiter),
      actions_(std::move(actions)),
      buffers_(std::move(activation_buffers)),
      steps_(actions_.size()),
      tickets_(actions_.size()) {
  activations_in_.transport = links.activations_in;
  activations_out_.transport = links.activations_out;
  gradients_in_.transport = links.gradients_in;
  gradients_out_.transport = links.gradients_out;
  index_messages();
  index_places();
  for (Link* link : {&activations_in_, &activations_out_, &gradients_in_, &gradients_out_})
    link->spans.resize(link->messages.size());
}

void StageExecutor::record(SpanRecorder& spans, int first_microbatch) {
  spans_ = &spans;
  first_microbatch_ = first_microbatch;
}

bool StageExecutor::is_forward(int action) const {
  return actions_[index(action)].work == Work::forward;
}

bool StageExecutor::writes_weight_gradients(int action) const {
  const Work work = actions_[index(action)].work;
  return work == Work::backward || work == Work::backward_weight;
}

void StageExecutor::index_messages() {
  for (int i = 0; i < static_cast<int>(actions_.size()); ++i) {
    const Action& action = actions_[index(i)];
    const auto add = [&](Link& link) {
      HF_CHECK(link.transport != nullptr && link.transport->size() == 2, "action {} has no link", i);
      link.messages.push_back({.action = i});
      return static_cast<int>(link.messages.size()) - 1;
    };
    if (action.source != no_stage)
      steps_[index(i)].receives = add(is_forward(i) ? activations_in_ : gradients_in_);
    if (action.target != no_stage)
      steps_[index(i)].sends = add(is_forward(i) ? activations_out_ : gradients_out_);
  }
}

// Places come round by microbatch: who had each one before?
class StageExecutor::PlaceIndex {
 public:
  explicit PlaceIndex(std::span<const Action> actions) {
    for (const Action& action : actions) {
      microbatches_ = std::max(microbatches_, action.microbatch + 1);
      chunks_ = std::max(chunks_, action.chunk + 1);
    }
    for (std::vector<int>* of_pass : {&forwards_, &senders_, &last_})
      of_pass->resize(index(chunks_ * microbatches_), none);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const std::size_t pass = index(actions[i].chunk * microbatches_ + actions[i].microbatch);
      const Work work = actions[i].work;
      if (work == Work::forward) forwards_[pass] = static_cast<int>(i);
      if (work == Work::backward || work == Work::backward_input) senders_[pass] = static_cast<int>(i);
      last_[pass] = static_cast<int>(i);
    }
  }
  // The action of the microbatch so many before that of `of`, or none. That makes the same: activations, or
  // gradients that are sent on.
  int maker(const Action& of, int before) const {
    return find(of.work == Work::forward ? forwards_ : senders_, of, before);
  }
  int gradient_sender(const Action& of, int before) const { return find(senders_, of, before); }
  int last(const Action& of, int before) const { return find(last_, of, before); }

 private:
  int find(const std::vector<int>& of_pass, const Action& of, int before) const {
    if (of.microbatch < before) return none;
    return of_pass[index(of.chunk * microbatches_ + of.microbatch - before)];
  }
  int microbatches_ = 0, chunks_ = 0;
  std::vector<int> forwards_, senders_, last_;  // [chunk * microbatches + microbatch]
};

void StageExecutor::index_places() {
  const PlaceIndex places(actions_);
  for (Link* inbox : {&activations_in_, &gradients_in_}) {
    for (Message& message : inbox->messages) {
      const Action& action = actions_[index(message.action)];
      const int count = buffers_[index(action.chunk)] + 1;
      message.frees_slot = places.last(action, count);
      const int sender = places.gradient_sender(action, count);
      if (inbox == &gradients_in_ && sender != none) message.leaves_place = steps_[index(sender)].sends;
    }
  }
  // An output's place, and that of a gradient that does not arrive but is made where the model ends.
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Action& action = actions_[i];
    const bool forward = action.work == Work::forward;
    if (action.work == Work::backward_weight) continue;    // writes nothing that crosses
    if (!forward && steps_[i].receives != none) continue;  // its place was free before it arrived
    const int count = buffers_[index(action.chunk)] + (forward ? 0 : 1);
    if (const int before = places.maker(action, count); before != none)
      steps_[i].reuses_slot = steps_[index(before)].sends;
  }
}

Result<void> StageExecutor::run() {
  launched_ = 0;
  for (Link* link : {&activations_in_, &activations_out_, &gradients_in_, &gradients_out_})
    link->opened = link->ended = 0;
  const int count = static_cast<int>(actions_.size());
  for (int action = 0; action < count; ++action) {
    HF_TRY_VOID(wait_until([&] { return can_run(action); }, action));
    HF_TRY_VOID(run_action(action));
    tickets_[index(action)] = device_->ticket();
    ++launched_;
  }
  // Receives must finish, too: an exchange may be in use for a while after its bytes have arrived.
  const auto all_finished = [this] {
    return activations_in_.all_finished() && gradients_in_.all_finished() &&
           activations_out_.all_finished() && gradients_out_.all_finished();
  };
  return wait_until(all_finished, count - 1);
}

// Returns whether the gradient that a backward reads has arrived and the buffer that it writes is free.
bool StageExecutor::has_gradient(int action) const {
  const Step& step = steps_[index(action)];
  return gradients_in_.arrived(step.receives) && gradients_out_.finished(step.reuses_slot);
}

bool StageExecutor::can_run(int action) const {
  const Step& step = steps_[index(action)];
  if (is_forward(action))
    return activations_in_.arrived(step.receives) && activations_out_.finished(step.reuses_slot);
  return has_gradient(action) && (!writes_weight_gradients(action) ||
                                  work_->can_write_weight_gradients(position_of(actions_[index(action)])));
}

Result<void> StageExecutor::run_action(int index_of_action) {
  const Action& action = actions_[index(index_of_action)];
  if (action.work == Work::forward) return work_->launch_forward(position_of(action));
  const Action* const before = index_of_action == 0 ? nullptr : &action - 1;
  const bool follows_forward = before != nullptr && before->work == Work::forward &&
                               before->chunk == action.chunk && before->microbatch == action.microbatch;
  return work_->launch_backward(
      position_of(action),
      {.work = action.work, .follows_forward = follows_forward, .completes_lane = action.completes_lane});
}

bool StageExecutor::is_done(int action) const {
  return action == none || (action < launched_ && device_->reached(tickets_[index(action)]));
}

bool StageExecutor::slot_is_free(const Message& message) const {
  return is_done(message.frees_slot) && gradients_out_.finished(message.leaves_place);
}

Result<bool> StageExecutor::post(Link& inbox) {
  bool moved = false;
  while (inbox.opened < static_cast<int>(inbox.messages.size())) {
    const Message& message = inbox.messages[index(inbox.opened)];
    if (!slot_is_free(message) || !inbox.transport->can_open()) break;
    const StagePosition position = position_of(actions_[index(message.action)]);
    const bool forward = is_forward(message.action);
    const Transport::Incoming incoming{
        .target = forward ? work_->input(position) : work_->output_gradient(position),
        .peer = 1 - inbox.transport->rank()};
    HF_TRY(const Transport::Number number, inbox.transport->open(std::span(&incoming, 1)));
    HF_TRY_VOID(inbox.transport->send(number, {}));
    inbox.opened_as(number);
    note_opened(inbox, forward ? SpanKind::receive_activation : SpanKind::receive_gradient,
                incoming.target.size());
    moved = true;
  }
  return moved;
}

Result<bool> StageExecutor::send(Link& outbox) {
  bool moved = false;
  while (outbox.opened < static_cast<int>(outbox.messages.size())) {
    const Message& message = outbox.messages[index(outbox.opened)];
    if (!is_done(message.action) || !outbox.transport->can_open()) break;
    const StagePosition position = position_of(actions_[index(message.action)]);
    const bool forward = is_forward(message.action);
    const Transport::Outgoing outgoing{
        .source = forward ? work_->output(position) : work_->input_gradient(position),
        .peer = 1 - outbox.transport->rank()};
    HF_TRY(const Transport::Number number, outbox.transport->open({}));
    HF_TRY_VOID(outbox.transport->send(number, std::span(&outgoing, 1)));
    outbox.opened_as(number);
    note_opened(outbox, forward ? SpanKind::send_activation : SpanKind::send_gradient,
                outgoing.source.size());
    moved = true;
  }
  return moved;
}

Result<bool> StageExecutor::advance() {
  bool moved = false;
  const auto note = [&moved](const Result<bool>& step) {
    if (step.ok()) moved |= *step;
    return outcome_of(step);
  };
  for (Link* outbox : {&activations_out_, &gradients_out_}) HF_TRY_VOID(note(send(*outbox)));
  for (Link* inbox : {&activations_in_, &gradients_in_}) HF_TRY_VOID(note(post(*inbox)));
  for (Link* link : {&activations_in_, &activations_out_, &gradients_in_, &gradients_out_}) {
    if (link->transport != nullptr) HF_TRY_VOID(note(link->transport->advance()));
  }
  HF_TRY_VOID(note(work_->advance()));
  note_ended();
  return moved;
}

// Returns the ticket of the work that something waits for: the next part to be sent, else everything.
Device::Ticket StageExecutor::next_ticket() {
  Device::Ticket next = device_->ticket();
  for (const Link* outbox : {&activations_out_, &gradients_out_}) {
    if (outbox->opened == static_cast<int>(outbox->messages.size())) continue;
    const int action = outbox->messages[index(outbox->opened)].action;
    if (action < launched_) next = std::min(next, tickets_[index(action)]);
  }
  return next;
}

template <typename Done>
Result<void> StageExecutor::wait_until(const Done& done, int action) {
  PollBackoff backoff(waiter_);
  WaitSpan wait(spans_);
  while (!done()) {
    if (wait.on()) {
      const Action& held_up = actions_[index(action)];
      wait.is_for({.kind = awaited(action),
                   .chunk = static_cast<std::int16_t>(held_up.chunk),
                   .microbatch = first_microbatch_ + held_up.microbatch});
    }
    HF_TRY(const bool moved, advance());
    const Device::Ticket next = next_ticket();
    const bool computing = !device_->reached(next) || holds_up_messages(*device_);
    if (moved || computing) backoff.reset();
    if (moved) continue;
    if (computing) {
      device_->wait(device_->reached(next) ? device_->ticket() : next, device_poll_us);
    } else if (!backoff.pause([&] { return awaited_message(action); })) {
      return timed_out(action);
    }
  }
  return {};
}

Awaited StageExecutor::awaited_message(int action) const {
  const SpanKind kind = awaited(action);
  const Link* link = nullptr;
  if (kind == SpanKind::wait_activation) link = &activations_in_;
  if (kind == SpanKind::wait_gradient) link = &gradients_in_;
  if (kind == SpanKind::wait_send) {
    const bool activations_left =
        activations_out_.transport == nullptr || activations_out_.finished(activations_out_.opened - 1);
    link = activations_left ? &gradients_out_ : &activations_out_;
  }
  if (link == nullptr || link->transport == nullptr) return {.operation = title_of(kind)};
  return {.operation = title_of(kind),
          .peer = link->transport->global_rank(1 - link->transport->rank()),
          .number = static_cast<std::uint32_t>(link->transport->oldest())};
}

// Returns what an action that cannot run waits for, or what the end of the run waits for.
SpanKind StageExecutor::awaited(int action) const {
  if (launched_ > action) return SpanKind::wait_send;
  const Step& step = steps_[index(action)];
  if (is_forward(action))
    return activations_in_.arrived(step.receives) ? SpanKind::wait_send : SpanKind::wait_activation;
  if (!gradients_in_.arrived(step.receives)) return SpanKind::wait_gradient;
  return has_gradient(action) ? SpanKind::wait_lanes : SpanKind::wait_send;
}

// The message that was opened last.
void StageExecutor::note_opened(Link& link, SpanKind kind, std::size_t bytes) {
  if (spans_ == nullptr || !spans_->on()) return;
  const int message = link.opened - 1;
  const Action& action = actions_[index(link.messages[index(message)].action)];
  link.spans[index(message)] = spans_->begin({.kind = kind,
                                              .chunk = static_cast<std::int16_t>(action.chunk),
                                              .microbatch = first_microbatch_ + action.microbatch,
                                              .peer = link.transport->global_rank(1 - link.transport->rank()),
                                              .bytes = bytes});
}

void StageExecutor::note_ended() {
  if (spans_ == nullptr || !spans_->on()) return;
  for (Link* link : {&activations_in_, &gradients_in_}) {
    for (; link->ended < link->opened && link->arrived(link->ended); ++link->ended)
      spans_->end(link->spans[index(link->ended)]);
  }
  for (Link* link : {&activations_out_, &gradients_out_}) {
    for (; link->ended < link->opened && link->finished(link->ended); ++link->ended)
      spans_->end(link->spans[index(link->ended)]);
  }
}

Error StageExecutor::timed_out(int index_of_action) {
  const Action& action = actions_[index(index_of_action)];
  const bool held_up = launched_ == index_of_action && writes_weight_gradients(index_of_action);
  if (held_up && has_gradient(index_of_action)) return work_->give_up();
  int rank = -1;
  std::string neighbours;
  for (Link* link : {&activations_in_, &gradients_in_, &activations_out_, &gradients_out_}) {
    if (link->transport == nullptr) continue;
    rank = link->transport->global_rank(link->transport->rank());
    const std::string peer =
        fmt::format("rank {}", link->transport->global_rank(1 - link->transport->rank()));
    if (neighbours.find(peer) == std::string::npos) neighbours += (neighbours.empty() ? "" : " or ") + peer;
    link->transport->abandon();
  }
  return fail(ExitCode::communication,
              "rank {} waited {} ms in the pipeline, at the {} of microbatch {}: {} or its host hangs or is "
              "unreachable; "
              "look at its output; where the run does not go on by itself, start it again",
              rank, waiter_.timeout_ms(), action.work == Work::forward ? "forward" : "backward",
              action.microbatch, neighbours);
}

}  // namespace holdfast::parallel
