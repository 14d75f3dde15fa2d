#include "watchdog/peer_host_table.h"

#include <algorithm>
#include <new>
#include <sstream>

namespace holdfast::watchdog {
namespace {

constexpr std::uint64_t magic_whole = 0x31'54'53'4f'48'46'48'01;
constexpr std::uint32_t table_version = 2;  // since then the header knows whether any host is silent
constexpr std::uint32_t max_hosts = 65'536;
constexpr std::uint32_t ended_per_host = 32;
constexpr std::int64_t table_patience_ns = 2'000'000'000, table_look_us = 1'000;

std::string table_name(const std::string& board) {
  return board + "-hosts";
}

template <std::size_t size>
void store(std::array<char, size>& target, const std::string& text) {
  std::ranges::copy(text.substr(0, size - 1), target.begin());
}

// A copy is looked at: another process may write there.
template <std::size_t size>
std::string load(const std::array<char, size>& source) {
  const std::string all(source.data(), size);
  return all.substr(0, all.find('\0'));
}

// Joins as many addresses as fit, each whole.
std::string joined(const std::vector<std::string>& addresses, std::size_t most) {
  std::string text;
  for (const std::string& address : addresses) {
    if (text.size() + address.size() + 2 > most) break;
    text += (text.empty() ? "" : " ") + address;
  }
  return text;
}

Error no_table(const std::string& board, const char* what) {
  return fail(ExitCode::communication, "the table of hosts of {} {}", board, what);
}

}  // namespace

std::size_t PeerHostTable::bytes_of(std::uint32_t hosts, std::uint32_t ended_max) {
  return sizeof(Header) + hosts * sizeof(Host) + ended_max * sizeof(EndedProcess);
}

PeerHostTable::Header& PeerHostTable::header() const {
  return *std::launder(reinterpret_cast<Header*>(memory_->bytes().data()));
}

PeerHostTable::Host& PeerHostTable::host(int index) const {
  HF_CHECK(0 <= index && index < hosts(), "host {} of {}", index, hosts());
  std::byte* const first = memory_->bytes().data() + sizeof(Header);
  return *std::launder(reinterpret_cast<Host*>(first + static_cast<std::size_t>(index) * sizeof(Host)));
}

EndedProcess& PeerHostTable::ended(std::uint32_t index) const {
  std::byte* const first = memory_->bytes().data() + sizeof(Header) + size_.hosts * sizeof(Host);
  return *std::launder(reinterpret_cast<EndedProcess*>(first + index * sizeof(EndedProcess)));
}

Result<std::unique_ptr<PeerHostTable>> PeerHostTable::open(Env& env, const std::string& board) {
  HF_TRY(std::unique_ptr<SharedMemory> memory, env.open_shared_memory(table_name(board)));
  const std::size_t bytes = memory->bytes().size();
  if (bytes < sizeof(Header)) return no_table(board, "is too short to be one");
  const Header& header = *std::launder(reinterpret_cast<Header*>(memory->bytes().data()));
  if (header.magic != magic_whole) return no_table(board, "is not made yet, or is something else");
  // Each number is read once: another process may write there.
  const std::uint32_t layout = std::atomic_ref(header.layout).load();
  const Size size = {.hosts = std::atomic_ref(header.hosts).load(),
                     .ended_max = std::atomic_ref(header.ended_max).load(),
                     .own_host = std::atomic_ref(header.own_host).load()};
  if (layout != table_version || size.hosts == 0 || size.hosts > max_hosts || size.own_host < 0 ||
      static_cast<std::uint32_t>(size.own_host) >= size.hosts ||
      size.ended_max > max_hosts * ended_per_host || bytes < bytes_of(size.hosts, size.ended_max)) {
    return no_table(board, "is of another version, or damaged");
  }
  return std::unique_ptr<PeerHostTable>(new PeerHostTable(std::move(memory), size));
}

Result<std::unique_ptr<PeerHostTable>> PeerHostTable::open_or_create(Env& env, const std::string& board,
                                                                     const PeerHostTableSetup& setup) {
  HF_CHECK(!setup.hosts.empty() && setup.hosts.size() <= max_hosts);
  const auto hosts = static_cast<std::uint32_t>(setup.hosts.size());
  const std::uint32_t ended_max = hosts * ended_per_host;
  Result<std::unique_ptr<SharedMemory>> memory =
      env.create_shared_memory(table_name(board), bytes_of(hosts, ended_max));
  if (!memory.ok()) {  // another rank makes it, or there is no room
    const std::int64_t begin_ns = env.monotonic_ns();
    while (env.monotonic_ns() - begin_ns < table_patience_ns) {
      Result<std::unique_ptr<PeerHostTable>> table = open(env, board);
      if (table.ok()) return table;
      if (memory.error().code == ExitCode::does_not_fit || memory.error().code == ExitCode::config) break;
      env.sleep_us(table_look_us);
    }
    return memory.error();
  }
  const Size size = {.hosts = hosts, .ended_max = ended_max, .own_host = setup.own_host};
  std::unique_ptr<PeerHostTable> table(new PeerHostTable(std::move(memory).value(), size));
  auto* header = new (table->memory_->bytes().data()) Header();
  header->layout = table_version;
  header->hosts = hosts;
  header->ended_max = ended_max;
  header->own_host = setup.own_host;
  header->start = setup.start;
  header->silence_ms = setup.silence_ms;
  for (std::uint32_t index = 0; index < hosts; ++index) {
    Host* const made = new (&table->host(static_cast<int>(index))) Host();
    store(made->name, setup.hosts[index].name);
    store(made->addresses, joined(setup.hosts[index].addresses, address_bytes));
    made->port = setup.hosts[index].port;
  }
  for (std::uint32_t index = 0; index < ended_max; ++index) new (&table->ended(index)) EndedProcess();
  header->magic = magic_whole;  // last: now others may look
  return table;
}

void PeerHostTable::remove(Env& env, const std::string& board) {
  static_cast<void>(env.remove_shared_memory(table_name(board)).ok());
}

PeerHostTableSetup PeerHostTable::setup() const {
  constexpr std::int64_t longest_ms = std::int64_t{1} << 40;  // of which some make a number of nanoseconds
  PeerHostTableSetup setup{.start = header().start,
                           .own_host = size_.own_host,
                           .silence_ms = std::clamp<std::int64_t>(header().silence_ms, 0, longest_ms),
                           .hosts = {}};
  for (int index = 0; index < hosts(); ++index) {
    HostFacts facts{.name = load(host(index).name), .addresses = {}, .port = port_of(index)};
    std::istringstream addresses(load(host(index).addresses));
    for (std::string address; addresses >> address;) facts.addresses.push_back(address);
    setup.hosts.push_back(std::move(facts));
  }
  return setup;
}

int PeerHostTable::hosts() const {
  return static_cast<int>(size_.hosts);
}

int PeerHostTable::own_host() const {
  return size_.own_host;
}

std::string PeerHostTable::name_of(int index) const {
  return load(host(index).name);
}

int PeerHostTable::find(const std::string& name) const {
  for (int index = 0; index < hosts(); ++index) {
    if (name_of(index) == name) return index;
  }
  return -1;
}

std::int64_t PeerHostTable::silent_since_ns(int index) const {
  return host(index).silent_since_ns;
}

bool PeerHostTable::has_ended(int index, const ProcessIdentity& process) const {
  const std::uint32_t count = std::min(header().ended.load(std::memory_order_acquire), size_.ended_max);
  for (std::uint32_t at = 0; at < count; ++at) {
    const EndedProcess& each = ended(at);
    if (each.host == index && each.identity() == process) return true;
  }
  return false;
}

void PeerHostTable::say_silent(int index, std::int64_t since_ns) {
  if (since_ns != 0) header().any_silent = 1;
  host(index).silent_since_ns = since_ns;
  for (int each = 0; each < hosts(); ++each) {
    if (silent_since_ns(each) != 0) return;
  }
  header().any_silent = 0;
}

bool PeerHostTable::may_miss_a_host() const {
  return header().any_silent != 0;
}

void PeerHostTable::say_ended(const EndedProcess& gone) {
  if (has_ended(gone.host, gone.identity())) return;
  const std::uint32_t at = header().ended;
  if (at >= size_.ended_max) return;
  ended(at) = gone;
  header().ended.store(at + 1, std::memory_order_release);
}

void PeerHostTable::moved(int index, std::uint16_t port) {
  host(index).port = port;
}

std::uint16_t PeerHostTable::port_of(int index) const {
  return static_cast<std::uint16_t>(host(index).port.load());
}

}  // namespace holdfast::watchdog
