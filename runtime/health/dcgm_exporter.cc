#include "runtime/health/dcgm_exporter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

namespace holdfast::health {
namespace {

constexpr std::int64_t answer_timeout_ms = 3000;
constexpr std::size_t largest_answer_bytes = std::size_t{4} << 20;
// Returns whether a number of DCGM only says why there is none (dcgm_structs.h): from 2^47 on, and just below 2^31.
bool is_blank(double value) {
  return value >= 140737488355328.0 || (value >= 2147483632.0 && value < 2147483648.0);
}

struct Metric {
  std::string_view dcgm = {}, name = {};
  double scale = 1.0;
};
constexpr std::array metrics = std::to_array<Metric>({
    {"DCGM_FI_DEV_GPU_TEMP", "temperature_C"},
    {"DCGM_FI_DEV_POWER_USAGE", "power_mW", 1000.0},
    {"DCGM_FI_DEV_SM_CLOCK", "sm_MHz"},
    {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc_corrected"},
    {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "ecc_uncorrected"},
    {"DCGM_FI_DEV_ROW_REMAP_PENDING", "remap_pending"},
    {"DCGM_FI_DEV_ROW_REMAP_FAILURE", "remap_failed"},
    {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "pcie_replays"},
    {"DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "nvlink_crc_errors"},
    {"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "nvlink_replays"},
    {"DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "nvlink_recoveries"},
    {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_active"},
    {"DCGM_FI_DEV_XID_ERRORS", "xid"},
});

// Returns the value of a label, `name="value"`, among those between the braces.
std::optional<std::string_view> label_in(std::string_view labels, std::string_view name) {
  for (std::size_t at = labels.find(name); at != std::string_view::npos; at = labels.find(name, at + 1)) {
    const std::string_view rest = labels.substr(at + name.size());
    const bool is_whole = at == 0 || labels[at - 1] == ',' || labels[at - 1] == ' ';
    if (!is_whole || !rest.starts_with("=\"")) continue;
    const std::size_t end = rest.find('"', 2);
    if (end != std::string_view::npos) return rest.substr(2, end - 2);
  }
  return std::nullopt;
}

// Returns the name of the GPU: DCGM writes eight digits of the domain, the driver four.
std::string gpu_of(std::string_view labels) {
  if (const std::optional<std::string_view> bus = label_in(labels, "pci_bus_id"); bus.has_value()) {
    const std::size_t domain = bus->find(':');
    std::string name(domain != std::string_view::npos && domain > 4 ? bus->substr(domain - 4) : *bus);
    std::ranges::transform(name, name.begin(), [](char letter) {
      return letter >= 'A' && letter <= 'F' ? static_cast<char>(letter - 'A' + 'a') : letter;
    });
    return name;
  }
  return "GPU " + std::string(label_in(labels, "gpu").value_or("?"));
}

std::optional<ExporterReading> reading_in(std::string_view line) {
  const std::size_t open = line.find('{'), close = line.rfind('}');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return std::nullopt;
  const auto metric = std::ranges::find(metrics, line.substr(0, open), &Metric::dcgm);
  if (metric == metrics.end()) return std::nullopt;
  std::string_view number = line.substr(close + 1);
  number.remove_prefix(std::min(number.find_first_not_of(' '), number.size()));
  double value = 0.0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end == number.data() || !std::isfinite(value) || is_blank(value))
    return std::nullopt;
  return ExporterReading{.gpu = gpu_of(line.substr(open + 1, close - open - 1)),
                         .name = std::string(metric->name),
                         .value = value * metric->scale};
}

}  // namespace

std::vector<ExporterReading> readings_of_exporter(std::string_view text) {
  std::vector<ExporterReading> readings;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (std::optional<ExporterReading> reading = reading_in(text.substr(0, end)))
      readings.push_back(*std::move(reading));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return readings;
}

Result<std::string> ask_exporter(Env& env, const os::NetworkAddress& address) {
  os::Network& network = env.network();
  HF_TRY(const std::unique_ptr<os::Connection> connection, network.connect(address, answer_timeout_ms));
  // A server of HTTP 1.0 ends its answer by closing the connection, and sends it in one piece.
  const std::string question = "GET /metrics HTTP/1.0\r\nHost: " + address.host + "\r\n\r\n";
  HF_TRY_VOID(connection->send(std::as_bytes(std::span(question)), answer_timeout_ms));
  std::string answer;
  std::array<std::byte, 1 << 14> piece{};
  const std::array<os::Socket*, 1> sockets = {connection.get()};
  const std::int64_t until_ns = env.monotonic_ns() + answer_timeout_ms * 1'000'000;
  while (answer.size() < largest_answer_bytes) {
    const std::int64_t left_ms = (until_ns - env.monotonic_ns()) / 1'000'000;
    if (left_ms <= 0 || !network.wait_any_readable(sockets, left_ms))
      return fail(ExitCode::communication, "{} does not answer", connection->peer());
    const Result<std::size_t> count = connection->receive_some(piece);
    if (!count.ok()) break;  // all that it sent is there
    answer.append(reinterpret_cast<const char*>(piece.data()), *count);
  }
  const std::size_t head = answer.find("\r\n\r\n");
  const std::string_view status = std::string_view(answer).substr(0, answer.find('\r'));
  if (head == std::string::npos || !status.starts_with("HTTP/1.") ||
      status.find(" 200") == std::string_view::npos)
    return fail(ExitCode::communication, "{} answers '{}' when it is asked for /metrics", connection->peer(),
                status.substr(0, 80));
  const std::size_t last_line = answer.rfind('\n') + 1;  // one without an end was cut off
  return answer.substr(head + 4, last_line - head - 4);
}

}  // namespace holdfast::health
