// A rank runs on the processors that are near its GPU, on made-up hosts.
#include "runtime/rank/processor_binding.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/core/json.h"
#include "runtime/os/processes.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Files = std::map<std::string, std::string>;

// A host whose files of the kernel are these, and whose threads may run on `processors` until they are bound. A rank is
// a thread here, and so is what it binds.
class MadeUpHost final : public ForwardingEnv {
 public:
  MadeUpHost(Files files, const std::string& processors)
      : ForwardingEnv(posix_env()), files_(std::move(files)), threads_(processors_of_list(processors)) {}
  Result<std::string> read_text(const std::string& path) override {
    if (!path.starts_with("/sys/bus/pci/") && !path.starts_with("/sys/devices/system/node"))
      return ForwardingEnv::read_text(path);
    const auto found = files_.find(path);
    if (found == files_.end()) return fail(ExitCode::data, "there is no {}", path);
    return found->second;
  }
  Processes& processes() override { return threads_; }
  int processor_count() override { return static_cast<int>(threads_.own_processors().size()); }
  std::vector<std::string> bound() { return threads_.bound(); }

 private:
  class Threads final : public Processes {
   public:
    explicit Threads(std::vector<int> all) : all_(std::move(all)) {}
    Result<std::unique_ptr<Process>> start(const ProcessStart& start) override {
      return posix_processes().start(start);
    }
    Result<std::unique_ptr<Process>> find(std::int64_t id) override { return posix_processes().find(id); }
    Result<std::optional<ProcessFacts>> look(std::int64_t id) override { return posix_processes().look(id); }
    std::vector<std::int64_t> list() override { return posix_processes().list(); }
    std::string own_namespace() override { return posix_processes().own_namespace(); }
    bool wait_any_ended(std::span<Process* const> processes, std::int64_t timeout_ms) override {
      return posix_processes().wait_any_ended(processes, timeout_ms);
    }
    std::vector<int> own_processors() override {
      const std::lock_guard guard(mutex_);
      const auto found = bound_.find(std::this_thread::get_id());
      return found == bound_.end() ? all_ : found->second;
    }
    Result<void> run_on(std::span<const int> processors) override {
      const std::lock_guard guard(mutex_);
      bound_[std::this_thread::get_id()] = {processors.begin(), processors.end()};
      return {};
    }
    std::vector<std::string> bound() {
      const std::lock_guard guard(mutex_);
      std::vector<std::string> lists;
      for (const auto& [thread, processors] : bound_) lists.push_back(processor_list(processors));
      std::ranges::sort(lists);
      return lists;
    }

   private:
    std::mutex mutex_;
    std::vector<int> all_;
    std::map<std::thread::id, std::vector<int>> bound_;
  };

  Files files_;
  Threads threads_;
};

// Two nodes of four processors and their siblings, and GPUs at the bus ids of the emulator's: the first on node 0, the
// second on node 1. The third node is memory without processors.
Files two_nodes() {
  const std::string gpus = "/sys/bus/pci/devices/e0e0:", nodes = "/sys/devices/system/node/";
  return {{gpus + "00:00.0/numa_node", "0\n"},
          {gpus + "00:00.0/local_cpulist", "0-3,8-11\n"},
          {gpus + "01:00.0/numa_node", "1\n"},
          {gpus + "01:00.0/local_cpulist", "4-7,12-15\n"},
          {nodes + "online", "0-2\n"},
          {nodes + "has_cpu", "0-1\n"},
          {nodes + "node1/cpulist", "4-7,12-15\n"}};
}
CudaFacts gpu_at(const std::string& bus) {
  CudaFacts gpu;
  gpu.pci_bus_id = "e0e0:" + bus + ":00.0";
  return gpu;
}
ProcessorPlan plan_of(const Files& files, const std::string& bus, const std::string& own) {
  MadeUpHost host(files, own);
  return plan_processors(near_gpu(host, gpu_at(bus)), processors_of_list(own));
}

TEST(ProcessorBinding, ListsAreThoseOfLinux) {
  EXPECT_EQ(processor_list(processors_of_list("0-2,5,7-8")), "0-2,5,7-8");
  EXPECT_THAT(processors_of_list("3,1-2,2"), ElementsAre(1, 2, 3));
  for (const char* wrong : {"", "x", "-", "1-", "-1", "5-3", "1-99999999", "4294967297"})
    EXPECT_THAT(processors_of_list(wrong), IsEmpty()) << wrong;
  EXPECT_EQ(processor_list({}), "");
}

TEST(ProcessorBinding, IsToTheNodeOfTheGpu) {
  const ProcessorPlan first = plan_of(two_nodes(), "00", "0-15");
  EXPECT_EQ(processor_list(first.processors), "0-3,8-11");
  EXPECT_EQ(first.description, "NUMA node 0 (0-3,8-11)");
  EXPECT_EQ(processor_list(plan_of(two_nodes(), "01", "0-15").processors), "4-7,12-15");
  Files without_list = two_nodes();
  without_list["/sys/bus/pci/devices/e0e0:01:00.0/local_cpulist"] = "\n";
  EXPECT_EQ(processor_list(plan_of(without_list, "01", "0-15").processors), "4-7,12-15")
      << "the node has it, too";
}

TEST(ProcessorBinding, OfTheUserStays) {
  const ProcessorPlan narrow = plan_of(two_nodes(), "01", "2-5");
  EXPECT_EQ(processor_list(narrow.processors), "4-5") << "those of the user that are near";
  EXPECT_EQ(narrow.description, "NUMA node 1 (4-5)");
  const ProcessorPlan wrong = plan_of(two_nodes(), "01", "0-3");
  EXPECT_THAT(wrong.processors, IsEmpty());
  EXPECT_EQ(wrong.description, "processors 0-3, on another NUMA node than the GPU");
  EXPECT_THAT(wrong.problem, HasSubstr("processors 0-3 alone"));
  EXPECT_THAT(wrong.problem, HasSubstr("e0e0:01:00.0 is on NUMA node 1 (processors 4-7,12-15)"));
  EXPECT_THAT(wrong.problem, HasSubstr("--bind-to none"));
}

TEST(ProcessorBinding, IsNoneWhereThereIsNothingToChoose) {
  Files one_node = two_nodes();
  one_node["/sys/devices/system/node/has_cpu"] = "0\n";
  for (const Files& files : {one_node, Files()}) {
    const ProcessorPlan plan = plan_of(files, "00", "0-7");
    EXPECT_THAT(plan.processors, IsEmpty());
    EXPECT_EQ(plan.description + plan.problem, "");
  }
  Files virtual_machine = two_nodes();
  virtual_machine["/sys/bus/pci/devices/e0e0:00:00.0/numa_node"] = "-1\n";
  virtual_machine["/sys/bus/pci/devices/e0e0:00:00.0/local_cpulist"] = "0-15\n";
  const ProcessorPlan unknown = plan_of(virtual_machine, "00", "0-15");
  EXPECT_THAT(unknown.processors, IsEmpty());
  EXPECT_EQ(unknown.description, "processors 0-15, because the NUMA node of the GPU is not known");
  EXPECT_EQ(unknown.problem, "");
}

class BoundRun : public TrainingTest {
 protected:
  BoundRun() {
    setenv("HOLDFAST_CUDA_MODULE", HF_BINARY_DIR "/bin/libholdfast_cuda_emulated.so", 1);
    setenv("EMULATED_GPUS", "2", 1);
  }
  ~BoundRun() override {
    unsetenv("HOLDFAST_CUDA_MODULE");
    unsetenv("EMULATED_GPUS");
  }
  // Returns the `processors` of the start event, or null.
  Json train_on(MadeUpHost& host, const std::string& run, const std::string& device, int ranks) {
    const RunEnd end =
        train({.run = run,
               .ranks = ranks,
               .overrides = {"device=" + device, "training.steps=1", "training.sequence_length=8",
                             "evaluation.every_steps=0", "optimizer.warmup_steps=1"}},
              host);
    EXPECT_EQ(end.code, ExitCode::done) << end.message;
    const std::string events = posix_env().read_text(run_directory(run) + "/events.jsonl").value();
    const Json start = Json::parse(events.substr(0, events.find('\n')));
    return start.contains("processors") ? start["processors"] : Json();
  }
};

TEST_F(BoundRun, EachRankIsNearItsOwnGpuAndTheStartSaysSo) {
  MadeUpHost host(two_nodes(), "0-15");
  const Json processors = train_on(host, "bound", "cuda", 4);
  EXPECT_THAT(host.bound(), ElementsAre("0-3,8-11", "0-3,8-11", "4-7,12-15", "4-7,12-15"));
  EXPECT_EQ(processors, Json({{"NUMA node 0 (0-3,8-11)", 2}, {"NUMA node 1 (4-7,12-15)", 2}}));
}

TEST_F(BoundRun, OnTheWrongNodeItGoesOnThere) {
  MadeUpHost host(two_nodes(), "4-7");
  testing::internal::CaptureStderr();
  const Json processors = train_on(host, "wrong", "cuda", 2);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(host.bound(), IsEmpty());
  EXPECT_EQ(processors,
            Json({{"NUMA node 1 (4-7)", 1}, {"processors 4-7, on another NUMA node than the GPU", 1}}));
  EXPECT_THAT(said, HasSubstr("processors 4-7 alone"));
}

TEST_F(BoundRun, OnTheCpuNothingChanges) {
  MadeUpHost host(two_nodes(), "0-15");
  EXPECT_TRUE(train_on(host, "cpu", "cpu", 2).is_null());
  EXPECT_THAT(host.bound(), IsEmpty());
}

}  // namespace
}  // namespace holdfast::test
