#include "runtime/metrics/metrics_server.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "runtime/metrics/scrape_answer.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/parse_address.h"
#include "runtime/os/posix_private_file.h"
#include "runtime/os/secret.h"

namespace holdfast::metrics {
namespace {

constexpr std::int64_t client_look_ms = 200, answering_look_ms = 5;

// Makes the file with a token, whole, unless another process does so at the same time.
Result<void> make_token(Env& env, const std::string& path) {
  const auto digits_of = [&env] {
    const Secret secret = Secret::draw(env);
    std::string digits;
    for (const std::byte byte : secret.bytes())
      digits += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    return digits;
  };
  constexpr std::size_t name_digits = 16;
  const std::string temporary = path + ".tmp." + digits_of().substr(0, name_digits);
  HF_TRY_VOID(write_private_file(temporary, digits_of() + "\n"));
  const Result<void> linked = env.link(temporary, path);
  static_cast<void>(env.remove(temporary).ok());
  HF_TRY(const FileStatus status, env.status(path));
  return status.exists ? Result<void>() : linked;
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::listen(Env& env, const NetworkAddress& address,
                                                             std::string token,
                                                             std::shared_ptr<const MetricsPage> page) {
  HF_TRY(std::unique_ptr<Listener> listener, env.network().listen_on(address));
  std::unique_ptr<MetricsServer> server(
      new MetricsServer(env, std::move(listener), std::move(token), std::move(page)));
  HF_TRY(server->thread_, env.start_thread("metrics", [&server = *server] { server.work(); }));
  return server;
}

MetricsServer::MetricsServer(Env& env, std::unique_ptr<Listener> listener, std::string token,
                             std::shared_ptr<const MetricsPage> page)
    : env_(&env), listener_(std::move(listener)), token_(std::move(token)), page_(std::move(page)) {}

MetricsServer::~MetricsServer() {
  ends_ = true;
  listener_->shut_down();
}

void MetricsServer::work() {
  std::vector<Socket*> sockets;
  while (!ends_) {
    sockets.clear();
    if (clients_.size() < clients_max) sockets.push_back(listener_.get());
    bool is_answering = false;
    for (const Client& client : clients_) {
      is_answering = is_answering || !client.answer.empty();
      if (client.answer.empty()) sockets.push_back(client.connection.get());
    }
    static_cast<void>(
        env_->network().wait_any_readable(sockets, is_answering ? answering_look_ms : client_look_ms));
    if (ends_) return;
    accept_clients();
    std::erase_if(clients_, [this](Client& client) { return !serve(client); });
  }
}

void MetricsServer::accept_clients() {
  while (clients_.size() < clients_max) {
    Result<std::unique_ptr<Connection>> connection = listener_->accept(/*timeout_ms=*/0);
    if (!connection.ok()) {
      env_->sleep_us(client_look_ms * 1000);  // as where the process has no descriptors left
      return;
    }
    if (*connection == nullptr) return;
    clients_.push_back({.connection = std::move(connection).value(),
                        .until_ns = env_->monotonic_ns() + client_ms * 1'000'000});
  }
}

// Returns whether there is more to do for the client.
bool MetricsServer::serve(Client& client) const {
  if (env_->monotonic_ns() > client.until_ns) return false;
  if (client.answer.empty() && !read(client)) return false;
  if (client.answer.empty()) return true;
  const auto left = std::as_bytes(std::span(client.answer)).subspan(client.sent);
  const Result<std::size_t> sent = client.connection->send_some(left);
  if (!sent.ok()) return false;
  client.sent += *sent;
  return client.sent < client.answer.size();
}

// Reads what there is, and makes the answer when the question is whole. Returns false where the client is gone.
bool MetricsServer::read(Client& client) const {
  std::array<std::byte, 2048> piece{};
  while (client.answer.empty()) {
    const Result<std::size_t> count = client.connection->receive_some(piece);
    if (!count.ok()) return false;
    if (*count == 0) return true;
    client.received.append(reinterpret_cast<const char*>(piece.data()), *count);
    const std::shared_ptr<const std::string> text = page_->get();
    client.answer = answer_to(client.received, {.text = *text, .token = token_}).value_or("");
  }
  return true;
}

Result<NetworkAddress> listen_address_of(const std::string& listen) {
  std::optional<NetworkAddress> address = parse_address(listen);
  if (address.has_value()) return *std::move(address);
  return fail(
      ExitCode::config,
      "metrics.listen = \"{}\" is no address to listen on; expected a numeric address and a port, such as "
      "\"127.0.0.1:9400\", or \":9400\" for network.interface",
      listen);
}

Result<std::string> metrics_token(Env& env, const RunPaths& paths) {
  const std::string path = paths.metrics_token();
  HF_TRY(const FileStatus status, env.status(path));
  if (!status.exists) {
    HF_TRY_VOID(make_token(env, path));
  }
  if (is_of_another_user(path)) {
    return fail(ExitCode::config,
                "{} is of another user, who knows it; remove it, and the next start makes another one", path);
  }
  if (others_may_read(path)) {
    return fail(
        ExitCode::config,
        "{} may be read by other users, so it is no secret; remove it, and the next start makes another one",
        path);
  }
  HF_TRY(std::string token, read_text_within(env, path, text_limits::identity));
  while (token.ends_with('\n')) token.pop_back();
  if (token.size() >= 2 * Secret::size) return token;
  return fail(ExitCode::config,
              "{} is no token of {} digits; remove it, and the next start makes another one", path,
              2 * Secret::size);
}

}  // namespace holdfast::metrics
