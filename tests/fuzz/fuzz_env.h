// FuzzEnv: files and shared memory that a run makes up, no variables, and a clock that stands still,
// so that an input has the same outcome everywhere.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "tests/fuzz/fuzz.h"
#include "tests/support/memory_env.h"

namespace holdfast::fuzz {

struct FilesOfRun {
  MemoryEnv files;
};

class FuzzEnv final : private FilesOfRun, public ForwardingEnv {
 public:
  static constexpr std::int64_t now_ns = 1'000'000'000'000;

  FuzzEnv() : ForwardingEnv(static_cast<Env&>(files)) {}

  void put(const std::string& path, Input content) {
    files.put_file(path, std::make_shared<std::vector<std::byte>>(content.begin(), content.end()));
  }
  std::vector<std::byte> content(const std::string& path) const { return *files.nodes().at(path); }
  void put_shared_memory(const std::string& name, Input content) {
    memories_[name] = std::make_shared<Memory>(content.size());
    if (!content.empty()) std::memcpy(memories_[name]->bytes().data(), content.data(), content.size());
  }
  std::vector<std::byte> shared_memory(const std::string& name) {
    const std::span<std::byte> bytes = memories_.at(name)->bytes();
    return {bytes.begin(), bytes.end()};
  }

  std::string variable(const std::string&) override { return ""; }
  std::vector<std::string> variable_names(const std::string&) override { return {}; }
  std::string host_name() override { return "host"; }
  std::string machine_id() override { return "machine"; }
  std::int64_t monotonic_ns() override { return now_ns; }
  std::int64_t wall_time_us() override { return 1'764'000'000'000'000; }

  Result<std::unique_ptr<SharedMemory>> create_shared_memory(const std::string& name,
                                                             std::uint64_t bytes) override {
    put_shared_memory(name, std::vector<std::byte>(bytes));
    return open_shared_memory(name);
  }
  Result<std::unique_ptr<SharedMemory>> open_shared_memory(const std::string& name) override {
    const auto found = memories_.find(name);
    if (found == memories_.end()) return fail(ExitCode::communication, "there is no {}", name);
    return std::unique_ptr<SharedMemory>(std::make_unique<View>(found->second));
  }
  Result<std::vector<std::string>> list_shared_memory() override {
    std::vector<std::string> names;
    for (const auto& [name, memory] : memories_) names.push_back(name);
    return names;
  }
  std::string shared_memory_path(const std::string& name) override { return "/shared/" + name; }

 private:
  // From an address as mmap gives it.
  class Memory {
   public:
    explicit Memory(std::size_t size)
        : room_(size + alignment), size_(size), skipped_(alignment - address() % alignment) {}
    std::span<std::byte> bytes() { return std::span(room_).subspan(skipped_, size_); }

   private:
    static constexpr std::size_t alignment = 4096;
    std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(room_.data()); }
    std::vector<std::byte> room_;
    std::size_t size_, skipped_;
  };
  class View final : public SharedMemory {
   public:
    explicit View(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
    std::span<std::byte> bytes() override { return memory_->bytes(); }
    bool hold(Hold) override { return true; }

   private:
    std::shared_ptr<Memory> memory_;
  };
  std::map<std::string, std::shared_ptr<Memory>> memories_;
};

}  // namespace holdfast::fuzz
