"""What tools/predict says about a run, beside what was measured."""
import sys

from .machine import ROOT

sys.path.insert(0, str(ROOT / "tools"))


def settings_of(model, settings):
    """A run of sizes.Model as words of the command line."""
    words = [f"--model.{key}={value}" for key, value in model.section.items()]
    return [*words, f"--training.microbatch_size={model.batch}", f"--training.sequence_length={model.length}", *model.settings,
            *settings]


def predict(session, model, settings=()):
    """(prediction, None), or (None, a sentence that says why there is none)."""
    try:
        from prediction.model import predict as ask
        from prediction.rooflines import DEVICES
        device = next((name for name in DEVICES if name in session.machine.gpu), None)
        if device is None and not session.sizes.emulated:
            return None, f"no prediction: tools/predict knows {', '.join(DEVICES)}, not {session.machine.gpu}"
        return ask(session.program(), settings_of(model, settings), device or next(iter(DEVICES))), None
    except Exception as error:  # a prediction that fails is no reason to lose the measurement
        return None, f"no prediction: {type(error).__name__}: {error}"


def compare(record, what, measured, low, high):
    """Adds a prediction to the record of an item. True when the measurement is outside."""
    wrong = not low <= measured <= high
    record.setdefault("predictions", []).append({"what": what, "expected": [low, high], "measured": measured, "wrong": wrong})
    return wrong


OP_TOLERANCE = 0.3
SMALLEST_SHARE = 0.01  # ops that take less of a step are not held against their prediction


def compare_step(session, record, model, step_ms):
    """Holds the milliseconds of a step against the interval that is predicted."""
    predicted, reason = predict(session, model)
    if predicted is None:
        record.setdefault("found", []).append(reason)
        return
    record["predicted"] = {key: predicted[key] for key in ("step_ms", "low_ms", "high_ms", "tokens_per_sec")}
    compare(record, f"{model.name}: ms of a step", step_ms, predicted["low_ms"], predicted["high_ms"])


SAVING_TOLERANCE = 0.5


def compare_saving(session, record, model, what, settings, saved_ms):
    """Holds what the second of two lists of settings saves of a step against the first, and against what is predicted."""
    steps_ms = []
    for words in settings:
        predicted, reason = predict(session, model, words)
        if predicted is None:
            record.setdefault("found", []).append(reason)
            return
        steps_ms.append(predicted["step_ms"])
    expected = steps_ms[0] - steps_ms[1]
    compare(record, what, saved_ms, *sorted(((1 - SAVING_TOLERANCE) * expected, (1 + SAVING_TOLERANCE) * expected)))


def compare_ops(session, record, model, measured):
    """Rows of a table, op by op; ops outside the tolerance are recorded as wrong predictions."""
    predicted, reason = predict(session, model)
    if predicted is None:
        record.setdefault("found", []).append(reason)
        return []
    record["predicted"] = {name: kind["ms"] for name, kind in predicted["kinds"].items()}
    rows = [["op", "measured ms", "predicted ms", "quotient"]]
    for op, sums in sorted(measured["kinds"].items(), key=lambda item: -item[1]["ms"]):
        expected = record["predicted"].get(op)
        if not expected:
            continue
        rows.append([op, f"{sums['ms']:.2f}", f"{expected:.2f}", f"{sums['ms'] / expected:.2f}"])
        if sums["ms"] > SMALLEST_SHARE * measured["step_ms"]:
            compare(record, f"{op}: ms", sums["ms"], (1 - OP_TOLERANCE) * expected, (1 + OP_TOLERANCE) * expected)
    return rows
