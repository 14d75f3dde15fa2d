// ScriptedConnection: a peer that says the bytes of an input whatever it hears, and then closes.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/core/crc32c.h"
#include "runtime/os/network.h"
#include "tests/fuzz/fuzz.h"

namespace holdfast::fuzz {

class ScriptedConnection final : public Connection {
 public:
  explicit ScriptedConnection(Input said) : left_(said) {}

  // Returns what the peer has been sent.
  const std::vector<std::byte>& heard() const { return heard_; }
  bool said_all() const { return left_.empty(); }

  Result<void> send(std::span<const std::byte> source, std::int64_t) override {
    heard_.insert(heard_.end(), source.begin(), source.end());
    return {};
  }
  Result<void> receive(std::span<std::byte> target, std::int64_t) override {
    if (left_.size() < target.size()) return fail(ExitCode::communication, "{} has closed", peer_);
    std::ranges::copy(left_.first(target.size()), target.begin());
    left_ = left_.subspan(target.size());
    return {};
  }
  Result<std::size_t> send_some(std::span<const std::byte> source) override {
    HF_TRY_VOID(send(source, 0));
    return source.size();
  }
  Result<std::size_t> receive_some(std::span<std::byte> target) override {
    const std::span<std::byte> part = target.first(std::min(target.size(), left_.size()));
    HF_TRY_VOID(receive(part, 0));
    return part.size();
  }
  const std::string& peer() const override { return peer_; }
  void shut_down() override {}
  int handle() const override { return -1; }

 private:
  Input left_;
  std::vector<std::byte> heard_;
  std::string peer_ = "the peer";
};

// Returns answers of a keeper as checkpoint/transfer.cc frames them: a magic, a verdict and a checksum
// each.
inline std::vector<std::byte> answer_frames(std::initializer_list<std::uint32_t> verdicts) {
  std::vector<std::byte> said;
  for (const std::uint32_t verdict : verdicts) {
    std::vector<std::byte> frame = bytes_of_text("HFANSWER");
    frame.resize(16);
    store(frame, 8, verdict);
    store(frame, 12, crc32c(std::span<const std::byte>(frame).first(12)));
    said.insert(said.end(), frame.begin(), frame.end());
  }
  return said;
}

}  // namespace holdfast::fuzz
