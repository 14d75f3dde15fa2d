#include "runtime/save/replicas.h"

#include <algorithm>
#include <utility>

#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"

namespace holdfast::save {
namespace {

struct ReplicaPort {
  int rank = 0;  // whose replicas come to it
  std::uint16_t port = 0;

  static void visit_fields(auto& self, auto&& visit) {
    visit("rank", self.rank);
    visit("port", self.port);
  }
};

// The place at which a rank receives replicas.
struct ReplicaListener {
  std::string host = {};
  std::vector<std::string> addresses = {};
  std::vector<ReplicaPort> ports = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("addresses", self.addresses);
    visit("ports", self.ports);
  }
};

constexpr const char* replica_purpose = "replica";

}  // namespace

// Keeper holds the replicas of one other rank: the memory, a port, and a thread that receives them.
class Replicas::Keeper {
 public:
  static Result<std::unique_ptr<Keeper>> create(StateView& view, std::uint64_t writer, int rank) {
    std::unique_ptr<Keeper> keeper(new Keeper(view, rank));
    const Digest run = digest_of(view.state.shm_run_id);
    std::array<std::span<std::byte>, ReplicaKeeper::slots> slots;
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      const std::string name = replica_name(run, writer, rank, static_cast<int>(slot));
      HF_TRY(std::unique_ptr<SharedMemory> memory,
             view.snapshots.make_slot(name, view.snapshots.bytes_of(rank)));
      keeper->names_.push_back(name);
      slots[slot] = memory->bytes();
      keeper->memory_.push_back(std::move(memory));
    }
    HF_TRY(const ListenAddress address, view.rank.listen_address());
    HF_TRY(keeper->listener_, view.rank.network(replica_purpose).listen(address.address));
    keeper->keeper_.emplace(
        ReplicaKeeper::Source{.run = run,
                              .writer = writer,
                              .rank = static_cast<std::uint32_t>(rank),
                              .ranks = static_cast<std::uint32_t>(view.rank.communicator.size())},
        digest_of(view.rank.env.host_id()), slots, view.rank.faults);
    HF_TRY(keeper->thread_,
           view.rank.env.start_thread("replica keeper", [service = keeper.get()] { service->serve(); }));
    keeper->keep_names_ = true;
    return keeper;
  }
  ~Keeper() {
    {
      const std::lock_guard guard(mutex_);
      stopped_ = true;
      if (listener_ != nullptr) listener_->shut_down();
      if (connection_ != nullptr) connection_->shut_down();
    }
    thread_.reset();
    if (!keep_names_) remove_names();
    if (keep_names_ && view_->snapshots.slots() != nullptr) {
      for (std::size_t i = 0; i < names_.size(); ++i)
        view_->snapshots.slots()->keep(names_[i], std::move(memory_[i]));
    }
  }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  int rank() const { return rank_; }
  void add_slots(std::vector<std::span<std::byte>>& slots) const {
    for (const std::unique_ptr<SharedMemory>& memory : memory_) slots.push_back(memory->bytes());
  }
  std::uint16_t port() const { return listener_->port(); }
  void remove_names() {
    for (const std::string& name : names_) static_cast<void>(view_->rank.env.remove_shared_memory(name).ok());
  }

 private:
  Keeper(StateView& view, int rank) : view_(&view), rank_(rank) {}

  // Receives replicas. Errors go to the sender, whose rank reports them to the run; errors of strangers are
  // ignored.
  void serve() {
    constexpr std::int64_t visit_ms = 1000;
    view_->rank.env.lower_thread_priority();
    while (!stopped()) {
      Result<std::unique_ptr<Connection>> accepted = listener_->accept(visit_ms);
      if (!accepted.ok()) {
        view_->rank.env.sleep_us(visit_ms * 1000 / 10);  // no descriptors left, for a while
        continue;
      }
      if (*accepted == nullptr) continue;
      const std::unique_ptr<Connection> connection = std::move(accepted).value();
      if (!hold(connection.get())) return;
      static_cast<void>(keeper_->receive(*connection).ok());
      hold(nullptr);
    }
  }
  bool stopped() {
    const std::lock_guard guard(mutex_);
    return stopped_;
  }
  // Sets the connection that the destructor ends. Returns false where the destructor has begun.
  bool hold(Connection* connection) {
    const std::lock_guard guard(mutex_);
    connection_ = connection;
    return !stopped_;
  }

  StateView* view_;
  int rank_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<SharedMemory>> memory_;
  std::unique_ptr<Listener> listener_;
  std::optional<ReplicaKeeper> keeper_;
  bool keep_names_ = false;
  std::mutex mutex_;  // guards the next two
  Connection* connection_ = nullptr;
  bool stopped_ = false;
  std::unique_ptr<Thread> thread_;
};

Replicas::Replicas(StateView& view, std::uint64_t writer) : view_(&view), writer_(writer) {}

Result<std::unique_ptr<Replicas>> Replicas::create(StateView& view, std::uint64_t writer) {
  std::unique_ptr<Replicas> replicas(new Replicas(view, writer));
  Result<void> made = agree_on_outcome(view.rank.communicator, view.rank.waiter, replicas->make_keepers(),
                                       view.rank.env.host_name());
  if (made.ok()) made = replicas->exchange_addresses();
  for (const std::unique_ptr<Keeper>& keeper : replicas->keepers_) {
    if (!made.ok()) keeper->remove_names();
  }
  if (!made.ok()) return made.error();
  return replicas;
}

Replicas::~Replicas() {
  {
    const std::lock_guard guard(mutex_);
    stopped_ = true;
    if (connection_ != nullptr) connection_->shut_down();
  }
  job_.wait();
}

std::vector<std::span<std::byte>> Replicas::slots() const {
  std::vector<std::span<std::byte>> slots;
  for (const std::unique_ptr<Keeper>& keeper : keepers_) keeper->add_slots(slots);
  return slots;
}

Result<void> Replicas::make_keepers() {
  for (const int rank : view_->snapshots.kept_ranks()) {
    HF_TRY(std::unique_ptr<Keeper> keeper, Keeper::create(*view_, writer_, rank));
    keepers_.push_back(std::move(keeper));
  }
  return {};
}

// Tells all ranks the addresses of this rank and the ports at which it receives the replicas of which ranks.
Result<void> Replicas::exchange_addresses() {
  Env& env = view_->rank.env;
  const Result<ListenAddress> address = view_->rank.listen_address();
  HF_TRY_VOID(
      agree_on_outcome(view_->rank.communicator, view_->rank.waiter, outcome_of(address), env.host_name()));
  ReplicaListener mine{.host = env.host_name(), .addresses = address->reported};
  for (const std::unique_ptr<Keeper>& keeper : keepers_)
    mine.ports.push_back({.rank = keeper->rank(), .port = keeper->port()});
  HF_TRY(const std::vector<ReplicaListener> listeners,
         gather(view_->rank.communicator, view_->rank.waiter, mine));
  target_.rank = view_->snapshots.buddy();
  if (target_.rank < 0) return {};
  const ReplicaListener& buddy = listeners[static_cast<std::size_t>(target_.rank)];
  const auto own = std::ranges::find(buddy.ports, view_->rank.communicator.rank(), &ReplicaPort::rank);
  HF_CHECK(own != buddy.ports.end());
  target_.host = buddy.host;
  for (const std::string& each : buddy.addresses) target_.addresses.push_back({each, own->port});
  return {};
}

void Replicas::send(const SnapshotStep& step, std::span<const std::byte> slot,
                    const SnapshotStep& confirmed) {
  step_ = step.step;
  begin_ns_ = view_->rank.env.monotonic_ns();
  job_.start(view_->rank.env, "replica sender", [this, slot, confirmed]() -> Result<std::uint64_t> {
    if (target_.rank < 0) return std::uint64_t{0};
    view_->rank.env.lower_thread_priority();
    Result<std::uint64_t> sent = deliver(slot, confirmed);
    if (sent.ok()) return sent;
    return fail_because(sent.error(), sent.error().code,
                        "its buddy, rank {} (host {}), could not be given it: {}", target_.rank, target_.host,
                        sent.error().message);
  });
}

Result<std::uint64_t> Replicas::deliver(std::span<const std::byte> slot, const SnapshotStep& confirmed) {
  HF_TRY(const std::unique_ptr<Connection> connection, connect());
  // The connection is released before it closes.
  struct Held {
    Replicas* replicas;
    ~Held() { replicas->hold(nullptr); }
  } const held{this};
  if (!hold(connection.get())) return fail(ExitCode::communication, "this rank ends");
  HF_TRY_VOID(send_replica(*connection, slot, confirmed, view_->rank.faults));
  return SnapshotReader::sealed_bytes(slot, "that was sent");
}

// Connects to the buddy. A host may have several addresses, of which not all can be reached from everywhere.
// The destructor ends the attempt that is under way.
Result<std::unique_ptr<Connection>> Replicas::connect() {
  constexpr std::int64_t connect_timeout_ms = 3000;
  std::string refusals;
  for (const NetworkAddress& address : target_.addresses) {
    if (stopped_) break;
    Result<std::unique_ptr<Connection>> connection =
        view_->rank.network(replica_purpose)
            .connect_known(address, connect_timeout_ms, ReplicaLimits{}.answer_timeout_ms, stopped_);
    if (connection.ok()) return connection;
    refusals += (refusals.empty() ? "" : "; ") + connection.error().message;
  }
  return fail(ExitCode::communication, "{}", stopped_ ? "this rank ends" : refusals);
}

bool Replicas::hold(Connection* connection) {
  const std::lock_guard guard(mutex_);
  connection_ = connection;
  return !stopped_;
}

ReplicaReport Replicas::take() {
  const Result<std::uint64_t> sent = job_.take();
  return {.step = step_,
          .outcome = outcome_of(sent),
          .bytes = sent.ok() ? *sent : 0,
          .duration_ns = view_->rank.env.monotonic_ns() - begin_ns_};
}

}  // namespace holdfast::save
