// The text of a DCGM exporter: what NVIDIA's DCGM says of the GPUs of a host, where neither NVML nor the kernel's log can be read, as in
// most containers, and what only DCGM measures. Its metrics become readings of the source "dcgm", by the names that the rules
// for NVML know.
//
// Source: dcgm-exporter, etc/default-counters.csv and etc/dcp-metrics-included.csv; the exposition format of Prometheus.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/network.h"

namespace holdfast::health {

struct ExporterReading {
  std::string gpu =
      {};  // on the PCI bus, as the driver writes it: "0000:18:00.0"; without such a label "GPU 3"
  std::string name = {};  // of a reading of NVML; "xid": the number of its last Xid, 0 for none
  double value = 0.0;

  bool operator==(const ExporterReading&) const = default;
};

// Returns the readings in the text. What is not known, is no metric of DCGM, or is one of its blank values ("not supported") is left out.
std::vector<ExporterReading> readings_of_exporter(std::string_view text);

// Asks the exporter at the address for its text. Errors: communication, where it does not answer within three seconds, or with
// something else.
Result<std::string> ask_exporter(Env& env, const os::NetworkAddress& address);

}  // namespace holdfast::health
