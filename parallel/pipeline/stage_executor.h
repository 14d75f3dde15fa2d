// StageExecutor runs one stage's list of a schedule (schedule.h): it launches each action when its input has
// arrived, in the order of the list, and sends each result as soon as the device has computed it. It knows
// nothing of models: StageWork launches, and says where the buffers are.
//
// Each direction between two neighbours is a Transport of these two ranks (transport.h), a message one
// exchange. Messages of one direction are in the order of the receiver's actions, which is that of the
// sender's (tests/support/schedule_check.h). Receives are posted as soon as their buffer is free.
//
// A backward in two parts sends its gradient with the first one; what the second one reads stays in its
// buffer until it is done.
//
// No deadlock: a schedule that the checker passed runs with receives that block and sends that do not. Here a
// send is held up only by a receiver without a free buffer. The receiver has one more than the microbatches
// that its schedule keeps at once, so the action that frees a buffer does not come after the one that waits;
// the checker counts these buffers.
//
// Threads: one thread calls it. Errors: ExitCode::communication, and the transports are abandoned. Nothing is
// allocated after construction.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "parallel/comm/transport.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/device/device.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::parallel {

// One microbatch in one chunk of the stage.
struct StagePosition {
  int chunk = 0;
  int microbatch = 0;
};

struct BackwardLaunch {
  Work work = Work::backward;    // or backward_input, or backward_weight
  bool follows_forward = false;  // the previous action was the forward of this microbatch
  bool completes_lane = false;   // Action::completes_lane
};

// Computations of a stage. Launches return at once.
class StageWork {
 public:
  virtual ~StageWork() = default;
  virtual Result<void> launch_forward(StagePosition position) = 0;
  virtual Result<void> launch_backward(StagePosition position, const BackwardLaunch& launch) = 0;
  // Returns whether the memory of the weight gradients that this backward (whole or of weights alone) writes
  // is free; advance() works on it. Not called for a backward of inputs alone, which writes none.
  virtual bool can_write_weight_gradients(StagePosition position) = 0;

  // Returns the buffer of a tensor that crosses to a neighbour. The buffers of input(), output_gradient() and
  // input_gradient() are used again after one more microbatch than activation_buffers() has, those of
  // output() after that many. The gradients of input and output share one buffer where backward works in
  // place, and have two where it is split: backward_weight reads that of the output once more.
  virtual std::span<std::byte> input(StagePosition position) = 0;
  virtual std::span<std::byte> output(StagePosition position) = 0;
  virtual std::span<std::byte> output_gradient(StagePosition position) = 0;
  virtual std::span<std::byte> input_gradient(StagePosition position) = 0;

  // Called when nothing moved for the waiter's timeout and a backward waits for can_write_weight_gradients()
  // alone. Gives up the pending operation, and returns an error that names it.
  virtual Error give_up() = 0;

  // Called while the executor waits: advances other communication. Returns whether anything moved.
  virtual Result<bool> advance() = 0;
};

// Transports to the stages before and after, in a ring when there are several chunks; null where there is
// none.
struct StageLinks {
  Transport* activations_in = nullptr;   // from the stage before
  Transport* activations_out = nullptr;  // to the stage after
  Transport* gradients_in = nullptr;     // from the stage after
  Transport* gradients_out = nullptr;    // to the stage before
};

class StageExecutor {
 public:
  // Makes the executor for the actions of one stage, forwards alone (an evaluation) or with their backwards.
  // Arguments passed by reference outlive it.
  StageExecutor(StageWork& work, Device& device, const StageLinks& links, const Waiter& waiter,
                std::vector<Action> actions, std::vector<int> activation_buffers);

  // Runs all actions. When it returns, all are launched and all messages are sent.
  Result<void> run();
  // Sends finished results, posts receives and advances them. A launch that waits for something else calls
  // it, so that no neighbour waits for the launch. Returns whether anything moved.
  Result<bool> advance();
  // Records waits, sends and receives in `spans` from the next run on; `spans` outlives this object.
  // Microbatches are counted from `first_microbatch`.
  void record(SpanRecorder& spans, int first_microbatch);

 private:
  static constexpr int none = -1;

  // Dependencies of one action, derived from the list; indices of actions and messages.
  struct Step {
    int receives = none;  // message of the inbox of its direction
    int sends = none;
    int reuses_slot = none;  // earlier message that was sent from its output buffer
  };
  struct Message {
    int action = none;        // action that produces or reads it
    int frees_slot = none;    // inbox: the action that last used its buffer
    int leaves_place = none;  // inbox: the outgoing gradient message that left from its buffer
  };
  // One direction of a link.
  struct Link {
    Transport* transport = nullptr;
    std::vector<Message> messages;  // of one run
    Transport::Number first = 0;
    int opened = 0;
    std::vector<Span*> spans;                  // by message; null where none is recorded
    int ended = 0;                             // number of spans that have ended
    void opened_as(Transport::Number number);  // records the number of the next message
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
  bool slot_is_free(const Message& message) const;
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

}  // namespace holdfast::parallel
