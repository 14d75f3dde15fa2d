// StageExecutor: runs one stage's list of a schedule (schedule.h): launches each action when what it reads
// has arrived, in the order of the list, and passes on what it makes as soon as the device has made it. It
// knows nothing of models: StageWork launches, and says where things lie.
//
// Each direction between two neighbours is a Transport of these two ranks (transport.h), a message one
// exchange. Messages of one direction are in the order of the receiver's actions, which is that of the
// sender's (schedule_check.h). Receives are posted as soon as their place is free.
//
// A backward in two parts sends its gradient with the first one; what the second one reads stays in its place
// until it is done.
//
// No deadlock: a schedule that the checker passed runs with receives that block and sends that do not. Here a
// send is held up only by a receiver without a free place. It has one more than the microbatches that its
// schedule keeps at once, so the action that frees one does not stand behind the one that waits; the checker
// counts these places.
//
// Threads: one thread calls it. Errors: ExitCode::communication, and the transports are abandoned. Nothing is
// allocated after construction.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "parallel/comm/transport.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::inline parallel {

// One microbatch in one chunk of the stage.
struct StagePosition {
  int chunk = 0;
  int microbatch = 0;
};

struct BackwardLaunch {
  Work work = Work::backward;    // or backward_input, or backward_weight
  bool follows_forward = false;  // the action before it was the forward of the same microbatch
  bool completes_lane = false;   // Action::completes_lane
};

// What a stage computes. Launches return at once.
class StageWork {
 public:
  virtual ~StageWork() = default;
  virtual Result<void> launch_forward(StagePosition position) = 0;
  virtual Result<void> launch_backward(StagePosition position, const BackwardLaunch& launch) = 0;
  // Whether the weight gradients may be written that this backward writes, whole or of weights alone;
  // advance() works on it. One of inputs alone writes none, and is not asked about.
  virtual bool can_write_weight_gradients(StagePosition position) = 0;

  // Where the parts lie that cross to a neighbour. Places of input(), output_gradient() and input_gradient()
  // come round after one more microbatch than activation_buffers() has, those of output() after that many.
  // The gradients of input and output are one place where backward works in place, and two where it is split:
  // that of the output is read once more by backward_weight.
  virtual std::span<std::byte> input(StagePosition position) = 0;
  virtual std::span<std::byte> output(StagePosition position) = 0;
  virtual std::span<std::byte> output_gradient(StagePosition position) = 0;
  virtual std::span<std::byte> input_gradient(StagePosition position) = 0;

  // Nothing moved for the waiter's timeout, and a backward waits for can_write_weight_gradients() alone:
  // gives up what it waits for, and says what that is.
  virtual Error give_up() = 0;

  // Called while the executor waits: moves other communication on. Whether anything moved.
  virtual Result<bool> advance() = 0;
};

// The stage before and the stage after, in a ring when there are several chunks; null where there is none.
struct StageLinks {
  Transport* activations_in = nullptr;   // from the stage before
  Transport* activations_out = nullptr;  // to the stage after
  Transport* gradients_in = nullptr;     // from the stage after
  Transport* gradients_out = nullptr;    // to the stage before
};

class StageExecutor {
 public:
  // Of the actions of one stage, forwards alone (an evaluation) or with their backwards. What is passed by
  // reference outlives it.
  StageExecutor(StageWork& work, Device& device, const StageLinks& links, const Waiter& waiter,
                std::vector<Action> actions, std::vector<int> activation_buffers);

  // All actions are launched, and all that was to be sent is sent, when it returns.
  Result<void> run();
  // For a launch that waits for something else meanwhile, so that no neighbour waits for it: sends what is
  // made, posts receives, moves them on. Whether anything moved.
  Result<bool> advance();
  // From the next run on: what it waits for, sends and receives goes to `spans`, which outlives it,
  // microbatches counted from `first_microbatch`.
  void record(SpanRecorder& spans, int first_microbatch);

 private:
  static constexpr int none = -1;

  // What follows from the list for one action; indices of actions and messages.
  struct Step {
    int receives = none;  // message of the inbox of its direction
    int sends = none;
    int reuses_place = none;  // the message that left from where it writes, before
  };
  struct Message {
    int action = none;        // that makes it, or reads it
    int frees_place = none;   // an inbox's: the action that was the last to use its place before
    int leaves_place = none;  // and the message of the outbox of gradients that left from there
  };
  // One direction of a link.
  struct Link {
    Transport* transport = nullptr;
    std::vector<Message> messages;  // of a run
    Transport::Number first = 0;
    int opened = 0;
    std::vector<Span*> spans;                  // of the messages, null where none is recorded
    int ended = 0;                             // so many of them
    void opened_as(Transport::Number number);  // the next message
    bool arrived(int message) const;
    bool finished(int message) const;
    bool all_finished() const;
  };

  class PlaceIndex;

  void index_messages();
  void index_places();
  bool is_forward(int action) const;
  bool writes_weight_gradients(int action) const;
  Result<void> run_action(int action);
  bool has_gradient(int action) const;
  bool can_run(int action) const;
  Device::Ticket next_ticket();
  template <typename Done>
  Result<void> wait_until(const Done& done, int action);
  bool is_done(int action) const;  // on the device
  bool place_is_free(const Message& message) const;
  Result<bool> post(Link& inbox);
  Result<bool> send(Link& outbox);
  Error timed_out(int action);
  SpanKind awaited(int action) const;
  Awaited awaited_message(int action) const;
  void note_opened(Link& link, SpanKind kind, std::size_t bytes);
  void note_ended();

  StageWork* work_;
  Device* device_;
  Waiter waiter_;
  std::vector<Action> actions_;
  std::vector<int> buffers_;  // by chunk
  std::vector<Step> steps_;   // by action, as the tickets
  std::vector<Device::Ticket> tickets_;
  Link activations_in_, activations_out_, gradients_in_, gradients_out_;
  int launched_ = 0;  // actions of this run
  SpanRecorder* spans_ = nullptr;
  int first_microbatch_ = 0;
};

}  // namespace holdfast::inline parallel
