"""Draws the curves of compare_training.py: for each precision the two losses, and below them how far they differ."""

WIDTH, LEFT, PLOT = 460, 56, 380          # of a panel, of its axis labels, of its plot area
TOP, LOSS, GAP, DIFFERENCE = 40, 240, 46, 90  # heights
HOLDFAST, PYTORCH, INK, GRID = "#c2410c", "#1d4ed8", "#1f2937", "#e5e7eb"


def polyline(points, colour, dashes=""):
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    extra = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.3"{extra}/>'


def text(x, y, words, anchor="start", colour=INK):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


class Axes:
    """A plot area with horizontal grid lines; maps (step, value) to pixels."""

    def __init__(self, left, top, height, steps, low, high):
        self.left, self.top, self.height, self.steps, self.low, self.high = left, top, height, steps, low, high

    def point(self, step, value):
        share = (value - self.low) / (self.high - self.low)
        return self.left + PLOT * step / self.steps, self.top + self.height * (1 - share)

    def grid(self, values, form):
        parts = []
        for value in values:
            _, y = self.point(0, value)
            parts.append(f'<line x1="{self.left}" x2="{self.left + PLOT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
            parts.append(text(self.left - 6, y + 4, form.format(value), "end"))
        return parts

    def curve(self, values, colour, dashes=""):
        return polyline([self.point(step, value) for step, value in enumerate(values, 1)], colour, dashes)


def panel(left, precision, ours, theirs):
    steps = len(ours)
    low, high = int(min(ours + theirs)), int(max(ours + theirs)) + 1
    losses = Axes(left + LEFT, TOP, LOSS, steps, low, high)
    parts = [text(losses.left, TOP - 14, f"{precision}: loss"), *losses.grid(range(low, high + 1), "{}")]
    parts += [losses.curve(theirs, PYTORCH), losses.curve(ours, HOLDFAST, "5 4")]
    parts += [text(losses.left + PLOT, TOP + 16, "PyTorch", "end", PYTORCH),
              text(losses.left + PLOT, TOP + 32, "Holdfast (dashed)", "end", HOLDFAST)]
    off = [100 * (a / b - 1) for a, b in zip(ours, theirs)]
    bound = 1.1 * max(map(abs, off))
    top = TOP + LOSS + GAP
    differences = Axes(losses.left, top, DIFFERENCE, steps, -bound, bound)
    parts += [text(losses.left, top - 10, "Holdfast / PyTorch - 1, in %"),
              *differences.grid((-bound / 1.1, 0, bound / 1.1), "{:+.2g}"), differences.curve(off, INK)]
    for step in range(0, steps + 1, 100):
        x, _ = differences.point(step, 0)
        parts.append(text(x, top + DIFFERENCE + 18, str(step), "middle"))
    return parts


def write(path, results):
    """results: {precision: (our losses, PyTorch's losses)}."""
    height = TOP + LOSS + GAP + DIFFERENCE + 30
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(results)} {height}" '
             'font-family="sans-serif" font-size="12">', f'<rect width="100%" height="100%" fill="white"/>']
    for index, (precision, (ours, theirs)) in enumerate(results.items()):
        parts += panel(WIDTH * index, precision, ours, theirs)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")
