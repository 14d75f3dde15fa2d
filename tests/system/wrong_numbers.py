"""Makes numbers of real runs wrong on purpose and classifies what their checks made of it: for numbers_test.py and
tools/numbers_campaign.

A case is one run with one fault, which follows from its kind and a seed: place, bit, step, rank, layout, precision, audit interval.
A fault of hardware must leave the bits of the undisturbed run; one of the data those of a run of one rank with the same fault
(its twin), also where a rank was killed in between. A run that ends before its last step is started again: without the fault if
it is one of hardware or of the settings, with it if it is one of the data.
"""
import dataclasses
import itertools
import random
import statistics

import harness

LANES = 4
STEPS = 48       # a spike takes 32 steps before it
FIRST, LAST = 4, 40  # steps of faults
STARTS_MOST = 4
SAMPLES_PER_LANE = 2
OPTIONS = ["--checkpoint.every_steps=5", "--checkpoint.ram_every_steps=2", "--evaluation.every_steps=0", "--threads=1",
           "--training.microbatches_per_lane=1", f"--training.microbatch_size={SAMPLES_PER_LANE}"]
AUTO = 0  # the audit interval that the run chooses: longer than these runs


@dataclasses.dataclass(frozen=True)
class Layout:
    data: int = 1
    pipeline: int = 1
    tensor: int = 1

    @property
    def ranks(self):
        return self.data * self.pipeline * self.tensor

    def __str__(self):
        return f"{self.data}x{self.pipeline}x{self.tensor}"

    def overrides(self):
        return [f"--parallel.pipeline={self.pipeline}", f"--parallel.tensor={self.tensor}"]

    def replica_of(self, rank):
        """Data is the outermost axis of the ranks."""
        return rank // (self.pipeline * self.tensor)


LAYOUTS = [Layout(), Layout(2), Layout(4), Layout(1, 2), Layout(1, 1, 2), Layout(2, 2)]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault. `points`: fault points that it is drawn from; one of `lane_points` is passed once for each lane."""
    text: str
    actions: tuple
    points: tuple = ()
    flips: bool = False      # the action gets a bit, or is one of another class
    one_rank: bool = True    # False: of all ranks
    of_data: bool = False
    at_rest: bool = False    # no check may miss it
    lasts: bool = False


LANE_POINTS = ("step.before_backward", "step.before_reduce")
KINDS = {
    "weights": Kind("owned weights, at rest", ("flip:weights",), ("step.begin", "step.after_vote", "step.end"), True, at_rest=True),
    "moment1": Kind("first moments, at rest", ("flip:moment1",), ("step.begin", "step.after_vote", "step.end"), True, at_rest=True),
    "moment2": Kind("second moments, at rest", ("flip:moment2",), ("step.begin", "step.after_vote", "step.end"), True, at_rest=True),
    "parameters": Kind("parameters of a rank", ("flip:parameters",), ("step.begin",), True),
    "lane gradients": Kind("gradients of a lane before they leave", ("flip:gradients",), ("step.before_reduce",), True),
    "gradient sums": Kind("owned sums of gradients after the vote", ("flip:gradients",), ("step.before_update",), True, at_rest=True),
    "activations": Kind("activations of a lane", ("flip:activations",), ("step.before_backward",), True),
    "product": Kind("a tile of one matrix product", ("wrong_product",), ("step.begin",)),
    "product always": Kind("of every later product of that shape, too", ("wrong_product_always",), ("step.begin",), lasts=True),
    "nan": Kind("a NaN in memory of a rank, once", ("nan:gradients", "nan:activations", "nan:parameters", "nan:weights", "nan:moment1")),
    "sample nan": Kind("a sample that gives a NaN", ("nan",), ("data.sample",), one_rank=False, of_data=True),
    "sample scramble": Kind("a sample of one token", ("scramble",), ("data.sample",), one_rank=False, of_data=True),
    "rate of a rank": Kind("learning rate of an update, of a rank", ("scale_rate",), ("step.before_update",)),
    "rate of all": Kind("learning rate of an update, of all ranks", ("scale_rate",), ("step.before_update",), one_rank=False),
}
NAN_POINTS = {"nan:gradients": "step.before_reduce", "nan:activations": "step.before_backward"}  # others: step.begin
RATES = (10, 100, 1000)
FP32_CLASSES = {"low mantissa": (0, 11), "high mantissa": (12, 22), "exponent": (23, 30), "sign": (31, 31)}
BF16_CLASSES = {"low mantissa": (0, 3), "high mantissa": (4, 6), "exponent": (7, 14), "sign": (15, 15)}
# Classes of faults as they were measured on GPUs: fewer than 40 % of what flips is a single bit, addresses are periodic, and units are stuck.
CLASSES = ("one bit", "several bits", "strided run", "stuck at 0", "stuck at 1")
STRIDES = (1, 8, 32, 64, 1024)


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str
    layout: Layout
    precision: str
    audit_every: int
    point: str
    action: str
    step: int
    rank: int = 0
    lane_of_rank: int = 0  # at lane points: which of the rank's lanes
    sample: int = 0        # of data
    kill: str = ""         # a fault point at which a rank is killed besides: "step.after_vote@30:1"
    bits: str = ""         # class of the bit
    of_class: str = ""     # of CLASSES, where the action changes bits of numbers
    seed: int = 0

    def lanes_of_rank(self):
        return LANES // self.layout.data

    def hit(self):
        """How often the rank passes the point until then. An audit passes step.before_backward once more, before the rank's lanes."""
        if self.sample:
            return self.sample
        if self.point not in LANE_POINTS:
            return self.step
        hit = (self.step - 1) * self.lanes_of_rank() + self.lane_of_rank + 1
        if self.point == "step.before_backward" and self.audit_every != AUTO:
            hit += self.step // self.audit_every
        return hit

    def faults(self):
        rank = f":{self.rank}" if KINDS[self.kind].one_rank else ""
        return f"{self.point}@{self.hit()}{rank}={self.action}"

    def must_be_audited(self):
        """Whether a fault that lasts meets the known products of an audit before the run ends."""
        return KINDS[self.kind].lasts and self.audit_every != AUTO and self.step + self.audit_every < STEPS

    def overrides(self):
        audits = [] if self.audit_every == AUTO else [f"--verdict.audit_every_steps={self.audit_every}"]
        return [*self.layout.overrides(), f"--training.precision={self.precision}", *audits]

    def describe(self):
        kill = f", {self.kill}=kill" if self.kill else ""
        audits = "auto" if self.audit_every == AUTO else self.audit_every
        return f"{self.kind}: {self.faults()}{kill} in {self.layout} {self.precision}, audits {audits}"


def corruption(memory, bit, of_class, chance):
    """The action of a class of faults, in which `bit` is the one that flips or is stuck."""
    if of_class == "several bits":
        return f"flips:{memory}:{chance.randint(2, 6)}"
    if of_class == "strided run":
        return f"flip_run:{memory}:{bit}:{chance.randint(2, 64)}:{chance.choice(STRIDES)}"
    if of_class.startswith("stuck"):
        return f"{of_class.replace(' ', '_')}:{memory}:{bit}:{chance.choice((1, 32, 1024))}"
    return f"flip:{memory}:{bit}"


def draw(kind, seed, layouts=tuple(LAYOUTS), precisions=("fp32", "bf16"), audits=(1, 5, AUTO), last=LAST, classes=CLASSES):
    """The case of a kind with this seed. With classes=("one bit",) it is what it was before there were others."""
    which, chance = KINDS[kind], random.Random(f"{kind} {seed}")
    layout, precision, audit_every = chance.choice(layouts), chance.choice(precisions), chance.choice(audits)
    action, bits, of_class = chance.choice(which.actions), "", ""
    point = chance.choice(which.points) if which.points else NAN_POINTS.get(action, "step.begin")
    if which.flips:
        is_narrow = precision == "bf16" and kind in ("parameters", "activations")
        ranges = BF16_CLASSES if is_narrow else FP32_CLASSES
        by_class = random.Random(f"class {kind} {seed}")
        of_class, bits = by_class.choice(classes), chance.choice(list(ranges))
        action = corruption(action.split(":")[1], chance.randint(*ranges[bits]), of_class, by_class)
    if action == "scale_rate":
        action += f":{chance.choice(RATES)}"
    case = Case(kind, layout, precision, audit_every, point, action, chance.randint(FIRST, last), chance.randrange(layout.ranks),
                bits="" if of_class == "several bits" else bits, of_class=of_class, seed=seed)
    if which.of_data:
        per_step = LANES * SAMPLES_PER_LANE
        kill = f"{chance.choice(('step.after_vote', 'step.end'))}@{case.step + chance.randint(0, 3)}:{case.rank}"
        return dataclasses.replace(case, sample=(case.step - 1) * per_step + 1 + chance.randrange(per_step),
                                   kill=kill if chance.random() < 0.5 else "")
    return dataclasses.replace(case, lane_of_rank=chance.randrange(case.lanes_of_rank()))


@dataclasses.dataclass
class Outcome:
    case: Case
    result: str              # found, harmless (not found, and the bits are right), missed (not found, other bits), or unfinished
    same_bits: bool = False  # as the undisturbed run; of data: as the twin
    is_found: bool = False
    culprit: str = ""        # of a fault of one rank that was found: right, wrong or nobody. Of others: wrong where a rank is named
    latency: int = 0         # steps from the fault to the first finding
    findings: list = dataclasses.field(default_factory=list)  # events verdict from then on
    false_alarms: int = 0    # those before
    changed: dict = None     # number that the fault changed, as its log says
    exits: list = dataclasses.field(default_factory=list)
    steps: int = 0           # steps before the fault: clean ones
    directory: str = ""      # of a run that surprises

    def row(self):
        case = {**dataclasses.asdict(self.case), "layout": str(self.case.layout), "faults": self.case.faults()}
        rest = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "case"}
        return {**case, **rest}

    def surprises(self):
        """What must not be, or takes a look."""
        which, found = KINDS[self.case.kind], []
        if self.result == "unfinished":
            return [f"unfinished, exit codes {self.exits}"]
        if self.false_alarms:
            found.append("false alarm")
        if self.culprit == "wrong":
            found.append("wrong culprit")
        if which.at_rest and self.result == "missed":
            found.append("state at rest missed")
        if which.at_rest and self.culprit == "nobody":
            found.append("nobody named for state at rest")
        if self.case.must_be_audited() and not self.is_found:
            found.append("lasting fault missed")
        if not self.same_bits and (which.of_data or self.is_found):
            found.append("other bits than its twin" if which.of_data else "found, but other bits")
        return found


class Laboratory:
    """Makes the runs of cases in a scene, and the undisturbed ones that they are compared with."""

    def __init__(self, scene, options=tuple(OPTIONS), steps=STEPS, config=None, start_timeout_s=harness.HANG_S):
        self.scene, self.options, self.steps, self.config = scene, list(options), steps, config
        self.start_timeout_s = start_timeout_s
        self.digests = {}
        self.clean_steps = self.clean_alarms = 0
        self.numbers = itertools.count(1)  # of runs; cases may be judged side by side

    def undisturbed(self, layout, precision):
        """The digest of such a run with an audit at every step. What its checks say is a false alarm."""
        key = (layout.tensor, precision)  # the ranks do not change the bits, the number of slices does
        if (layout, precision) not in self.digests:
            case = Case("weights", layout, precision, 1, "", "", self.steps)
            run, _ = self.train(case, "", "")
            digest = run.digest()
            if self.digests.setdefault(key, digest) != digest:
                raise AssertionError(f"the undisturbed runs of {key} do not have the same bits")
            self.digests[layout, precision] = digest
            self.clean_steps += self.steps
            self.clean_alarms += len(run.events("verdict"))
            run.remove()
        return self.digests[key]

    def twin(self, case):
        """The digest of a run of one rank with the same spoiled sample, which nobody kills."""
        alone = dataclasses.replace(case, layout=Layout(tensor=1), kill="", audit_every=AUTO)
        key = (case.layout.tensor, case.precision, case.sample, case.action)
        if key not in self.digests:
            lanes = [f"--parallel.tensor_lanes={case.layout.tensor}"] if case.layout.tensor > 1 else []
            run, _ = self.train(alone, alone.faults(), alone.faults(), lanes)
            self.digests[key] = run.digest()
            run.remove()
        return self.digests[key]

    def train(self, case, first, later, options=()):
        """The run, trained to its end if that takes few starts, and these; `first`, `later`: their faults."""
        run = self.scene.run(f"run-{next(self.numbers)}", [*self.options, *case.overrides(), *options, f"--training.steps={self.steps}"])
        starts = []
        while len(starts) < STARTS_MOST and not run.finished():
            starts.append(self.start(run, case.layout.ranks, later if starts else first))
            starts[-1].code = starts[-1].wait(self.start_timeout_s)
        return run, starts

    def start(self, run, ranks, faults):
        words = run.train_arguments(config=self.config)
        return run.start_command(harness.command("ft" if ranks > 1 else "alone", ranks) + words, faults)

    def judge(self, case):
        """The outcome of a case. Its run stays where it surprises."""
        which = KINDS[case.kind]
        expected = self.twin(case) if which.of_data else self.undisturbed(case.layout, case.precision)
        kill = f",{case.kill}=kill" if case.kill else ""
        run, starts = self.train(case, case.faults() + kill, case.faults() if which.of_data else "")
        fired = [each for each in starts[0].passed_points() if not each["action"].startswith("kill")]
        if not fired:
            raise AssertionError(f"{case.describe()}: the fault did not happen\n{starts[0].tail()}")
        outcome = outcome_of(case, run.events("verdict"), run.finished(), run.finished() and run.digest() == expected)
        outcome.changed, outcome.exits, outcome.steps = fired[0].get("changed"), [each.code for each in starts], case.step - 1
        if not run.finished():
            harness.call_program("clean", run.directory)  # its snapshots in memory
        if outcome.surprises():
            outcome.directory = str(run.directory)
        else:
            run.remove()
        return outcome


def outcome_of(case, verdicts, finished, same_bits):
    """Classifies a run by its events. Pure."""
    which = KINDS[case.kind]
    after = [each for each in verdicts if each["step"] >= case.step]
    named = [each["rank"] for each in after[:1] if each.get("rank") is not None]
    culprit = ""
    if after and which.one_rank:
        culprit = "nobody" if not named else "right" if named == [case.rank] else "wrong"
    elif named and case.layout.ranks > 1:
        culprit = "wrong"
    result = "found" if after else "harmless" if same_bits else "missed"
    return Outcome(case, result if finished else "unfinished", same_bits, bool(after), culprit,
                   after[0]["step"] - case.step if after else 0, after, len(verdicts) - len(after))


COLUMNS = ("runs", "found", "harmless", "missed", "unfinished", "right", "wrong", "nobody", "median", "max", "same bits")


def order_of(outcome):
    """By kind, class, class of the bit, and audit interval."""
    case = outcome.case
    return (list(KINDS).index(case.kind), ["", *CLASSES].index(case.of_class), ["", *FP32_CLASSES].index(case.bits),
            case.audit_every or STEPS)


def table(outcomes, key):
    """Rows of COLUMNS by key(outcome), in the order of their first ones."""
    groups = {}
    for each in outcomes:
        groups.setdefault(key(each), []).append(each)
    rows = {}
    for name, group in groups.items():
        latencies = [each.latency for each in group if each.is_found]
        rows[name] = {"runs": len(group), **{result: sum(each.result == result for each in group)
                                             for result in ("found", "harmless", "missed", "unfinished")},
                      **{culprit: sum(each.culprit == culprit for each in group) for culprit in ("right", "wrong", "nobody")},
                      "median": statistics.median(latencies) if latencies else None, "max": max(latencies, default=None),
                      "same bits": sum(each.same_bits for each in group)}
    return rows


def text_of(rows, title):
    """The rows as aligned text."""
    width = max(len(title), *map(len, rows)) + 2
    cell = lambda value: "-" if value is None else f"{value:g}"  # noqa: E731
    lines = [title.ljust(width) + "".join(name.rjust(max(10, len(name) + 2)) for name in COLUMNS)]
    for name, row in rows.items():
        lines.append(name.ljust(width) + "".join(cell(row[column]).rjust(max(10, len(column) + 2)) for column in COLUMNS))
    return "\n".join(lines)
