"""How much of the time trains: failures come at a rate per GPU, and each costs what recovery needs and what is computed
again. Everything that is assumed is a field here, with where it comes from."""
from dataclasses import dataclass
from math import sqrt

HOUR_S, DAY_S = 3600.0, 86400.0

# Llama 3: 419 unexpected interruptions of 16,384 H100 in 54 days.
LLAMA3_PER_GPU_S = 419 / (54 * DAY_S * 16384)
# Meta RSC: 1.8 h between failures at 16,384 GPUs.
RSC_PER_GPU_S = 1 / (1.8 * HOUR_S * 16384)


def mean_time_to_failure_s(gpus, rate_per_gpu_s=LLAMA3_PER_GPU_S):
    return 1 / (gpus * rate_per_gpu_s)


@dataclass(frozen=True)
class Recovery:
    name: str
    detect_s: float
    restart_s: float               # until the first new step: processes, communicators, state
    save_s: float                  # that training stands still for one save
    interval_s: float = 0.0        # between saves; 0: the best one (Young 1974: sqrt(2 * save * time to failure))
    process_share: float = 0.0     # of the failures after which the process alone is replaced ...
    process_restart_s: float = 0.0  # ... in this time
    steps_lost: float = 0.0        # computed again, where that is not half an interval
    overhead: float = 0.0          # of every step

    def effective_share(self, mttf_s, step_s):
        interval = self.interval_s or sqrt(2 * self.save_s * mttf_s)
        again = self.steps_lost * step_s if self.steps_lost else interval / 2
        restart = self.process_share * self.process_restart_s + (1 - self.process_share) * self.restart_s
        lost = self.detect_s + restart + again
        standing = self.save_s / interval if self.save_s else 0.0
        return max(0.0, (1 - standing - self.overhead) * mttf_s / (mttf_s + lost))


# As good as Llama 3, which says "more than 90 %" at 16,384 GPUs: of the two numbers behind it the standstill of a save is
# assumed, and the time from a failure to the new start is what then gives 90 %.
LLAMA3_EFFECTIVE = 0.90
RESTART_EVERYTHING = Recovery("restart everything", detect_s=0, restart_s=374, save_s=30)
# Targets, proven at no such scale: hang or death noticed within 5 s (R8), a process replaced in 1 s (R10), a host in 60 s by a
# spare that takes the state from another host's RAM; the step that was on its way is computed again; 0.5 % of step time for
# snapshots and 0.5 % for the rest. Three quarters of all faults are cured by a new process (DLRover).
IN_PLACE = Recovery("in place", detect_s=5, restart_s=60, save_s=0, process_share=0.75, process_restart_s=1, steps_lost=1.5,
                    overhead=0.01)
