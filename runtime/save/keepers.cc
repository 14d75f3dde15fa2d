#include "runtime/save/keepers.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "runtime/os/sealed_network.h"
#include "runtime/os/thread.h"

namespace holdfast::save {

// One end of a transfer.
using Transfer = std::function<Result<void>(Connection&)>;

// HeldConnection is the connection that a thread uses, if any, which another thread may end.
class HeldConnection {
 public:
  // Runs the transfer, unless stop() was called. The connection is released before it closes.
  Result<void> run(Connection& connection, const Transfer& transfer) {
    if (!hold(&connection)) return fail(ExitCode::communication, "this rank ends");
    const Result<void> outcome = transfer(connection);
    hold(nullptr);
    return outcome;
  }
  void stop() {
    const std::lock_guard guard(mutex_);
    stopped_ = true;
    if (connection_ != nullptr) connection_->shut_down();
  }
  const std::atomic<bool>& stopped() const { return stopped_; }

 private:
  bool hold(Connection* connection) {
    const std::lock_guard guard(mutex_);
    connection_ = connection;
    return !stopped_;
  }

  std::mutex mutex_;  // guards the next two
  Connection* connection_ = nullptr;
  // Set under the mutex. Read without it where there is nothing to shut down yet.
  std::atomic<bool> stopped_ = false;
};

// KeeperService receives what others send to a port, one transfer after another, on a thread of its own.
class KeeperService {
 public:
  // Errors of `receive` go to the source, whose rank reports them to the run; errors of strangers are ignored.
  static Result<std::unique_ptr<KeeperService>> start(Env& env, SealedNetwork network,
                                                      const std::string& address,
                                                      const std::string& thread_name, Transfer receive) {
    std::unique_ptr<KeeperService> service(new KeeperService(env, std::move(receive)));
    HF_TRY(service->listener_, network.listen(address));
    HF_TRY(service->thread_, env.start_thread(thread_name, [self = service.get()] { self->serve(); }));
    return service;
  }
  ~KeeperService() { stop(); }
  KeeperService(const KeeperService&) = delete;
  KeeperService& operator=(const KeeperService&) = delete;

  std::uint16_t port() const { return listener_->port(); }
  // Ends the transfer that is under way; the other end sees a closed connection.
  void stop() {
    held_.stop();
    if (listener_ != nullptr) listener_->shut_down();
  }

 private:
  KeeperService(Env& env, Transfer receive) : env_(&env), receive_(std::move(receive)) {}

  void serve() {
    constexpr std::int64_t visit_ms = 1000;
    env_->lower_thread_priority();
    while (!held_.stopped()) {
      Result<std::unique_ptr<Connection>> accepted = listener_->accept(visit_ms);
      if (!accepted.ok()) {
        env_->sleep_us(visit_ms * 1000 / 10);  // no descriptors left, for a while
        continue;
      }
      if (*accepted != nullptr) static_cast<void>(held_.run(**accepted, receive_).ok());
    }
  }

  Env* env_;
  Transfer receive_;
  std::unique_ptr<Listener> listener_;
  HeldConnection held_;
  std::unique_ptr<Thread> thread_;  // the last member: it uses the others until it ends
};

// KeeperLink connects to the rank that keeps the copies of this one. Any thread may call stop().
class KeeperLink {
 public:
  KeeperLink(SealedNetwork network, int rank, std::string host, std::vector<NetworkAddress> addresses)
      : network_(std::move(network)), rank_(rank), host_(std::move(host)), addresses_(std::move(addresses)) {}
  int rank() const { return rank_; }
  const std::string& host() const { return host_; }
  Result<void> send(const Transfer& transfer) {
    HF_TRY(const std::unique_ptr<Connection> connection, connect());
    return held_.run(*connection, transfer);
  }
  void stop() { held_.stop(); }

 private:
  // Connects to the keeper. A host may have several addresses, of which not all can be reached from everywhere.
  Result<std::unique_ptr<Connection>> connect() {
    constexpr std::int64_t connect_timeout_ms = 3000;
    std::string refusals;
    for (const NetworkAddress& address : addresses_) {
      if (held_.stopped()) break;
      Result<std::unique_ptr<Connection>> connection = network_.connect_known(
          address, connect_timeout_ms, TransferLimits{}.answer_timeout_ms, held_.stopped());
      if (connection.ok()) return connection;
      refusals += (refusals.empty() ? "" : "; ") + connection.error().message;
    }
    return fail(ExitCode::communication, "{}", held_.stopped() ? "this rank ends" : refusals);
  }

  SealedNetwork network_;
  int rank_;
  std::string host_;
  std::vector<NetworkAddress> addresses_;
  HeldConnection held_;
};

namespace {

struct KeeperPort {
  int rank = 0;  // whose copies come to it
  std::uint16_t port = 0;

  static void visit_fields(auto& self, auto&& visit) {
    visit("rank", self.rank);
    visit("port", self.port);
  }
};

// The place at which a rank receives copies.
struct KeeperPlace {
  std::string host = {};
  std::vector<std::string> addresses = {};
  std::vector<KeeperPort> ports = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("addresses", self.addresses);
    visit("ports", self.ports);
  }
};

constexpr const char* replica_purpose = "replica";

// Returns the text that the two ends of a connection prove to each other. It contains the number of the rank,
// so that a peer cannot redirect a copy to another rank.
std::string copy_purpose(int keeper) {
  return fmt::format("shard copy kept by rank {}", keeper);
}

// Tells all ranks where this one listens, and for the copies of which ranks. Returns the link to the rank that keeps
// those of this one; none if `keeper` is negative.
Result<std::unique_ptr<KeeperLink>> exchange_addresses(StateView& view, const ListenAddress& address,
                                                       std::vector<KeeperPort> ports, int keeper,
                                                       const std::string& purpose) {
  Communicator& communicator = view.rank.communicator;
  HF_TRY(const std::vector<KeeperPlace> places, gather(communicator, view.rank.waiter,
                                                       KeeperPlace{.host = view.rank.env.host_name(),
                                                                   .addresses = address.reported,
                                                                   .ports = std::move(ports)}));
  if (keeper < 0) return std::unique_ptr<KeeperLink>();
  const KeeperPlace& place = places[static_cast<std::size_t>(keeper)];
  const auto own = std::ranges::find(place.ports, communicator.rank(), &KeeperPort::rank);
  HF_CHECK(own != place.ports.end());
  std::vector<NetworkAddress> addresses;
  for (const std::string& each : place.addresses) addresses.push_back({each, own->port});
  return std::make_unique<KeeperLink>(view.rank.network(purpose), keeper, place.host, std::move(addresses));
}

}  // namespace

// Keeper holds the replicas of one other rank: the memory, and the service that receives them.
class Replicas::Keeper {
 public:
  static Result<std::unique_ptr<Keeper>> create(StateView& view, const ListenAddress& address,
                                                std::uint64_t writer, int rank) {
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
    keeper->replicas_.emplace(
        TransferSource{.run = run,
                       .writer = writer,
                       .rank = static_cast<std::uint32_t>(rank),
                       .ranks = static_cast<std::uint32_t>(view.rank.communicator.size())},
        digest_of(view.rank.env.host_id()), slots, view.rank.faults);
    HF_TRY(keeper->service_,
           KeeperService::start(view.rank.env, view.rank.network(replica_purpose), address.address,
                                "replica keeper", [&replicas = *keeper->replicas_](Connection& connection) {
                                  return outcome_of(replicas.receive(connection));
                                }));
    return keeper;
  }
  ~Keeper() {
    service_.reset();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (!stays_) {
        static_cast<void>(view_->rank.env.remove_shared_memory(names_[i]).ok());
      } else if (view_->snapshots.slots() != nullptr) {
        view_->snapshots.slots()->keep(names_[i], std::move(memory_[i]));
      }
    }
  }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  KeeperPort port() const { return {.rank = rank_, .port = service_->port()}; }
  void add_slots(std::vector<std::span<std::byte>>& slots) const {
    for (const std::unique_ptr<SharedMemory>& memory : memory_) slots.push_back(memory->bytes());
  }
  // Says that all ranks have their keepers, so that the memory remains.
  void stay() { stays_ = true; }

 private:
  Keeper(StateView& view, int rank) : view_(&view), rank_(rank) {}

  StateView* view_;
  int rank_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<SharedMemory>> memory_;
  bool stays_ = false;
  std::optional<ReplicaKeeper> replicas_;
  std::unique_ptr<KeeperService> service_;
};

Replicas::Replicas(StateView& view) : view_(&view) {}

Result<std::unique_ptr<Replicas>> Replicas::create(StateView& view, std::uint64_t writer) {
  std::unique_ptr<Replicas> replicas(new Replicas(view));
  const Result<ListenAddress> address = view.rank.listen_address();
  Result<void> made = outcome_of(address);
  std::vector<KeeperPort> ports;
  for (const int rank : view.snapshots.kept_ranks()) {
    if (!made.ok()) break;
    Result<std::unique_ptr<Keeper>> keeper = Keeper::create(view, *address, writer, rank);
    made = outcome_of(keeper);
    if (!keeper.ok()) break;
    ports.push_back((*keeper)->port());
    replicas->keepers_.push_back(std::move(keeper).value());
  }
  HF_TRY_VOID(agree_on_outcome(view.rank.communicator, view.rank.waiter, made, view.rank.env.host_name()));
  HF_TRY(replicas->buddy_,
         exchange_addresses(view, *address, std::move(ports), view.snapshots.buddy(), replica_purpose));
  for (const std::unique_ptr<Keeper>& keeper : replicas->keepers_) keeper->stay();
  return replicas;
}

Replicas::~Replicas() {
  if (buddy_ != nullptr) buddy_->stop();
  job_.wait();
}

std::vector<std::span<std::byte>> Replicas::slots() const {
  std::vector<std::span<std::byte>> slots;
  for (const std::unique_ptr<Keeper>& keeper : keepers_) keeper->add_slots(slots);
  return slots;
}

void Replicas::send(const SnapshotStep& step, std::span<const std::byte> slot,
                    const SnapshotStep& confirmed) {
  step_ = step.step;
  begin_ns_ = view_->rank.env.monotonic_ns();
  job_.start(view_->rank.env, "replica sender", [this, slot, confirmed]() -> Result<std::uint64_t> {
    if (buddy_ == nullptr) return std::uint64_t{0};
    view_->rank.env.lower_thread_priority();
    const Result<void> sent = buddy_->send([&](Connection& connection) {
      return send_replica(connection, slot, confirmed, view_->rank.faults);
    });
    if (sent.ok()) return SnapshotReader::sealed_bytes(slot, "that was sent");
    return fail_because(sent.error(), sent.error().code,
                        "its buddy, rank {} (host {}), could not be given it: {}", buddy_->rank(),
                        buddy_->host(), sent.error().message);
  });
}

ReplicaReport Replicas::take() {
  const Result<std::uint64_t> sent = job_.take();
  return {.step = step_,
          .outcome = outcome_of(sent),
          .bytes = sent.ok() ? *sent : 0,
          .duration_ns = view_->rank.env.monotonic_ns() - begin_ns_};
}

ShardCopies::ShardCopies(StateView& view, std::uint64_t writer)
    : env_(&view.rank.env),
      faults_(&view.rank.faults),
      source_{.run = digest_of(view.state.run_id), .writer = writer} {}

Result<std::unique_ptr<ShardCopies>> ShardCopies::create(StateView& view, const CheckpointStore& store,
                                                         const StorageDomains& domains,
                                                         std::uint64_t writer) {
  std::unique_ptr<ShardCopies> copies(new ShardCopies(view, writer));
  const int rank = view.rank.communicator.rank();
  const auto receive = [self = copies.get(), &store](Connection& connection) {
    const auto directory_of = [&](std::uint64_t step) { return store.pending_directory(step); };
    return receive_shard_copy(connection, *self->env_, self->source_, directory_of, *self->faults_);
  };
  const Result<ListenAddress> address = view.rank.listen_address();
  Result<void> made = outcome_of(address);
  if (made.ok()) {
    Result<std::unique_ptr<KeeperService>> service = KeeperService::start(
        *copies->env_, view.rank.network(copy_purpose(rank)), address->address, "copy keeper", receive);
    made = outcome_of(service);
    if (service.ok()) copies->service_ = std::move(service).value();
  }
  HF_TRY_VOID(agree_on_outcome(view.rank.communicator, view.rank.waiter, made, view.rank.env.host_name()));
  const std::vector<int> keepers = domains.copy_keepers();
  std::vector<KeeperPort> ports;
  for (int source = 0; source < domains.ranks(); ++source) {
    if (keepers[static_cast<std::size_t>(source)] == rank)
      ports.push_back({.rank = source, .port = copies->service_->port()});
  }
  const int keeper = keepers[static_cast<std::size_t>(rank)];
  HF_TRY(copies->keeper_, exchange_addresses(view, *address, std::move(ports), keeper, copy_purpose(keeper)));
  return copies;
}

ShardCopies::~ShardCopies() {
  if (keeper_ != nullptr) keeper_->stop();
}

void ShardCopies::cancel() {
  if (keeper_ != nullptr) keeper_->stop();
  service_->stop();
}

Result<void> ShardCopies::send(std::uint64_t step, const std::string& directory, const ShardFile& shard,
                               const Pace& pace) {
  if (keeper_ == nullptr) return {};
  const Result<void> sent = keeper_->send([&](Connection& connection) {
    return send_shard_copy(connection, *env_, source_, step, directory, shard, *faults_, pace);
  });
  if (sent.ok()) return sent;
  return fail_because(sent.error(), ExitCode::checkpoint,
                      "rank {} (host {}), which keeps its copy, could not be given it: {}", keeper_->rank(),
                      keeper_->host(), sent.error().message);
}

}  // namespace holdfast::save
