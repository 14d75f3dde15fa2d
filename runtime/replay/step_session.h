// StepSession: a worker of a config on the ranks at hand, from a state on, which makes steps with no run around it. It takes no
// claim and has no guard, and writes no log, no save and no shared memory, so a run of the same directory may be training
// meanwhile. `holdfast replay` computes a recorded step with one, `holdfast kernel ab` has two of them side by side.
//
//   StepSession session(inputs);
//   HF_TRY_VOID(session.load_config(std::move(loaded)));
//   HF_TRY_VOID(session.make_worker(state));
//   HF_TRY_VOID(session.load_state(state));
//   HF_TRY(const StepOutcome outcome, session.step());
//
// All ranks call its functions together. Threads: that which makes it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/lineage.h"
#include "parallel/comm/communicator.h"
#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/elastic/join.h"
#include "runtime/integrity/op_checks.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"
#include "runtime/rank/transport_choice.h"
#include "runtime/train/step.h"
#include "runtime/train/worker.h"

namespace holdfast::replay {

// SessionInputs holds what a rank brings along; the referenced objects outlive the session.
struct SessionInputs {
  Env& env;
  FaultPoints& faults;
  Communicator& communicator;  // all ranks that compute
  std::string build;           // identity of the binary, which must be equal on all ranks
  int rank_on_host = 0;        // index among the ranks of this host
  // Receives sentences about what is done and how far it is; called on rank 0 alone.
  std::function<void(const std::string&)> say = {};
};

// SessionState says from which state a session goes on. The default: the initial weights, with whatever data and device.
struct SessionState {
  std::string checkpoint = {};                // directory, which was verified; empty: the initial weights
  Lineage lineage = {};                       // of the run, for the samples that its verdicts passed over
  std::string data_fingerprint = {};          // in hex, of the data that led there; empty: unknown
  std::string device = {}, device_plan = {};  // that computed it, as manifests have them; empty: unknown
};

class StepSession {
 public:
  explicit StepSession(const SessionInputs& inputs);

  // Takes the config, or the error with which this rank could not read it. It writes nothing beside its steps
  // (write_nothing()).
  Result<void> load_config(Result<LoadedConfig> loaded);
  // Opens the data and the device, and makes the worker; `with_checks`: and memory for checks(). Errors: data where they are
  // not those of the state; config, does_not_fit.
  Result<void> make_worker(const SessionState& state, bool with_checks = false);
  // Loads the state, and begins to read samples.
  Result<void> load_state(const SessionState& state);
  // Makes the next step. Unless it ends the steps, its update has been made and sent on its way.
  Result<StepOutcome> step();
  // Waits for the device, and returns the digest of the weights and moments that this rank owns.
  Digest state_digest();

  StepChecks* checks() { return checks_.get(); }  // null: not asked for
  const Config& config() const { return config_; }
  const DataSet& data() const { return *data_; }
  Worker& worker() { return *worker_; }
  Device& device() { return *device_; }
  Waiter waiter() const { return {inputs_.env, config_.parallel.timeout_ms}; }
  // Returns the first error of any rank.
  Result<void> agree(const Result<void>& mine) const;

 private:
  // StopSource of a process that no signal asks to save.
  class NeverStops final : public StopSource {
   public:
    bool stop_requested() override { return false; }
  };
  void say(const std::string& sentence) const {
    if (inputs_.communicator.rank() == 0 && inputs_.say) inputs_.say(sentence);
  }
  Result<void> check_data(const SessionState& state) const;
  Result<void> compare_devices(const SessionState& state);

  const SessionInputs inputs_;
  NeverStops never_stops_;
  Result<LoadedConfig> loaded_ = Error{};
  TrainInputs joined_;
  Config config_;
  std::shared_ptr<DataSet> data_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<StepChecks> checks_;
  JoinedTransport transport_;
  std::unique_ptr<Worker> worker_;
};

// Switches off all that a run writes or keeps beside its steps.
void write_nothing(Config& config);

}  // namespace holdfast::replay
