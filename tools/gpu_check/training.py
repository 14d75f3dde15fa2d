"""Training on the GPU: tokens/s of runs of the program, milliseconds of every op, the same bits twice, what settings change."""
import re
from statistics import median

from . import predictions
from .results import Failure, table

# Dense bf16 TFLOP/s from the data sheets, by what the name holds; the first that fits.
PEAKS = [("B300", 2250), ("B200", 2250), ("H200", 989), ("H100 PCIe", 756), ("H100", 989), ("A100", 312), ("L40S", 362)]


def peak_tflops(gpu):
    return next((tflops for name, tflops in PEAKS if name in gpu), None)


def bits_of(steps):
    """What two runs of the same config must have in common, step by step."""
    return [(step["step"], step["loss"], step["grad_norm"], step["data_digest"]) for step in steps]


def first_difference(first, second):
    """None, or a sentence about the first step in which two runs differ."""
    for one, two in zip(bits_of(first), bits_of(second)):
        if one != two:
            return f"step {one[0]}: loss {one[1]!r} and {two[1]!r}, gradient norm {one[2]!r} and {two[2]!r}"
    return None


def losses_of(name, steps):
    """The loss of each step. Of a step that was skipped the log has none, and the others then say nothing about the device."""
    skipped = [str(step["step"]) for step in steps if step["loss"] is None]
    if skipped:
        raise Failure(f"{name}: the loss of step {', '.join(skipped)} is not finite; the events verdict of the run say why")
    return [step["loss"] for step in steps]


def figures_of(session, start, steps, warmup):
    timed = steps[warmup:]
    if not timed:
        raise Failure("no step was left to be timed")
    durations = [step["step_duration_ms"] for step in timed]
    whole_us = timed[-1]["time_us"] - timed[0]["time_us"]
    figures = {"step_ms": median(durations), "step_ms_range": [min(durations), max(durations)],
               "tokens_per_sec": median(step["tokens_per_sec"] for step in timed), "flops_per_token": start["flops_per_token"],
               "device": start["device"], "steps": len(timed), "loss": steps[-1]["loss"],
               "whole_step_ms": whole_us / 1000 / max(len(timed) - 1, 1),  # with what is between steps
               "device_plan": start.get("device_plan", "")}
    peak = peak_tflops(session.machine.gpu)
    if peak is not None:
        figures["mfu"] = figures["tokens_per_sec"] * figures["flops_per_token"] / (peak * 1e12)
    return figures


def train(session, name, model, settings=(), count=None):
    """(figures, step events) of a run of its own."""
    run = session.train_for_steps(name, model, settings, count or model.warmup + model.steps)
    return figures_of(session, run.start, run.steps, min(model.warmup, len(run.steps) - 1)), run.steps


ROW_TITLES = ["model", "microbatch", "tokens/s", "MFU", "ms/step", "range", "asked for"]


def row(model, figures, name=None):
    low, high = figures["step_ms_range"]
    share = f"{figures['mfu']:.1%}" if "mfu" in figures else ""
    return [name or model.name, model.shown(), f"{figures['tokens_per_sec']:.0f}", share, f"{figures['step_ms']:.1f}",
            f"{low:.1f} to {high:.1f}", model.asked]


DOES_NOT_FIT = re.compile(r"exit code 3\b|are needed there")  # docs/errors.md


def fitting(session, record, key, measure):
    """(model, measure(model)) of the first of the models of a key that fits into the memory of the GPU."""
    model = session.sizes.models[key]
    while True:
        try:
            return model, measure(model)
        except Failure as failure:
            if model.smaller is None or not DOES_NOT_FIT.search(str(failure)):
                raise
            record.setdefault("found", []).append(
                f"{model.name} {model.shown()} does not fit; {model.smaller.shown()} is taken instead")
            model = model.smaller


def throughput(key):
    """tokens/s of a model, beside what is predicted."""
    def run(session, record):
        model, (figures, steps) = fitting(session, record, key, lambda model: train(session, f"train-{model.name}", model))
        record.update(figures)
        record["bits"] = bits_of(steps)
        session.show(table([ROW_TITLES, row(model, figures)]))
        predictions.compare_step(session, record, model, figures["step_ms"])
    return run


def op_rows(name, measured):
    step_ms = measured["step_ms"]
    rows = [[f"{name}: op", "calls", "ms", "of step", "limit ms", "of limit"]]
    for op, sums in sorted(measured["kinds"].items(), key=lambda item: -item[1]["ms"]):
        rows.append([op, str(sums["calls"]), f"{sums['ms']:.2f}", f"{sums['ms'] / step_ms:.1%}", f"{sums['limit_ms']:.2f}",
                     f"{sums['limit_ms'] / sums['ms']:.0%}" if sums["ms"] else ""])
    rows.append(["between ops", "", f"{measured['between_ops_ms']:.2f}", f"{measured['between_ops_ms'] / step_ms:.1%}", "", ""])
    return rows


def ops(key):
    """ms of each kind of op in a step, beside its limit: not of the steps that are timed as a whole, which no clock is in the way
    of."""
    def measure(session, model):
        config, words = session.config(f"ops-{model.name}", model, ())
        return session.bench(f"ops-{model.name}", "step", config, *words, f"--warmup-steps={min(model.warmup, 3)}",
                             f"--steps={min(model.steps, 10)}")

    def run(session, record):
        model, measured = fitting(session, record, key, lambda model: measure(session, model))
        record.update({key: measured[key] for key in ("step_ms", "between_ops_ms", "kinds", "gpu", "device")})
        gpu = measured["gpu"]
        session.show(limits_line(gpu), table(op_rows(model.name, measured)))
        rows = predictions.compare_ops(session, record, model, measured)
        if len(rows) > 1:
            session.show(table(rows))
    return run


def limits_line(gpu):
    return (f"copy {gpu['copied_bytes_per_sec'] / 1e9:.0f} GB/s, product of random numbers: bf16 "
            f"{gpu['bf16_flops_per_sec'] / 1e12:.1f} TFLOP/s, fp32 {gpu['fp32_flops_per_sec'] / 1e12:.1f} TFLOP/s")


def expect_same_bits(record, what, first, second):
    difference = first_difference(first, second)
    record.setdefault("found", []).append(f"{what}: " + (difference or f"{min(len(first), len(second))} steps have the same bits"))
    if difference:
        raise Failure(f"{what}: not the same bits: {difference}")


BIT_STEPS = 8


def twice(session, record):
    """Two runs of the real model and microbatch: the same losses, gradient norms and data to the last bit."""
    model = session.sizes.models["gpt2"]
    count = min(BIT_STEPS, model.warmup + model.steps)
    runs = [train(session, f"twice-{turn}", model, count=count)[1] for turn in (1, 2)]
    expect_same_bits(record, "two runs", *runs)
    earlier = session.results.items.get("gpt2", {}).get("bits")
    if earlier and [list(each) for each in bits_of(runs[0])] != [list(each) for each in earlier[:count]]:
        raise Failure("the run whose speed was measured has other bits than these two")
    record["bits"] = bits_of(runs[0])


def beside_each_other(session, record, model, cases, count=None):
    """{name: (figures, step events)} of runs of a model in one call, each with settings of its own; their table, and the ms of a
    step of each in the record."""
    runs, rows = {}, [ROW_TITLES]
    step_ms = record.setdefault("step_ms", {})
    for name, settings in cases.items():
        runs[name] = train(session, f"{session.item}-{len(step_ms)}", model, settings, count or model.warmup + 10)
        step_ms[name] = runs[name][0]["step_ms"]
        rows.append(row(model, runs[name][0], name))
    session.show(table(rows))
    return runs


def head_rows(session, record):
    """ms of a step for several sizes of a chunk of the LM head. Its sum of gradients has another order: no bits are compared."""
    model = session.sizes.models["gpt2"]
    cases = {f"head_rows={count}": [f"--training.head_rows={count}"] for count in session.sizes.head_rows}
    runs = beside_each_other(session, record, model, cases)
    smallest, *_, largest = cases
    predictions.compare_saving(session, record, model, "ms saved by the largest chunk instead of the smallest",
                               [cases[smallest], cases[largest]], runs[smallest][0]["step_ms"] - runs[largest][0]["step_ms"])


def graphs(key, least_ms, most_ms):
    """CUDA graphs change the time of a step and no bit. They are predicted to save so many ms."""
    def run(session, record):
        model = session.sizes.models[key]
        cases = {f"cuda_graphs={setting}": [f"--training.cuda_graphs={setting}"] for setting in ("false", "true")}
        without, beside = beside_each_other(session, record, model, cases).values()
        expect_same_bits(record, "without and with graphs", without[1], beside[1])
        saved_ms = without[0]["step_ms"] - beside[0]["step_ms"]
        record.setdefault("found", []).append(f"graphs save {saved_ms:.2f} of {without[0]['step_ms']:.2f} ms of a step")
        if not session.sizes.emulated:
            predictions.compare(record, "ms saved by graphs", saved_ms, least_ms, most_ms)
    return run


def attention_beside(op, taken, *asked_for, tested_in_a_rehearsal):
    """An op of attention by kernels that runs take only when asked to, beside the one that they take, in turns: alone at all shapes,
    then in steps of GPT-2 124M. Those that are asked for have the same bits as each other, each time."""
    names = (taken, *asked_for)
    fastest = asked_for[0]

    def case(name, turn):
        return f"{op} {name}, turn {turn}"

    def run(session, record):
        tested = tested_in_a_rehearsal if session.sizes.emulated else f"{fastest}*"  # each takes 10 s there
        session.runner.run(f"tests-{op}", [session.program(session.sizes.smoke_program), f"--gtest_filter={op}.{tested}"])
        us = {}
        for turn in (1, 2):
            for name in names:
                measured = session.bench(f"{op}-{name}-{turn}", "op", op, "--dtype=bf16", f"--sizes={session.sizes.bench}",
                                         f"--milliseconds={session.sizes.op_milliseconds}", f"--implementation={name}")
                for shape in measured["ops"][op]:
                    for each in shape["implementations"]:
                        us.setdefault(f"{shape['shape']} ({shape['use']})", {}).setdefault(name, []).append(each["microseconds"])
        record.setdefault("microseconds", {})[op] = us
        session.show(table([[f"{op}, us in two turns", *names]] + [
            [shape, *(" ".join(f"{each:.1f}" for each in found.get(name, [])) for name in names)] for shape, found in us.items()]))
        model = session.sizes.models["gpt2"]
        cases = {case(name, turn): [f"--kernels.{op}={name}"] for turn in (1, 2) for name in names}
        runs = beside_each_other(session, record, model, cases, model.warmup + model.steps)
        first, *others = (case(name, turn) for name in asked_for for turn in (1, 2))
        for other in others:
            expect_same_bits(record, f"{first} and {other}", runs[first][1], runs[other][1])
        step_ms = {name: min(runs[case(name, turn)][0]["step_ms"] for turn in (1, 2)) for name in names}
        for name in asked_for:
            record["found"].append(f"{op} {name} saves {step_ms[taken] - step_ms[name]:.2f} of {step_ms[taken]:.2f} ms of a step")
        if not session.sizes.emulated:
            predictions.compare_saving(session, record, model, f"ms of a step saved by {op} {fastest}",
                                       [cases[case(taken, 1)], cases[case(fastest, 1)]], step_ms[taken] - step_ms[fastest])
    return run


def one_after_another(*parts):
    def run(session, record):
        for part in parts:
            part(session, record)
    return run


def algorithms(session, record):
    """Every algorithm of cuBLASLt for the products of GPT-2 124M alone; then steps with those that were faster, in turns with steps
    of the library's own choice. The plan is kept in the record: it is what kernels.plan takes, and a table of them is made of."""
    plan = session.work / "products.plan"
    only = [] if session.sizes.emulated else ["--shape=gpt2-124m"]
    measured = session.bench("products", "op", "matmul", "--dtype=bf16", f"--sizes={session.sizes.bench}", "--algorithms",
                             f"--plan={plan}", f"--milliseconds={session.sizes.op_milliseconds}", *only)
    record["plan"] = plan.read_text().splitlines()
    rows = [["product", "the library's choice, us", "best, us", "which"]]
    for shape in measured["ops"]["matmul"]:
        chosen, *_ = found = shape["implementations"]
        best = min(found, key=lambda each: each["microseconds"])
        rows.append([f"{shape['shape']} ({shape['use']})", f"{chosen['microseconds']:.1f}", f"{best['microseconds']:.1f}", best["name"]])
    session.show(table(rows))
    model = session.sizes.models["gpt2"]
    kinds = {"the library's choice": [], "by the plan": [f"--kernels.plan={plan}"]}
    cases = {f"{name}{turn}": words for turn in ("", ", again") for name, words in kinds.items()}
    runs = beside_each_other(session, record, model, cases, model.warmup + model.steps)
    step_ms = {}
    for name in kinds:
        expect_same_bits(record, f"{name}, twice", runs[name][1], runs[f"{name}, again"][1])
        step_ms[name] = min(runs[f"{name}{turn}"][0]["step_ms"] for turn in ("", ", again"))
    chosen_ms, planned_ms = step_ms.values()
    record.setdefault("found", []).append(f"the plan saves {chosen_ms - planned_ms:.2f} of {chosen_ms:.2f} ms of a step")
    if not session.sizes.emulated:
        predictions.compare(record, "ms of a step saved by the plan", chosen_ms - planned_ms, 1.0, 4.5)


SAVES = ["--checkpoint.every_steps=auto", "--checkpoint.ram_every_steps=auto"]
NO_TOLERANCE = ["--watchdog.guard=false", "--verdict.preset=off"]


def cost_of(session, record, what, dearer_ms, cheaper_ms, highest=None):
    """Records by how many percent steps of one run take longer than those of another, and holds that against the highest that is
    expected."""
    percent = 100 * (dearer_ms / cheaper_ms - 1)
    record.setdefault("cost_percent", {})[what] = percent
    record.setdefault("found", []).append(f"{what}: {percent:+.2f} %")
    if highest is not None and not session.sizes.emulated:
        predictions.compare(record, f"{what}, percent of a step", percent, -highest, highest)


def default_config(session, record):
    """A run as a user starts it, with its lanes and its saves; the same without saves; and the same tokens in one lane. Saves change
    no bit; lanes do. Its steps are the first ones, which a save on trial is beside: their whole time is only told."""
    model = session.sizes.models["gpt2-default"]
    runs = beside_each_other(session, record, model, {"as a user starts it": SAVES, "without saves": []}, model.warmup + model.steps)
    default, unsaved = runs.values()
    expect_same_bits(record, "with and without saves", default[1], unsaved[1])
    cost_of(session, record, "saves, beside the usual step", default[0]["step_ms"], unsaved[0]["step_ms"], 1)
    cost_of(session, record, "saves, in all of the first steps", default[0]["whole_step_ms"], unsaved[0]["whole_step_ms"])
    lanes = unsaved[1][0]["tokens"] // (model.batch * model.length)
    settings = ["--parallel.lanes=1", f"--training.microbatches_per_lane={lanes}"]
    figures, _ = train(session, f"{session.item}-one-lane", model, settings)
    record["step_ms"]["one lane"] = figures["step_ms"]
    session.show(table([ROW_TITLES, row(model, figures, f"one lane, {lanes} microbatches")]))
    cost_of(session, record, f"{lanes} lanes instead of one", unsaved[0]["step_ms"], figures["step_ms"], 2)


def tolerance(session, record):
    """All of fault tolerance beside none, in the order none, all, all, none, so that a clock that drifts counts for nothing. What is
    between steps counts, and the first steps with the save on trial do not."""
    model = session.sizes.models["gpt2-settled"]
    cases = {"none": NO_TOLERANCE, "all": SAVES, "all, again": SAVES, "none, again": NO_TOLERANCE}
    runs = beside_each_other(session, record, model, cases, model.warmup + model.steps)
    expect_same_bits(record, "none and all", runs["none"][1], runs["all"][1])
    whole_ms = {name: figures["whole_step_ms"] for name, (figures, _) in runs.items()}
    for kind in ("none", "all"):
        cost_of(session, record, f"{kind}, beside itself", whole_ms[f"{kind}, again"], whole_ms[kind])
    cost_of(session, record, "all of fault tolerance", whole_ms["all"] + whole_ms["all, again"],
            whole_ms["none"] + whole_ms["none, again"], 1)


# Of a loss from the CPU's, relative. In bf16 products are rounded after sums of other orders.
FARTHEST_FROM_CPU = {"fp32": 1e-3, "bf16": 5e-3}


def parity(precision):
    """Losses on the GPU are those of the CPU, whose models are held to PyTorch's by the tests."""
    def run(session, record):
        for model in session.sizes.parity[precision]:
            count = model.warmup + model.steps
            found = {}
            for device in ("cuda", "cpu"):
                run = session.train_for_steps(f"parity-{model.name}-{device}", model, (), count, device)
                found[device] = losses_of(f"{model.name} on {device}", run.steps)
            farthest = max(abs(a - b) / abs(b) for a, b in zip(found["cuda"], found["cpu"]))
            record[model.name] = {"losses": found["cuda"], "cpu_losses": found["cpu"], "farthest_relative": farthest}
            record.setdefault("found", []).append(f"{model.name}: {count} losses are at most {farthest:.1e} away from the CPU's")
            if farthest > FARTHEST_FROM_CPU[precision]:
                raise Failure(f"{model.name}: losses on the GPU are up to {farthest:.1e} away from the CPU's, expected at most "
                              f"{FARTHEST_FROM_CPU[precision]:.0e}")
    return run
