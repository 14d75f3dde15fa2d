"""The tables and curves of docs/scaling.md. Every number of the page between two markers comes from here."""
import re
from dataclasses import replace
from math import log2

from cost import H100, Layout, blocks_s, exchange_s, memory_bytes, ring_s, step
from failures import HOUR_S, IN_PLACE, RESTART_EVERYTHING, mean_time_to_failure_s
from published import GPT_175B, LLAMA_405B, LLAMA_70B, LLAMA_8B, all_rows, llama3_efficiency

# The same 16.8 million tokens in a step at every size, as Llama 3 had: what it costs to have more GPUs for the same work.
STEP_TOKENS = 2048 * 8192
SIZES = [
    (LLAMA_8B, [(8, 1, 1, 1), (64, 1, 1, 1), (512, 1, 1, 1), (2048, 1, 1, 1), (2048, 8, 1, 1)]),
    (LLAMA_70B, [(2, 8, 4, 5), (16, 8, 4, 5), (64, 8, 4, 5), (512, 8, 4, 5)]),
    (GPT_175B, [(8, 8, 8, 6), (64, 8, 8, 6), (256, 8, 8, 6)]),
    (LLAMA_405B, [(4, 8, 16, 8), (16, 8, 16, 8), (64, 8, 16, 8), (128, 8, 16, 8)]),
]
DATA_DEGREES = [8, 64, 256, 1024, 4096, 16384]
FLEETS = [8, 64, 512, 1024, 2048, 4096, 8192, 16384]


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])


def number(value):
    return "" if value is None else f"{value:.3g}"


def signed_percent(value):
    return "" if value is None else f"{100 * value:+.1f} %"


def published_table():
    def plain(row):
        return None if row.plain is None else row.plain / row.published - 1
    return table(["kind", "figure", "published", "model", "off by", "off by without a model",
                  "what went in, or why it cannot be said"],
                 [(row.kind, row.what, f"{number(row.published)} {row.unit}",
                   f"{number(row.model)} {row.unit}" if row.model else "",
                   signed_percent(row.error), signed_percent(plain(row)), row.note) for row in all_rows()])


def layout_of(model, degrees):
    data, tensor, pipeline, chunks = degrees
    return Layout(data, tensor, pipeline, chunks, microbatches=STEP_TOKENS // (data * model.sequence_length))


def sized_steps():
    efficiency = llama3_efficiency()
    for model, sizes in SIZES:
        for degrees in sizes:
            layout = layout_of(model, degrees)
            yield model, layout, step(H100, model, layout, efficiency, reduction=exchange_s)


def effective(recovery, gpus, step_s):
    return recovery.effective_share(mean_time_to_failure_s(gpus), step_s)


def memory_cell(bytes_):
    return f"{bytes_ / 1e9:.0f}" + ("" if bytes_ <= H100.memory_bytes else " (does not fit)")


def size_table():
    rows = []
    for model, layout, result in sized_steps():
        share = lambda seconds: f"{100 * seconds / result.seconds:.1f}"
        chunks = f", {layout.chunks} chunks" if layout.chunks > 1 else ""
        rows.append((model.name, f"{layout.gpus:,}", f"{layout.data} x {layout.tensor} x {layout.pipeline}{chunks}",
                     layout.microbatches, f"{result.seconds:.2f}", f"{100 * result.mfu:.1f}", share(result.tensor_s),
                     share(result.bubble_s), share(result.data_s), memory_cell(memory_bytes(model, layout)),
                     f"{12 * model.weights / 1e12:.2f}",
                     f"{100 * effective(RESTART_EVERYTHING, layout.gpus, result.seconds):.1f}",
                     f"{100 * effective(IN_PLACE, layout.gpus, result.seconds):.1f}"))
    return table(["model", "GPUs", "data x tensor x pipeline", "microbatches", "step, s", "MFU, %", "tensor, %", "bubble, %",
                  "data, %", "memory of a rank, GB", "checkpoint, TB", "effective, restart everything, %",
                  "effective, in place, %"], rows)


def lane_table():
    """One microbatch of 8,192 tokens on each GPU: the least work that there is to hide behind."""
    efficiency = llama3_efficiency()
    buckets = 2 * LLAMA_8B.layers
    bucket_bytes = 4 * LLAMA_8B.weights / buckets
    backward = step(H100, LLAMA_8B, Layout(), efficiency).compute_s * 2 / 3
    rows = []
    for data in DATA_DEGREES:
        ways = [buckets * ring_s(H100, data, bucket_bytes), buckets * exchange_s(H100, data, bucket_bytes),
                blocks_s(H100, data, bucket_bytes, buckets, block=8)]
        rows.append((f"{data:,}", f"{bucket_bytes / data / 1e3:,.0f}", *(f"{1e3 * seconds:,.0f}" for seconds in ways),
                     f"{1e3 * backward:,.0f}"))
    return table(["data-parallel ranks", "KB per message, flat", "flat ring, ms", "lanes, flat, ms", "lanes in blocks of 8, ms",
                  "backward to hide behind, ms"], rows)


def wave_table():
    """Llama 3's layout at 16,384 GPUs; then one of its 128 replicas is gone and no spare is there."""
    rows = []
    for lanes in (1, 2, 4, 8, 16):
        layout = replace(layout_of(LLAMA_405B, (128, 8, 16, 8)), lanes_per_rank=lanes)
        result = step(H100, LLAMA_405B, layout, llama3_efficiency(), reduction=exchange_s)
        more = (lanes + 1) / lanes  # waves
        rows.append((lanes, 128 * lanes, layout.microbatches // lanes, f"{result.seconds:.2f}", f"{100 * result.mfu:.1f}",
                     f"{100 * result.bubble_s / result.seconds:.1f}", f"{more * result.seconds:.2f}"))
    return table(["lanes per rank", "parallel.lanes", "microbatches per lane", "step, s", "MFU, %", "bubble, %",
                  "step with one replica less, s"], rows)


def failure_table():
    seconds = 6.0  # about Llama 3's step; it matters in place alone
    rows = []
    for gpus in FLEETS:
        hours = mean_time_to_failure_s(gpus) / HOUR_S
        rows.append((f"{gpus:,}", f"{hours:,.1f}", *(f"{100 * effective(recovery, gpus, seconds):.2f}"
                                                    for recovery in (RESTART_EVERYTHING, IN_PLACE))))
    return table(["GPUs", "hours between failures", "effective, restart everything, %", "effective, in place, %"], rows)


TABLES = {"published": published_table, "sizes": size_table, "lanes": lane_table, "waves": wave_table, "failures": failure_table}


def filled(page):
    """The page with every marked part anew: <!-- scaling: NAME --> ... <!-- end -->."""
    def part(match):
        return f"<!-- scaling: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"
    text, count = re.subn(r"<!-- scaling: (\w+) -->\n.*?<!-- end -->", part, page, flags=re.DOTALL)
    assert count == len(TABLES), f"docs/scaling.md has {count} marked parts, not {len(TABLES)}"
    return text


WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 320, 52, 34, 150, 40
COLOURS = ["#c2410c", "#1d4ed8", "#15803d", "#7e22ce"]


def chart(title, curves, low, high):
    """`curves`: (name, [(GPUs, percent)]). GPUs on a logarithmic axis from 8 to 16,384."""
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    x = lambda gpus: LEFT + across * (log2(gpus) - 3) / 11
    y = lambda percent: TOP + up * (high - percent) / (high - low)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
             f'<text x="{LEFT}" y="20" font-size="14">{title}</text>']
    for percent in range(low, high + 1, 5 if high - low > 10 else 2):
        parts.append(f'<path d="M{LEFT} {y(percent):.1f}H{LEFT + across}" stroke="#e5e7eb"/>'
                     f'<text x="{LEFT - 6}" y="{y(percent) + 4:.1f}" text-anchor="end">{percent} %</text>')
    for gpus in (8, 64, 512, 4096, 16384):
        parts.append(f'<text x="{x(gpus):.1f}" y="{HEIGHT - 16}" text-anchor="middle">{gpus:,}</text>')
    ends = []
    for colour, (name, points) in zip(COLOURS, curves):
        line = " ".join(f"{x(gpus):.1f},{y(percent):.1f}" for gpus, percent in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(gpus):.1f}" cy="{y(percent):.1f}" r="3" fill="{colour}"/>' for gpus, percent in points]
        ends.append((y(points[-1][1]), colour, name))
    for _, points in curves:
        assert all(low <= percent <= high for _, percent in points), title
    below = 0.0
    for place, colour, name in sorted(ends):  # names beside their curves' ends, not over one another
        below = max(place, below + 15)
        parts.append(f'<text x="{LEFT + across + 10}" y="{below + 4:.1f}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def utilisation_chart():
    curves = {}
    for model, layout, result in sized_steps():
        curves.setdefault(model.name, []).append((layout.gpus, 100 * result.mfu))
    return chart("MFU of the same 16.8 million tokens a step on more and more GPUs", list(curves.items()), 10, 55)


def effective_chart():
    curves = [(recovery.name, [(gpus, 100 * effective(recovery, gpus, 6.0)) for gpus in FLEETS])
              for recovery in (RESTART_EVERYTHING, IN_PLACE)]
    return chart("Share of the time that trains", curves, 85, 100)


CURVES = {"utilisation.svg": utilisation_chart, "effective.svg": effective_chart}
