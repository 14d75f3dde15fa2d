#include "checkpoint/kept_rollback.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "checkpoint/ram_tier.h"
#include "runtime/core/crc32c.h"
#include "runtime/core/record.h"

namespace holdfast::checkpoint {
namespace {

constexpr std::array<char, 8> rollback_magic = {'H', 'F', 'B', 'A', 'C', 'K', '\0', '\0'};
constexpr std::uint32_t rollback_version = 1;

struct RollbackHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t text_crc32c;
  std::uint64_t text_bytes;
  std::uint32_t reserved;
  std::uint32_t crc32c;  // of everything before
};
static_assert(sizeof(RollbackHeader) == 32 && std::is_trivially_copyable_v<RollbackHeader>);

std::uint32_t header_checksum(const RollbackHeader& header) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(RollbackHeader, crc32c)));
}

// Writes the header last.
void write_text(std::span<std::byte> memory, const std::string& text) {
  RollbackHeader header = {.magic = rollback_magic,
                           .version = rollback_version,
                           .text_crc32c = crc32c(std::as_bytes(std::span(text))),
                           .text_bytes = text.size(),
                           .reserved = 0,
                           .crc32c = 0};
  header.crc32c = header_checksum(header);
  std::memcpy(memory.data() + sizeof(header), text.data(), text.size());
  std::memcpy(memory.data(), &header, sizeof(header));
}

std::optional<std::string> read_text(std::span<const std::byte> memory) {
  RollbackHeader header;
  if (memory.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, memory.data(), sizeof(header));
  if (header.magic != rollback_magic || header.version != rollback_version ||
      header.crc32c != header_checksum(header) || header.text_bytes > memory.size() - sizeof(header))
    return std::nullopt;
  const std::span<const std::byte> text = memory.subspan(sizeof(header), header.text_bytes);
  if (crc32c(text) != header.text_crc32c) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(text.data()), text.size());
}

}  // namespace

bool is_recorded(const DecidedRollback& decided, const Lineage& lineage) {
  return lineage.run_id == decided.run_id && lineage.current() > decided.generation.parent.generation;
}

std::optional<DecidedRollback> unrecorded(std::span<const DecidedRollback> decided, const Lineage& lineage) {
  std::optional<DecidedRollback> found;
  for (const DecidedRollback& each : decided) {
    if (is_recorded(each, lineage) || (!lineage.run_id.empty() && lineage.run_id != each.run_id)) continue;
    const ParentCheckpoint& state = each.generation.parent;
    const bool is_stricter = !found.has_value() || state.generation > found->generation.parent.generation ||
                             (state.generation == found->generation.parent.generation &&
                              state.step < found->generation.parent.step);
    if (is_stricter) found = each;
  }
  return found;
}

Result<std::optional<DecidedRollback>> record_unrecorded(Env& env, const std::string& run_directory,
                                                         std::span<const DecidedRollback> decided,
                                                         const WriterCheck& check) {
  HF_TRY(const Lineage lineage, read_lineage(env, run_directory));
  std::optional<DecidedRollback> found = unrecorded(decided, lineage);
  if (found.has_value())
    HF_TRY_VOID(record_rollback(env, run_directory, found->run_id, found->generation, check));
  return found;
}

Result<void> keep_rollback(Env& env, const Digest& run, std::uint64_t writer, int rank,
                           const KeptRollback& rollback) {
  const std::string name = rollback_name(run, writer, rank);
  const std::string text = record_to_text(rollback);
  HF_TRY_VOID(env.remove_shared_memory(name));
  HF_TRY(const std::unique_ptr<SharedMemory> memory,
         env.create_shared_memory(name, sizeof(RollbackHeader) + text.size()));
  write_text(memory->bytes(), text);
  return {};
}

std::vector<KeptRollback> kept_rollbacks(Env& env, const Digest& run) {
  std::vector<KeptRollback> kept;
  for (const std::string& name : rollback_names(env, run)) {
    const Result<std::unique_ptr<SharedMemory>> memory = env.open_shared_memory(name);
    if (!memory.ok()) continue;
    const std::optional<std::string> text = read_text((*memory)->bytes());
    if (!text.has_value()) continue;
    Result<KeptRollback> rollback = record_from_text<KeptRollback>(*text);
    if (rollback.ok()) kept.push_back(std::move(rollback).value());
  }
  return kept;
}

Result<void> remove_kept_rollbacks(Env& env, const Digest& run) {
  for (const std::string& name : rollback_names(env, run)) HF_TRY_VOID(env.remove_shared_memory(name));
  return {};
}

}  // namespace holdfast::checkpoint
