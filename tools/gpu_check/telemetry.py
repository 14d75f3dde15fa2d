"""Clocks, power, temperature, memory and throttle reasons of the GPU, sampled by nvidia-smi beside the measurements."""
import subprocess
import threading
import time
from statistics import median

PERIOD_MS = 500
FIELDS = ["clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "utilization.gpu", "memory.used"]
# The name of the last field before and after driver 535.
REASON_FIELDS = ["clocks_event_reasons.active", "clocks_throttle_reasons.active"]
# NVML's bits that mean that the GPU runs slower than it was asked to. Idle (1) and clocks set by an application (2) do not.
SLOWED_BY = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "temperature (software)", 0x40: "temperature (hardware)",
             0x80: "power brake"}
BUSY_PERCENT = 50
# A GPU whose memory is this close to what it was before has given it back.
MEMORY_SLACK_MIB = 300
MEMORY_WAIT_S = 90


def parse_number(text):
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]"


def parse_sample(line):
    """{field: number or None} of a line of nvidia-smi, or None for a line that is none."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(FIELDS) + 1:
        return None
    sample = dict(zip(FIELDS, map(parse_number, cells)))
    try:
        sample["reasons"] = int(cells[-1], 16)
    except ValueError:
        sample["reasons"] = 0
    return sample


def summarise(samples):
    """The figures of an item. Clocks are those of the samples in which the GPU was busy, where there are any."""
    if not samples:
        return {}
    busy = [each for each in samples if (each["utilization.gpu"] or 0) >= BUSY_PERCENT] or samples
    bits = 0
    for each in samples:
        bits |= each["reasons"]
    result = {"samples": len(samples), "busy_samples": len(busy) if busy is not samples else 0,
              "slowed_by": [name for bit, name in SLOWED_BY.items() if bits & bit]}
    for name, field, chosen, value in (("sm_mhz_median", "clocks.sm", busy, median), ("sm_mhz_min", "clocks.sm", busy, min),
                                       ("memory_mhz_median", "clocks.mem", busy, median),
                                       ("power_w_max", "power.draw", samples, max), ("power_w_median", "power.draw", busy, median),
                                       ("temperature_c_max", "temperature.gpu", samples, max),
                                       ("memory_mib_max", "memory.used", samples, max)):
        values = [each[field] for each in chosen if each[field] is not None]
        if values:
            result[name] = value(values)
    return result


class Telemetry:
    """A thread that reads what one nvidia-smi prints for as long as it lasts."""

    def __init__(self, smi, environment):
        self._smi, self._environment = smi, environment
        self._samples, self._lock = [], threading.Lock()
        self._process = None
        self._query = None
        for reason in REASON_FIELDS:
            query = f"--query-gpu={','.join([*FIELDS, reason])}"
            answer = self._ask(query)
            if answer is not None:
                self._query = query
                self.memory_before_mib = answer["memory.used"]
                break

    @property
    def works(self):
        return self._query is not None

    def _ask(self, query):
        try:
            done = subprocess.run([self._smi, query, "--format=csv,noheader,nounits", "--id=0"], capture_output=True, text=True,
                                  check=False, timeout=30, env=self._environment)
        except (OSError, subprocess.TimeoutExpired):
            return None
        lines = [parse_sample(line) for line in done.stdout.splitlines()]
        return next((line for line in lines if line), None) if done.returncode == 0 else None

    def begin(self):
        if not self.works:
            return
        self._process = subprocess.Popen([self._smi, self._query, "--format=csv,noheader,nounits", "--id=0",
                                          f"--loop-ms={PERIOD_MS}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                         env=self._environment)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            sample = parse_sample(line)
            if sample:
                with self._lock:
                    self._samples.append((time.time(), sample))

    def since(self, moment):
        """[(time, sample)] since a time.time()."""
        with self._lock:
            return [each for each in self._samples if each[0] >= moment]

    def summary_since(self, moment):
        return summarise([sample for _, sample in self.since(moment)])

    def end(self):
        if self._process is not None:
            self._process.kill()
            self._process = None

    def wait_for_memory(self, limit_s=MEMORY_WAIT_S):
        """Waits until the GPU has as much memory as before the first program. {} where nvidia-smi does not say; else the seconds
        that it took and the MiB in use afterwards."""
        if not self.works or self.memory_before_mib is None:
            return {}
        begun = time.monotonic()
        while True:
            answer = self._ask(self._query)
            used = answer["memory.used"] if answer else None
            if used is None:
                return {}
            back = used <= self.memory_before_mib + MEMORY_SLACK_MIB
            if back or time.monotonic() - begun > limit_s:
                return {"memory_back_s": round(time.monotonic() - begun, 2), "memory_is_back": back, "memory_used_mib": used}
            time.sleep(0.2)
