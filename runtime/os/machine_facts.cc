#include "runtime/os/machine_facts.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "runtime/core/units.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/posix_io_engine.h"
#include "runtime/os/shared_memory_facts.h"

namespace holdfast::os {
namespace {

MachineFact processor_fact(Env& env) {
  std::string features;
  if (__builtin_cpu_supports("avx2") != 0) features += " avx2";
  if (__builtin_cpu_supports("avx512f") != 0) features += " avx512";
  if (__builtin_cpu_supports("avx512bf16") != 0) features += " avx512-bf16";
  return {"processors", true, fmt::format("{} usable;{}", env.processor_count(), features)};
}

MachineFact memory_fact() {
  const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
  return {"memory", true, format_bytes(pages * page_bytes)};
}

// Containers often forbid io_uring, and older kernels lack it.
MachineFact io_uring_fact() {
  const Result<std::unique_ptr<IoEngine>> engine = make_io_uring_engine(/*depth=*/1);
  if (engine.ok()) return {"io_uring", true, "checkpoints go through it"};
  return {"io_uring", false, engine.error().message + ": checkpoints go through threads"};
}

// A page that is really made, written, read by another mapping and removed: that /dev/shm exists says little.
Result<void> try_shared_memory(Env& env) {
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
  const std::string name = fmt::format("holdfast-probe-{}-{:016x}", env.process_id(), env.random_u64());
  HF_TRY(const std::unique_ptr<SharedMemory> page, env.create_shared_memory(name, page_bytes));
  std::memset(page->bytes().data(), 0x5a, page->bytes().size());
  const Result<std::unique_ptr<SharedMemory>> again = env.open_shared_memory(name);
  HF_TRY_VOID(env.remove_shared_memory(name));
  HF_TRY_VOID(outcome_of(again));
  if (!std::ranges::equal(page->bytes(), (*again)->bytes())) {
    return fail(ExitCode::data, "what was written to shared memory does not read back");
  }
  return {};
}

MachineFact shared_memory_fact(Env& env) {
  const Result<void> usable = try_shared_memory(env);
  if (!usable.ok()) return {shared_memory_directory, false, usable.error().message};
  const Result<std::uint64_t> free_bytes = env.free_bytes(shared_memory_directory);
  if (!free_bytes.ok()) return {shared_memory_directory, false, free_bytes.error().message};
  std::string detail = fmt::format("writable, {} free", format_bytes(*free_bytes));
  if (const std::string removal = shared_memory_removal(env); !removal.empty())
    detail += "; no RAM snapshots: " + removal;
  return {shared_memory_directory, true, std::move(detail)};
}

}  // namespace

// Only root may read the identity of the firmware.
std::string machine_identity(Env& env) {
  for (const char* const path : {"/sys/class/dmi/id/product_uuid", "/etc/machine-id"}) {
    const std::string text = text_within_or_empty(env, path, text_limits::identity);
    const std::string line = text.substr(0, text.find('\n'));
    if (!line.empty()) return printable(line);
  }
  return {};
}

std::vector<MachineFact> machine_facts(Env& env) {
  return {processor_fact(env), memory_fact(), io_uring_fact(), shared_memory_fact(env)};
}

}  // namespace holdfast::os
