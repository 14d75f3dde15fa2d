#include "runtime/save/shard_copies.h"

#include <utility>

#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"

namespace holdfast::save {
namespace {

// The place at which a rank receives copies.
struct CopyListener {
  std::string host = {};
  std::vector<std::string> addresses = {};
  std::uint16_t port = 0;

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("addresses", self.addresses);
    visit("port", self.port);
  }
};

// Returns the text that the two ends of a connection prove to each other. It contains the number of the rank,
// so that a peer cannot redirect a copy to another rank.
std::string copy_purpose(int keeper) {
  return fmt::format("shard copy kept by rank {}", keeper);
}

}  // namespace

ShardCopies::ShardCopies(StateView& view, const CheckpointStore& store, std::uint64_t writer)
    : env_(&view.rank.env),
      faults_(&view.rank.faults),
      store_(&store),
      source_{.run = digest_of(view.state.run_id), .writer = writer} {}

Result<std::unique_ptr<ShardCopies>> ShardCopies::create(StateView& view, const CheckpointStore& store,
                                                         const StorageDomains& domains,
                                                         std::uint64_t writer) {
  std::unique_ptr<ShardCopies> copies(new ShardCopies(view, store, writer));
  const Result<ListenAddress> address = view.rank.listen_address();
  HF_TRY_VOID(agree_on_outcome(view.rank.communicator, view.rank.waiter, outcome_of(address),
                               view.rank.env.host_name()));
  const int rank = view.rank.communicator.rank();
  HF_TRY_VOID(agree_on_outcome(view.rank.communicator, view.rank.waiter,
                               copies->begin_serving(view.rank.network(copy_purpose(rank)), address->address),
                               view.rank.env.host_name()));
  HF_TRY_VOID(
      copies->exchange_addresses(view, *address, domains.copy_keepers()[static_cast<std::size_t>(rank)]));
  return copies;
}

ShardCopies::~ShardCopies() {
  cancel();
}

void ShardCopies::cancel() {
  const std::lock_guard guard(mutex_);
  stopped_ = true;
  if (listener_ != nullptr) listener_->shut_down();
  if (sending_ != nullptr) sending_->shut_down();
  if (receiving_ != nullptr) receiving_->shut_down();
}

// Listens, and starts the thread that receives. The other ranks do not know the address yet.
Result<void> ShardCopies::begin_serving(SealedNetwork network, const std::string& address) {
  HF_TRY(listener_, network.listen(address));
  HF_TRY(thread_, env_->start_thread("copy keeper", [this] { serve(); }));
  return {};
}

Result<void> ShardCopies::exchange_addresses(StateView& view, const ListenAddress& address, int keeper) {
  Communicator& communicator = view.rank.communicator;
  HF_TRY(std::vector<CopyListener> listeners,
         gather(communicator, view.rank.waiter,
                CopyListener{
                    .host = env_->host_name(), .addresses = address.reported, .port = listener_->port()}));
  keeper_ = keeper;
  if (keeper < 0) return {};
  to_keeper_.emplace(view.rank.network(copy_purpose(keeper)));
  const CopyListener& to = listeners[static_cast<std::size_t>(keeper)];
  keeper_host_ = to.host;
  for (const std::string& each : to.addresses) addresses_.push_back({each, to.port});
  return {};
}

// Receives copies. Errors go to the source, whose rank reports them to the run; errors of strangers are
// ignored.
void ShardCopies::serve() {
  constexpr std::int64_t visit_ms = 1000;
  env_->lower_thread_priority();
  while (!stopped_) {
    Result<std::unique_ptr<Connection>> accepted = listener_->accept(visit_ms);
    if (!accepted.ok()) {
      env_->sleep_us(visit_ms * 1000 / 10);  // no descriptors left, for a while
      continue;
    }
    if (*accepted == nullptr) continue;
    const std::unique_ptr<Connection> connection = std::move(accepted).value();
    if (!hold(receiving_, connection.get())) return;
    const auto directory_of = [this](std::uint64_t step) { return store_->pending_directory(step); };
    static_cast<void>(receive_shard_copy(*connection, *env_, source_, directory_of, *faults_).ok());
    hold(receiving_, nullptr);
  }
}

// Sets the connection that cancel() ends. Returns false where cancel() was called.
bool ShardCopies::hold(Connection*& slot, Connection* connection) {
  const std::lock_guard guard(mutex_);
  slot = connection;
  return !stopped_;
}

Result<std::unique_ptr<Connection>> ShardCopies::connect() {
  constexpr std::int64_t connect_timeout_ms = 3000;
  std::string refusals;
  for (const NetworkAddress& address : addresses_) {
    if (stopped_) break;
    Result<std::unique_ptr<Connection>> connection =
        to_keeper_->connect_known(address, connect_timeout_ms, ReplicaLimits{}.answer_timeout_ms, stopped_);
    if (connection.ok()) return connection;
    refusals += (refusals.empty() ? "" : "; ") + connection.error().message;
  }
  return fail(ExitCode::communication, "{}", stopped_ ? "this rank ends" : refusals);
}

Result<void> ShardCopies::send(std::uint64_t step, const std::string& directory, const ShardFile& shard,
                               const Pace& pace) {
  if (keeper_ < 0) return {};
  const auto reported = [&](const Error& error) -> Result<void> {
    return fail_because(error, ExitCode::checkpoint,
                        "rank {} (host {}), which keeps its copy, could not be given it: {}", keeper_,
                        keeper_host_, error.message);
  };
  Result<std::unique_ptr<Connection>> connection = connect();
  if (!connection.ok()) return reported(connection.error());
  // The connection is released before it closes.
  struct Held {
    ShardCopies* copies;
    ~Held() { copies->hold(copies->sending_, nullptr); }
  } const held{this};
  if (!hold(sending_, connection->get())) return reported(fail(ExitCode::communication, "this rank ends"));
  const Result<void> sent =
      send_shard_copy(**connection, *env_, source_, step, directory, shard, *faults_, pace);
  return sent.ok() ? sent : reported(sent.error());
}

}  // namespace holdfast::save
