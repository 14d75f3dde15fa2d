// Traffic: counts what one rank has sent and received, by the axis of the mesh that it served. Each message
// is counted once, when it is posted, and the counters are never reset: readers subtract.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace holdfast::parallel {

struct Traffic {
  std::uint64_t bytes_sent = 0, messages_sent = 0;
  std::uint64_t bytes_received = 0, messages_received = 0;

  void add_sent(std::uint64_t bytes) {
    bytes_sent += bytes;
    ++messages_sent;
  }
  void add_received(std::uint64_t bytes) {
    bytes_received += bytes;
    ++messages_received;
  }
  Traffic& operator+=(const Traffic& other) {
    bytes_sent += other.bytes_sent;
    messages_sent += other.messages_sent;
    bytes_received += other.bytes_received;
    messages_received += other.messages_received;
    return *this;
  }
  friend Traffic operator+(Traffic a, const Traffic& b) { return a += b; }
  friend Traffic operator-(const Traffic& later, const Traffic& earlier) {
    return {.bytes_sent = later.bytes_sent - earlier.bytes_sent,
            .messages_sent = later.messages_sent - earlier.messages_sent,
            .bytes_received = later.bytes_received - earlier.bytes_received,
            .messages_received = later.messages_received - earlier.messages_received};
  }
  bool operator==(const Traffic&) const = default;
};

enum class Axis : std::uint8_t {
  control,   // votes and agreements
  data,      // gradients of lanes, updated parameters
  pipeline,  // activations and their gradients between stages, the two ends of a tied weight
  tensor,    // rows of a layer's input and parts of its sums between its slices
};
inline constexpr std::size_t axis_count = 4;

class AxisTraffic {
 public:
  Traffic& of(Axis axis) { return traffic_[static_cast<std::size_t>(axis)]; }
  const Traffic& of(Axis axis) const { return traffic_[static_cast<std::size_t>(axis)]; }

 private:
  std::array<Traffic, axis_count> traffic_{};
};

}  // namespace holdfast::parallel
