// A world behind NcclLibrary without a GPU: ranks are threads of one process, device memory is host memory,
// and calls hang, fail, are slow and end late as a test asks.
//
// Messages may lie in an emulated device's memory (tests/cuda_emulator), which is closed to the host; the
// double opens it for itself while it moves them. Its events are the emulator's, so that its streams and an emulated
// device wait for each other as those of one GPU do; but its streams go on only while somebody asks about one.
//
// It is as strict as NCCL may be: what lies on a stream runs in order, a message moves only while the groups
// of both ends are first on their streams, and a group ends when all its messages have moved. So an order of
// issuing that could deadlock does. What breaks a rule of NCCL or of CUDA is written down: violations().
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/nccl_library.h"
#include "tests/cuda_emulator/event.h"

namespace holdfast::test {

class NcclDouble;

// What the ranks share. Outlives their doubles.
class NcclWorld {
 public:
  std::vector<std::string> violations();
  int handles_left();                     // live_handles() of the doubles that are gone
  std::set<std::string> names();          // of all communicators that were asked for
  std::map<std::string, int> max_ctas();  // the limit of each of them, by name
  std::map<std::string, int> messages();  // that have arrived in each of them, by name
  std::vector<std::string>
  ends();  // "revoke RANK NAME", "abort RANK NAME", in the order in which they were done
  // From now on a rank breaks a rule where it frees memory that a kernel of a peer that lives may still use: one that
  // is on a stream of that peer, with a message to or from this rank, and was not revoked.
  void watch_freed_memory();

 private:
  friend class NcclDouble;
  struct Message {
    const void* source = nullptr;  // of a send
    void* target = nullptr;        // of a receive
    std::size_t bytes = 0;
    int peer = 0;
    bool moved = false;
  };
  struct Comm;
  struct Point {  // that an event reaches
    EmulatedEvent* event = nullptr;
    std::uint64_t count = 0;
    bool is_reached() const { return event->has_reached(count); }
  };
  struct Group {  // on a stream
    Comm* comm = nullptr;
    std::vector<Message> messages;
    std::vector<Point> after;  // what it waits for
    bool launched = false;
    std::chrono::steady_clock::time_point starts;
  };
  struct Stream {
    NcclDouble* owner = nullptr;
    std::deque<Group> groups;
    std::uint64_t enqueued = 0, completed = 0;
    std::vector<Point> awaited;  // by the next group
    struct Mark {
      std::uint64_t after = 0;  // so many groups of the stream
      Point point;
    };
    std::deque<Mark> marks;  // of recorded events, in order
  };
  struct Clique {
    int size = 0;
    std::vector<Comm*> ranks;
    int joined = 0;
  };
  struct Comm {
    NcclDouble* owner = nullptr;
    Clique* clique = nullptr;
    int rank = 0;
    std::string name;
    bool aborted = false, abort_asked = false, revoked = false;
    int revoke_polls_left = 0;
    int launch_polls_left = 0;
    Stream* launching = nullptr;  // whose last group is not launched yet
    std::atomic<int> callers = 0;
  };

  void progress();
  bool move_messages(Stream& stream);
  void reach_marks(Stream& stream);
  Group* first_of(const Comm& comm);
  void violated(const std::string& text) { violations_.push_back(text); }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::array<char, 128>, Clique> cliques_;
  std::deque<Comm> comms_;
  std::deque<Stream> streams_;
  std::deque<EmulatedEvent> events_;
  std::vector<std::string> violations_, ends_;
  std::set<std::string> names_;
  std::map<std::string, int> max_ctas_;
  int ids_ = 0, handles_left_ = 0;
  std::map<std::string, int> messages_;
  bool watches_freed_memory_ = false;
};

// The NCCL and CUDA of one rank's process.
class NcclDouble final : public NcclLibrary {
 public:
  explicit NcclDouble(NcclWorld& world, int version = 22809) : world_(&world), version_(version) {}
  ~NcclDouble() override;

  // What goes wrong. From any thread, at any time.
  void die();     // its kernels stop where they are, and nobody is told
  void vanish();  // dies with its process, so nobody looks at what an emulated device computes on, either
  void fail_next(const std::string& call, int code);   // "ncclSend", "cudaEventQuery", ...: once
  void set_state(NcclResult state, std::string text);  // what NCCL's network code finds out later
  void set_cuda_error(CudaError error);                // of every CUDA call from now on
  void never_start();                                  // communicators stay in progress
  void never_start(const std::string& name);           // those of this name
  void slow_launch(int polls);                         // groups are in progress for so many polls
  void slow_groups(std::chrono::milliseconds delay);   // kernels start late
  void hold_completions(bool hold);                    // events and streams stay busy, done or not
  void block(const std::string& call);                 // from now on it does not come back, before ...
  void release();                                      // ... this
  int blocked();                                       // calls that hang now
  int live_handles();  // communicators, streams, events and memory that were not given back

  int version() const override { return version_; }
  NcclResult unique_id(NcclUniqueId& id) override;
  NcclResult comm_init(NcclComm& comm, const NcclCommConfig& config) override;
  NcclResult comm_state(NcclComm comm, NcclResult& state) override;
  bool can_revoke() const override { return version_ >= version_revoke; }
  NcclResult comm_revoke(NcclComm comm) override;
  NcclResult comm_abort(NcclComm comm) override;
  NcclResult group_start() override;
  NcclResult group_end() override;
  NcclResult send(const void* source, std::size_t bytes, int peer, NcclComm comm, CudaStream stream) override;
  NcclResult receive(void* target, std::size_t bytes, int peer, NcclComm comm, CudaStream stream) override;
  std::string text(NcclResult result) override;
  std::string last_error(NcclComm) override;

  CudaError device_count(int& count) override;
  CudaError set_device(int device) override;
  CudaError allocate(void** memory, std::size_t bytes) override;
  CudaError free(void* memory) override;
  CudaError free_memory(std::size_t& bytes) override;
  CudaError stream_create(CudaStream& stream) override;
  CudaError stream_query(CudaStream stream) override;
  CudaError stream_destroy(CudaStream stream) override;
  CudaError event_create(CudaEvent& event) override;
  CudaError event_record(CudaEvent event, CudaStream stream) override;
  CudaError event_query(CudaEvent event) override;
  CudaError stream_wait(CudaStream stream, CudaEvent event) override;
  CudaError event_destroy(CudaEvent event) override;
  CudaError last_cuda_error() override;
  std::string text(CudaError error) override;

  std::vector<std::string> names();  // of the communicators that it was asked for

 private:
  friend class NcclWorld;
  using Lock = std::unique_lock<std::mutex>;
  class Use;  // of a communicator by one call

  int take_failure(const std::string& call);  // 0: none
  void hang(Lock& lock, const std::string& call);
  CudaError cuda(const std::string& call, Lock& lock);
  NcclResult post(NcclComm comm, CudaStream stream, NcclWorld::Message message, const char* call);
  void end_kernels(const NcclWorld::Comm& comm);
  bool uses_memory_of(const NcclWorld::Comm& comm, int peer);
  void abort_now(NcclWorld::Comm& comm);

  NcclWorld* world_;
  int version_;
  bool dead_ = false, vanished_ = false, never_start_ = false, hold_ = false;
  std::set<std::string> never_started_;
  std::map<std::string, int> failures_;
  std::map<std::string, bool> blocked_calls_;
  int hanging_ = 0;
  NcclResult state_ = NcclResult::success;
  std::string last_error_;
  CudaError cuda_error_ = 0;
  int launch_polls_ = 0;
  std::chrono::milliseconds delay_{0};
  int handles_ = 0;
  std::map<void*, std::size_t> memory_;  // with its bytes
  std::vector<std::string> names_;

  bool in_group_ = false;
  std::thread::id group_thread_;
  std::vector<NcclWorld::Message> group_messages_;
  NcclWorld::Comm* group_comm_ = nullptr;
  NcclWorld::Stream* group_stream_ = nullptr;
  std::vector<NcclWorld::Comm*> group_aborts_;
};

}  // namespace holdfast::test
