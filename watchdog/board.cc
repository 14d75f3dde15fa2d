#include "watchdog/board.h"

#include <fmt/core.h>

#include <cstring>
#include <new>
#include <type_traits>

#include "runtime/core/digest.h"
#include "runtime/os/processes.h"
#include "watchdog/peer_host_table.h"

namespace holdfast::watchdog {
namespace {

constexpr std::uint64_t magic_open = 0x6472616f62666831;    // "1hfboard"
constexpr std::uint64_t magic_closed = 0x6472616f62666830;  // "0hfboard"
constexpr const char* name_begin = "holdfast-board-";
constexpr const char* table_end = "-hosts";  // of the name of a PeerHostTable
constexpr std::uint32_t layout_version =
    11;  // since then a slot says how it ended in the kernel of a plug-in
constexpr std::uint32_t max_slots = 1'024, max_ring_spans = 1 << 16;
constexpr std::int64_t patience_ns = 5'000'000'000;  // with one that is being made
constexpr std::int64_t look_us = 1'000;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::int32_t>::is_always_lock_free);
static_assert(std::is_standard_layout_v<BoardHeader> && std::is_standard_layout_v<BoardSlot>);
static_assert(std::is_trivially_destructible_v<BoardHeader> && std::is_trivially_destructible_v<BoardSlot>);

constexpr std::size_t slots_offset = (sizeof(BoardHeader) + 63) / 64 * 64;

std::uint64_t bytes_of(std::uint64_t slots, std::uint64_t ring_spans) {
  return slots_offset + slots * (sizeof(BoardSlot) + ring_spans * sizeof(Span));
}

Error no_board(Env& env, const std::string& name, const std::string& why) {
  return fail(ExitCode::communication, "the board {} {}", env.shared_memory_path(name), why);
}

// A slot whose taker died on the way, or whose process has ended, or is another one under its number, or one
// of another user. Not one of which that cannot be said.
bool is_free(Env& env, const BoardSlot& slot, std::int64_t process) {
  if (process == 0) return true;
  const Result<std::optional<ProcessFacts>> found = env.processes().look(process < 0 ? -process : process);
  if (!found.ok()) return false;
  const std::optional<ProcessFacts>& facts = *found;
  if (!facts.has_value() || facts->has_ended() || facts->of_other_user) return true;
  return process > 0 && ProcessIdentity{.id = process, .started_ticks = slot.started_ticks}.has_ended(facts);
}

BoardHeader& header_of(SharedMemory& memory) {
  return *std::launder(reinterpret_cast<BoardHeader*>(memory.bytes().data()));
}

void clear(BoardSlot& slot) {
  slot.phase = slot.left = 0;
  slot.step = slot.epoch = 0;
  slot.members = 0;
  slot.kind = 0;
  slot.begun_ns = slot.deadline_ns = slot.ceiling_ns = slot.median_ns = slot.floor_ns = slot.heartbeat_ns = 0;
  slot.wait_begun_ns = slot.storage_begun_ns = 0;
  slot.wait_peer = -1;
  slot.wait_number = 0;
  store_text(slot.wait_operation, "");
  store_text(slot.storage_what, "");
  store_text(slot.plugin, "");
  slot.kernel_end = 0;
  slot.drain_begun_ns = 0;
  slot.drain_step = slot.drain_bytes = 0;
  slot.moved_bytes = slot.device_ops = slot.spans_opened = 0;
  slot.life_ns = 0;
  slot.ring_spans = 0;
}

SlotView read_once(const BoardSlot& slot) {
  constexpr auto order = std::memory_order_acquire;
  SlotView view;
  view.process = std::max<std::int64_t>(slot.process.load(order), 0);
  view.started_ticks = slot.started_ticks.load(order);
  view.parent = slot.parent.load(order);
  view.parent_started_ticks = slot.parent_started_ticks.load(order);
  view.launched_rank = slot.launched_rank.load(order);
  const std::uint32_t phase = slot.phase.load(order);
  view.phase = phase < static_cast<std::uint32_t>(Phase::count) ? static_cast<Phase>(phase) : Phase::start_up;
  view.left = slot.left.load(order) != 0;
  view.step = slot.step.load(order);
  view.epoch = slot.epoch.load(order);
  view.members = slot.members.load(order);
  const std::uint32_t kind = slot.kind.load(order);
  view.kind =
      kind < static_cast<std::uint32_t>(WorkKind::count) ? static_cast<WorkKind>(kind) : WorkKind::usual;
  view.begun_ns = plausible_time(slot.begun_ns.load(order));
  view.deadline_ns = plausible_time(slot.deadline_ns.load(order));
  view.ceiling_ns = plausible_time(slot.ceiling_ns.load(order));
  view.median_ns = plausible_time(slot.median_ns.load(order));
  view.floor_ns = plausible_time(slot.floor_ns.load(order));
  view.heartbeat_ns = plausible_time(slot.heartbeat_ns.load(order));
  view.wait_begun_ns = plausible_time(slot.wait_begun_ns.load(order));
  view.wait_peer = slot.wait_peer.load(order);
  view.wait_number = slot.wait_number.load(order);
  view.wait_operation = load_text(slot.wait_operation);
  view.storage_begun_ns = plausible_time(slot.storage_begun_ns.load(order));
  view.storage_what = load_text(slot.storage_what);
  view.plugin = kernel_of_line(load_text(slot.plugin));
  const std::uint32_t end = slot.kernel_end.load(order);
  view.kernel_end =
      end <= static_cast<std::uint32_t>(KernelEnd::hang) ? static_cast<KernelEnd>(end) : KernelEnd::unknown;
  view.drain_begun_ns = plausible_time(slot.drain_begun_ns.load(order));
  view.drain_step = slot.drain_step.load(order);
  view.drain_bytes = slot.drain_bytes.load(order);
  view.moved_bytes = slot.moved_bytes.load(order);
  view.device_ops = slot.device_ops.load(order);
  view.spans_opened = slot.spans_opened.load(order);
  view.life_ns = plausible_time(slot.life_ns.load(order));
  return view;
}

}  // namespace

KernelFault fault_of(const SlotView& slot, KernelEnd how, const std::string& host) {
  return {.kernel = slot.plugin,
          .how = how,
          .rank = slot.launched_rank,
          .host = host,
          .step = slot.completed_step()};
}

std::string board_name(const std::string& start) {
  return name_begin + to_hex(digest_of(start));
}

Result<std::unique_ptr<Board>> Board::create(Env& env, const std::string& name, const BoardSize& size) {
  const std::uint32_t slots = std::clamp<std::uint32_t>(size.slots, 1, max_slots);
  const std::uint32_t ring_spans = std::min(size.ring_spans, max_ring_spans);
  HF_TRY(std::unique_ptr<SharedMemory> memory, env.create_shared_memory(name, bytes_of(slots, ring_spans)));
  if (!memory->hold(SharedMemory::Hold::shared)) return no_board(env, name, "is just being removed");
  auto* header = new (memory->bytes().data()) BoardHeader();
  header->layout = layout_version;
  header->slots = slots;
  header->ring_spans = ring_spans;
  std::unique_ptr<Board> board(new Board(std::move(memory), {.slots = slots, .ring_spans = ring_spans}));
  for (std::uint32_t index = 0; index < slots; ++index) new (&board->slot(index)) BoardSlot();
  header->magic = magic_open;  // last: now others may look
  return board;
}

Result<std::unique_ptr<Board>> Board::open(Env& env, const std::string& name) {
  return open_and_hold(env, name, SharedMemory::Hold::shared);
}

Result<std::unique_ptr<Board>> Board::open_alone(Env& env, const std::string& name) {
  return open_and_hold(env, name, SharedMemory::Hold::alone);
}

Result<std::unique_ptr<Board>> Board::open_and_hold(Env& env, const std::string& name,
                                                    SharedMemory::Hold how) {
  HF_TRY(std::unique_ptr<SharedMemory> memory, env.open_shared_memory(name));
  const std::span<std::byte> bytes = memory->bytes();
  if (bytes.size() < slots_offset) return no_board(env, name, "is too short to be one");
  const BoardHeader& header = header_of(*memory);
  const std::uint64_t magic = header.magic;
  if (magic == magic_closed) return no_board(env, name, "is closed: its ranks have gone");
  if (magic != magic_open) return no_board(env, name, "is not made yet, or is something else");
  // Each number is read once: another process may write there.
  const std::uint32_t layout = std::atomic_ref(header.layout).load();
  const BoardSize size = {.slots = std::atomic_ref(header.slots).load(),
                          .ring_spans = std::atomic_ref(header.ring_spans).load()};
  if (layout != layout_version) {
    return no_board(env, name,
                    fmt::format("has layout {}, and this program knows {}: it is another version's", layout,
                                layout_version));
  }
  if (size.slots == 0 || size.slots > max_slots || size.ring_spans > max_ring_spans ||
      bytes.size() < bytes_of(size.slots, size.ring_spans)) {
    return no_board(env, name, "says that it is larger than it is: it is damaged");
  }
  if (!memory->hold(how)) {
    return no_board(env, name, how == SharedMemory::Hold::alone ? "is in use" : "is just being removed");
  }
  return std::unique_ptr<Board>(new Board(std::move(memory), size));
}

namespace {

// Removes a board that is not open, unless a process holds it: who makes it, or has it, lives. Several may have waited
// for the same one, and the first of them has made another under this name. So the name is looked at under the lock
// that all take, and goes only if it is that of this board.
Result<void> remove_unfinished(Env& env, const std::string& name) {
  const Result<std::unique_ptr<SharedMemory>> found = env.open_shared_memory(name);
  if (!found.ok()) return {};
  SharedMemory& memory = **found;
  if (!memory.hold(SharedMemory::Hold::alone)) return {};
  if (memory.bytes().size() < slots_offset) return env.remove_shared_memory(name);
  const std::uint64_t mark = env.random_u64();
  header_of(memory).magic = mark;
  const Result<std::unique_ptr<SharedMemory>> named = env.open_shared_memory(name);
  if (!named.ok() || (*named)->bytes().size() < slots_offset || header_of(**named).magic != mark) return {};
  return env.remove_shared_memory(name);
}

}  // namespace

Result<std::unique_ptr<Board>> Board::open_or_create(Env& env, const std::string& name,
                                                     const BoardSize& size) {
  std::int64_t begin_ns = env.monotonic_ns();
  for (int rounds = 0; rounds < 2;) {
    Result<std::unique_ptr<Board>> board = open(env, name);
    if (board.ok()) return board;
    board = create(env, name, size);
    const bool lasts = !board.ok() && (board.error().code == ExitCode::does_not_fit ||
                                       board.error().code == ExitCode::config);
    if (lasts) return board;
    // Looks at what has the name now: another process may have removed this one before it was finished.
    if (board.ok()) continue;
    // Another process makes it, or closes it; or has died doing so.
    if (env.monotonic_ns() - begin_ns <= patience_ns) {
      env.sleep_us(look_us);
      continue;
    }
    HF_TRY_VOID(remove_unfinished(env, name));
    begin_ns = env.monotonic_ns();
    ++rounds;
  }
  return open(env, name);  // somebody holds it who is neither done nor dead
}

BoardHeader& Board::header() {
  return header_of(*memory_);
}

BoardSlot& Board::slot(std::uint32_t index) {
  HF_CHECK(index < slots());
  std::byte* const first = memory_->bytes().data() + slots_offset;
  return *std::launder(reinterpret_cast<BoardSlot*>(first + index * sizeof(BoardSlot)));
}

std::span<Span> Board::ring(std::uint32_t index) {
  HF_CHECK(index < slots());
  const std::size_t spans = size_.ring_spans;
  std::byte* const first = memory_->bytes().data() + slots_offset + slots() * sizeof(BoardSlot);
  return {reinterpret_cast<Span*>(first) + index * spans, spans};
}

Result<std::uint32_t> Board::take_slot(Env& env, int launched_rank) {
  const std::int64_t own = env.process_id();
  // Records when this process started; without that, every reader would take it for a process that has ended.
  HF_TRY(const std::optional<ProcessFacts> facts, env.processes().look(own));
  const std::int64_t own_ticks = facts.has_value() ? facts->started_ticks : 0;
  const ProcessIdentity parent = ProcessIdentity::of(env.processes(), facts.has_value() ? facts->parent : 0);
  for (std::uint32_t index = 0; index < slots(); ++index) {
    BoardSlot& slot = this->slot(index);
    std::int64_t before = slot.process;
    const bool own_again = before == own && (slot.left != 0 || slot.launched_rank == launched_rank);
    if (!own_again && !is_free(env, slot, before)) continue;
    // Negative until the ticks are right: nobody may read a mixture of two processes.
    if (!slot.process.compare_exchange_strong(before, -own)) continue;
    clear(slot);
    slot.started_ticks = own_ticks;
    slot.parent = parent.started_ticks != 0 ? parent.id : 0;
    slot.parent_started_ticks = parent.started_ticks;
    slot.launched_rank = launched_rank;
    slot.process = own;
    // Between this store and this look one of both sees the other: close() closes, then looks at the slots.
    if (closed()) {
      slot.process = 0;
      return fail(ExitCode::communication, "the board is closed: its ranks have gone");
    }
    return index;
  }
  return fail(ExitCode::communication, "all {} places of the board are taken", slots());
}

bool Board::closed() {
  return header().magic != magic_open;
}

bool Board::close(Env& env, const std::string& name) {
  std::uint64_t open = magic_open;  // another one closes it, or has
  if (!header().magic.compare_exchange_strong(open, magic_closed)) return false;
  for (std::uint32_t index = 0; index < slots(); ++index) {
    const std::int64_t process = slot(index).process;
    if (process == env.process_id() || is_free(env, slot(index), process)) continue;
    header().magic = magic_open;
    return false;
  }
  static_cast<void>(env.remove_shared_memory(name).ok());
  return true;
}

std::size_t remove_dead_boards(Env& env) {
  const Result<std::vector<std::string>> names = env.list_shared_memory();
  if (!names.ok()) return 0;
  std::size_t removed = 0;
  for (const std::string& name : *names) {
    if (!name.starts_with(name_begin)) continue;
    if (const std::size_t end = name.find(table_end); end != std::string::npos) {
      // Made behind its board and removed behind it: without one it is left over.
      if (!std::ranges::binary_search(*names, name.substr(0, end)))
        PeerHostTable::remove(env, name.substr(0, end));
      continue;
    }
    // The board may be in use by processes that this one cannot see: those of a container with the same
    // /dev/shm.
    const Result<std::unique_ptr<Board>> board = Board::open_alone(env, name);
    if (!board.ok() || !(*board)->close(env, name)) continue;
    PeerHostTable::remove(env, name);
    ++removed;
  }
  return removed;
}

SlotView read_slot(const BoardSlot& slot) {
  // The retries are limited because the writer may have been stopped in the middle of a write, for good.
  constexpr int tries = 1'000;
  SlotView view;
  for (int left = tries; left > 0; --left) {
    const std::uint32_t version = slot.version.load(std::memory_order_acquire);
    view = read_once(slot);
    if (version % 2 == 0 && slot.version.load(std::memory_order_acquire) == version) break;
  }
  return view;
}

bool lives(Env& env, const SlotView& slot) {
  if (slot.process <= 0) return false;
  const std::optional<ProcessFacts> facts = env.processes().facts(slot.process);
  return facts.has_value() && !facts->of_other_user && !slot.identity().has_ended(facts);
}

void store_text(std::span<std::atomic<std::uint64_t>> words, std::string_view text) {
  text = text.substr(0, words.size() * 8 - 1);
  for (std::atomic<std::uint64_t>& word : words) {
    std::uint64_t bytes = 0;
    const std::size_t count = std::min<std::size_t>(text.size(), 8);
    std::memcpy(&bytes, text.data(), count);
    text.remove_prefix(count);
    word.store(bytes, std::memory_order_release);
  }
}

std::string load_text(std::span<const std::atomic<std::uint64_t>> words) {
  std::string text;
  for (const std::atomic<std::uint64_t>& word : words) {
    const std::uint64_t bytes = word.load(std::memory_order_acquire);
    text.append(reinterpret_cast<const char*>(&bytes), 8);
  }
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

// One that its writer could not finish was never counted: the next one takes its number.
void write_notice(BoardNotices& notices, int rank, std::string_view sentence) {
  const std::uint64_t number = notices.count + 1;
  BoardNotices::Entry& entry = notices.newest[number % BoardNotices::kept];
  entry.number = 0;
  entry.rank = rank;
  store_text(entry.sentence, sentence);
  entry.number = number;
  notices.count = number;
}

std::vector<Notice> read_notices(const BoardNotices& notices, std::uint64_t after) {
  std::vector<Notice> found;
  const std::uint64_t count = notices.count;
  const std::uint64_t forgotten = count - std::min(count, BoardNotices::kept);
  for (std::uint64_t number = std::max(after, forgotten); number < count;) {
    ++number;  // not beyond the largest, which a damaged board may say
    const BoardNotices::Entry& entry = notices.newest[number % BoardNotices::kept];
    Notice notice = {.number = number, .rank = entry.rank, .sentence = load_text(entry.sentence)};
    // A newer one may just take its place.
    if (entry.number == number) found.push_back(std::move(notice));
  }
  return found;
}

void write_guard_network(BoardHeader& header, const GuardNetworkFacts& facts) {
  std::uint32_t known = 0;
  HF_CHECK(facts.listen_address.size() < header.listen_address.size());
  if (!header.network_known.compare_exchange_strong(known, 1)) return;
  std::ranges::copy(facts.secret.bytes(), header.secret.begin());
  std::ranges::copy(facts.listen_address, header.listen_address.begin());
  header.network_known = 2;
}

std::optional<GuardNetworkFacts> read_guard_network(const BoardHeader& header) {
  if (header.network_known != 2) return {};
  const std::string_view address(header.listen_address.data(), header.listen_address.size());
  return GuardNetworkFacts{.secret = Secret(header.secret),
                           .listen_address = std::string(address.substr(0, address.find('\0')))};
}

void write_run_directory(BoardHeader& header, const std::string& directory) {
  std::uint32_t known = 0;
  if (directory.size() >= header.run_directory.size()) return;  // no file has such a long path
  if (!header.run_directory_known.compare_exchange_strong(known, 1)) return;
  std::ranges::copy(directory, header.run_directory.begin());
  header.run_directory_known = 2;
}

std::string read_run_directory(const BoardHeader& header) {
  if (header.run_directory_known != 2) return {};
  const std::string all(header.run_directory.data(), header.run_directory.size());
  return all.substr(0, all.find('\0'));
}

}  // namespace holdfast::watchdog
