"""The tables of a prediction, for a terminal and for docs/measurements_archive.md."""
import re

from . import rooflines as r

MARKERS = re.compile(r"(<!-- tools/predict: begin -->\n).*?(<!-- tools/predict: end -->)", re.DOTALL)


def thousands(rate):
    return f"{rate / 1e3:.3g} K"


def interval(prediction):
    return f"{prediction['low_ms']:.0f} to {prediction['high_ms']:.0f}"


def memory(prediction):
    return f"{prediction['memory_bytes'] / 2**30:.1f}" + ("" if prediction["fits"] else " (does not fit)")


def work(part):
    return f"{part['tflop']:.2f} TFLOP" if part["tflop"] > 0 else f"{part['gb']:.2f} GB"


def part_rows(prediction):
    """(what, calls, work, limit ms, predicted ms, share) of each kind of op, and of what lies between them."""
    total = prediction["step_ms"]
    for name, part in prediction["parts"].items():
        yield name, part["calls"], work(part), f"{part['limit_ms']:.2f}", f"{part['ms']:.2f}", f"{100 * part['ms'] / total:.1f} %"
    for name, key in ((f"gaps between {prediction['launches']} kernels", "gaps_ms"), ("end of the step", "end_ms")):
        yield name, "", "", "", f"{prediction[key]:.2f}", f"{100 * prediction[key] / total:.1f} %"
    yield "step", "", "", f"{prediction['limit_ms']:.1f}", f"{total:.1f}", ""


PART_HEAD = ("op", "calls", "work", "limit, ms", "predicted, ms", "share")


def aligned(rows):
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(str(cell).ljust(width) if i == 0 else str(cell).rjust(width)
                               for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def markdown(rows):
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def published_text(published):
    mfu = f", {100 * published.mfu:.1f} % MFU" if published.mfu else ""
    note = f"; {published.note}" if published.note else ""
    return f"{thousands(published.tokens_per_sec)}{mfu} ({published.who}, {published.hardware}{note})"


def case_text(case, prediction):
    where = "pinned host memory" if prediction["tokens_are_pinned"] else "device memory"
    lines = [f"{case.name}: {case.batch}, {prediction['head_rows']} rows of the head at once, tokens in {where}, one "
             f"{prediction['device']}", "", aligned([PART_HEAD, *part_rows(prediction)]), "",
             f"predicted, not measured: {prediction['step_ms']:.1f} ms ({interval(prediction)}), "
             f"{thousands(prediction['tokens_per_sec'])} tokens/s, {100 * prediction['mfu']:.1f} % MFU, "
             f"GiB planned: {memory(prediction)}"]
    lines += [f"published per GPU: {published_text(each)}, {each.source}" for each in case.published]
    return "\n".join(lines) + "\n"


def summary(cases, predictions):
    rows = [("run", "rows of the head", "step, ms", "wrong outside of", "tokens/s", "MFU", "memory, GiB",
             "published tokens/s per GPU")]
    for case in cases:
        p = predictions[case.name]
        rows.append((f"{case.preset}, {case.batch}", p["head_rows"], f"{p['step_ms']:.1f}", interval(p),
                     thousands(p["tokens_per_sec"]), f"{100 * p['mfu']:.1f} %", memory(p), "; ".join(map(published_text, case.published))))
    return markdown(rows)


def recorded(cases, predictions):
    """What stands between the markers of docs/measurements_archive.md."""
    first = cases[0]
    return (f"{summary(cases, predictions)}\n\nOp by op, {first.preset}, {first.batch}:\n\n"
            f"{markdown([PART_HEAD, *part_rows(predictions[first.name])])}\n")


def filled(text, cases, predictions):
    """A document with the tables of today between its markers; the same where it has none."""
    return MARKERS.sub(lambda match: f"{match[1]}{recorded(cases, predictions)}{match[2]}", text)


def has_markers(text):
    return MARKERS.search(text) is not None


def trust():
    return (f"A step is predicted to +-{100 * r.STEP_TOLERANCE:.0f} %, a single op to +-{100 * r.OP_TOLERANCE:.0f} %; beyond that "
            "the prediction is wrong. MFU counts 6 FLOP per weight of a matrix product and causal attention once, over the dense "
            "bf16 peak. Limit: what the op as it is launched takes at the data sheet's rates.")
