// The limits of a run: memory is counted at every allocation, under a sanitizer by its hooks; processor time
// by the kernel.
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "tests/fuzz/fuzz.h"

#if defined(__SANITIZE_ADDRESS__)
#define HF_FUZZ_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HF_FUZZ_ADDRESS_SANITIZER
#endif
#endif

#ifdef HF_FUZZ_ADDRESS_SANITIZER
// They are declared in sanitizer/allocator_interface.h, which not every compiler brings.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, std::size_t),
                                                         void (*on_free)(const volatile void*));
extern "C" std::size_t __sanitizer_get_allocated_size(const volatile void* memory);
#else
#include <malloc.h>
#endif

namespace holdfast::fuzz {
namespace {

constexpr int processor_seconds_max = 20;

std::atomic<bool> counting{false};
std::atomic<std::int64_t> held{0};  // since the run began; below 0 where it frees what was there before
std::int64_t highest = 0, limit = 0;
double worst_per_byte = 0;
std::uint64_t worst = 0;

void note(std::size_t bytes) {
  if (!counting) return;
  const std::int64_t now = held += static_cast<std::int64_t>(bytes);
  highest = std::max(highest, now);
  if (now <= limit) return;
  counting = false;
  char text[120];
  std::snprintf(text, sizeof(text), "it holds %lld bytes of memory, and may hold %lld",
                static_cast<long long>(now), static_cast<long long>(limit));
  fail_run(text);
}

void forget(std::size_t bytes) {
  if (counting) held -= static_cast<std::int64_t>(bytes);
}

void set_timer(int seconds) {
  const itimerval value = {.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
  setitimer(ITIMER_PROF, &value, nullptr);
}

#ifdef HF_FUZZ_ADDRESS_SANITIZER
void note_allocation(const volatile void*, std::size_t bytes) {
  note(bytes);
}
void note_release(const volatile void* memory) {
  if (counting && memory != nullptr) forget(__sanitizer_get_allocated_size(const_cast<const void*>(memory)));
}
const int hooked = __sanitizer_install_malloc_and_free_hooks(note_allocation, note_release);
#endif

}  // namespace

#ifndef HF_FUZZ_ADDRESS_SANITIZER
void* note_new(void* memory) {
  if (memory == nullptr) std::abort();
  note(malloc_usable_size(memory));
  return memory;
}
void note_delete(void* memory) {
  if (memory != nullptr) forget(malloc_usable_size(memory));
  std::free(memory);
}
#endif

bool run_within_limits(const Target& target, Input input) {
  limit = static_cast<std::int64_t>(target.memory_beside + target.memory_per_byte * input.size());
  highest = 0;
  held = 0;
  set_timer(processor_seconds_max);
  counting = true;
  const bool accepted = target.run(input);
  counting = false;
  set_timer(0);
  worst = std::max(worst, static_cast<std::uint64_t>(highest));
  const auto beyond = static_cast<double>(highest - static_cast<std::int64_t>(target.memory_beside));
  worst_per_byte =
      std::max(worst_per_byte, beyond / static_cast<double>(std::max<std::size_t>(input.size(), 1)));
  return accepted;
}

double peak_bytes_per_byte() {
  return worst_per_byte;
}
std::uint64_t peak_bytes() {
  return worst;
}

void fail_run(std::string_view what) {
  std::fprintf(stderr, "fuzz: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

void require_sentence(const Error& error, std::initializer_list<ExitCode> codes) {
  constexpr std::size_t shortest = 10;
  if (error.message.size() < shortest || error.message.find(' ') == std::string::npos)
    fail_run("an error without a sentence: \"" + error.message + "\"");
  if (std::ranges::find(codes, error.code) == codes.end())
    fail_run("an error with exit code " + std::to_string(static_cast<int>(error.code)) + ": " +
             error.message);
}

}  // namespace holdfast::fuzz

#ifndef HF_FUZZ_ADDRESS_SANITIZER
// Not inlined, so that the compiler does not see free() of what new made.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return holdfast::fuzz::note_new(std::malloc(bytes == 0 ? 1 : bytes));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return holdfast::fuzz::note_new(std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  holdfast::fuzz::note_delete(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  holdfast::fuzz::note_delete(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  holdfast::fuzz::note_delete(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  holdfast::fuzz::note_delete(memory);
}
#endif
