// Workers without a run around them: D ranks as threads of this process, each with its own device and the
// same resolved config, ready for run_step().
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/collectives.h"
#include "parallel/local/local_communicator.h"
#include "runtime/config/loader.h"
#include "runtime/run/hardware_record.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_layout.h"
#include "runtime/save/save.h"
#include "runtime/train/step.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {

// Returns the config of a model of two layers that trains for 100 steps.
inline Config two_layers(int lanes) {
  Config config;
  config.model.layers = 2;
  config.model.heads = 2;
  config.model.width = 32;
  config.training.steps = 100;
  config.training.sequence_length = 32;
  config.training.microbatch_size = 2;
  config.parallel.lanes = lanes;
  return config;
}

class WorkerRig {
 public:
  // `config` is resolved here, for `ranks`. Its data is a made-up text, its run directory an empty one. The
  // workers use `env`.
  WorkerRig(Config config, int ranks, Env& env = posix_env())
      : env_(env), config_(std::move(config)), ranks_(ranks) {
    std::string text;
    for (int i = 0; text.size() < 200'000; ++i) text += fmt::format("line {} says {:x};\n", i, i * 7919);
    config_.run.directory = directory_.path();
    config_.data.sources = {{.path = directory_ / "train.txt"}};
    EXPECT_TRUE(posix_env().replace_text(config_.data.sources.front().path, text).ok());
    hardware_.resize(static_cast<std::size_t>(ranks));
    const Result<void> resolved = resolve_config(config_, 256);
    EXPECT_TRUE(resolved.ok()) << resolved.error().message;
  }

  const Config& config() const { return config_; }
  // Arms fault points, as HOLDFAST_FAULTS does.
  void arm(std::string faults) { faults_ = std::move(faults); }
  // Findings of the steps that run() makes, as each rank has noted them.
  const std::vector<HardwareRecord>& hardware() const { return hardware_; }

  using Body = std::function<Result<void>(Worker&)>;
  // body(worker) on every rank, with initial weights and a running loader. `observer` is the devices'.
  void run(const Body& body, const std::function<void(OpId)>& observer = {}) {
    run_on([&] { return make_cpu_device({.threads = 1, .observer = observer}); }, body);
  }
  // On devices of the caller's.
  using Nccl = std::function<std::unique_ptr<NcclLibrary>()>;
  void run_on(const std::function<std::unique_ptr<Device>()>& make_device, const Body& body,
              const Nccl& make_nccl = {}) {
    const Result<void> outcome = run_local_ranks(ranks_, [&](Communicator& communicator) -> Result<void> {
      HF_TRY(const std::unique_ptr<FaultPoints> faults,
             FaultPoints::parse(faults_, communicator.rank(), env_));
      HF_TRY(std::shared_ptr<DataSet> data,
             DataSet::open(posix_env(), config_.data.sources, config_.training.sequence_length));
      const std::unique_ptr<Device> device = make_device();
      const std::unique_ptr<NcclLibrary> nccl = make_nccl ? make_nccl() : nullptr;
      SampleLog ledger(env_, RunPaths{config_.run.directory}.ledger(communicator.rank()));
      HF_TRY(const std::unique_ptr<Worker> worker,
             Worker::create({.rank = {{.env = env_,
                                       .faults = *faults,
                                       .communicator = communicator,
                                       .ranks_on_host = ranks_},
                                      *device,
                                      config_,
                                      mesh_of(config_, ranks_),
                                      std::nullopt,
                                      &hardware_[static_cast<std::size_t>(communicator.rank())]},
                             .data = data,
                             .nccl = nccl.get(),
                             .ledger = config_.data.ledger ? &ledger : nullptr}));
      HF_TRY_VOID(initialize_weights(worker->state_view()));
      HF_TRY_VOID(worker->start_loader());
      HF_TRY_VOID(body(*worker));
      HF_TRY_VOID(worker->parameter_gather().finish());  // of the last step
      return barrier(worker->rank().communicator,
                     worker->rank().waiter);  // who leaves first takes its memory along
    });
    EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  }

 private:
  Env& env_;
  TemporaryDirectory directory_;
  Config config_;
  int ranks_;
  std::string faults_;
  std::vector<HardwareRecord> hardware_;  // by rank
};

}  // namespace holdfast::test
