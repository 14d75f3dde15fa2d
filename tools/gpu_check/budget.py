"""How much time is left: for the whole call, for a stage, for an item."""
import time

# Time at the end of a budget in which the last results are written and processes are ended.
RESERVE_S = 5.0


class Budget:
    """The deadline of the call, and of the stage that runs. Times are those of `clock`, in seconds."""

    def __init__(self, seconds=None, clock=time.monotonic):
        self._clock = clock
        self.begun = clock()
        self._end = None if seconds is None else self.begun + seconds - RESERVE_S
        self._stage_end = None

    def begin_stage(self, seconds):
        self._stage_end = self._clock() + seconds

    def now(self):
        return self._clock()

    def left(self):
        """Seconds until the first of the two deadlines, never below 0."""
        ends = [end for end in (self._end, self._stage_end) if end is not None]
        return max(0.0, min(ends) - self._clock()) if ends else float("inf")

    def reason(self):
        """Which of the two deadlines comes first, in one word."""
        if self._end is not None and (self._stage_end is None or self._end <= self._stage_end):
            return "budget"
        return "stage deadline"

    def grant(self, item):
        """The deadline of an item as a time of the clock, or None when less than the item needs is left."""
        left = self.left()
        if left < item.least_s:
            return None
        return self._clock() + min(item.deadline_s, left)
