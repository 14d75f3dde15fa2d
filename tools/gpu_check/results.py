"""What was found, on disk after every item: gpu-check.json, gpu-check.txt and one packed file of logs."""
import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
from pathlib import Path

# Of one log so much is packed: its beginning and its end. The files of results stay small enough to be carried by hand.
LOG_HEAD_BYTES, LOG_TAIL_BYTES = 64 << 10, 256 << 10
SHOWN_FACTS = ("memory.total", "power.limit", "clocks.max.sm", "clocks.max.memory")  # of the GPU


class Failure(Exception):
    """An item that did not pass; the text says why."""


def table(rows):
    """Aligned columns; the first is words, the others numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def replace(path, data):
    """Writes a whole file or nothing: readers see the one before or this one."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    os.replace(partial, path)


def head_and_tail(path):
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= LOG_HEAD_BYTES + LOG_TAIL_BYTES:
            return file.read()
        head = file.read(LOG_HEAD_BYTES)
        file.seek(size - LOG_TAIL_BYTES)
        return head + f"\n... {size - LOG_HEAD_BYTES - LOG_TAIL_BYTES} bytes left out ...\n".encode() + file.read()


class Results:
    """The document with every figure, and the text with its tables. Each write replaces the files at once."""

    def __init__(self, folder, logs, facts):
        self.folder, self.logs = Path(folder), Path(logs)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.document = {**facts, "items": {}}
        self.tables = {}
        self._writing = threading.Lock()

    @property
    def items(self):
        return self.document["items"]

    def begin(self, item, state="running"):
        """A record for what the item finds. What is in it when the item fails, or is interrupted, stays."""
        record = {"stage": item.stage, "state": state, "asks": item.asks}
        if item.wrong_if:
            record["wrong_if"] = item.wrong_if
        self.items[item.name] = record
        self.tables[item.name] = []
        return record

    def add_table(self, name, *blocks):
        self.tables.setdefault(name, []).extend(blocks)

    def write(self):
        with self._writing:
            replace(self.folder / "gpu-check.json", (json.dumps(self.document, indent=1) + "\n").encode())
            replace(self.folder / "gpu-check.txt", self.text().encode())
            name, data = self.packed_logs()
            replace(self.folder / name, data)

    def packed_logs(self):
        memory = io.BytesIO()
        with tarfile.open(fileobj=memory, mode="w" if shutil.which("zstd") else "w:gz") as archive:
            for path in sorted(self.logs.glob("*")):
                if not path.is_file():
                    continue
                data = head_and_tail(path)
                entry = tarfile.TarInfo(f"logs/{path.name}")
                entry.size, entry.mtime = len(data), int(path.stat().st_mtime)
                archive.addfile(entry, io.BytesIO(data))
        if not shutil.which("zstd"):
            return "logs.tar.gz", memory.getvalue()
        packed = subprocess.run(["zstd", "-q", "-3", "-c"], input=memory.getvalue(), stdout=subprocess.PIPE, check=True)
        return "logs.tar.zst", packed.stdout

    def text(self):
        parts = [self.head(), table(self.summary())]
        wrong = [f"  {name}: {line}" for name, record in self.items.items() for line in wrong_predictions(record)]
        if wrong:
            parts.append("\n".join(["Predictions that the measurements call wrong:", *wrong]))
        for name, record in self.items.items():
            if record["state"] not in ("passed", "failed", "interrupted"):
                continue
            parts.append("\n\n".join([self.title(name, record), *self.tables.get(name, [])]))
        return "\n\n".join(parts) + "\n"

    def head(self):
        facts = self.document
        gpu = facts.get("gpu", {})
        lines = [f"gpu-check: {gpu.get('name', 'no GPU')}, driver {gpu.get('driver', 'unknown')}, commit {facts['commit']}, "
                 f"{facts['date']}"]
        if facts.get("rehearsal"):
            lines.append("This is a rehearsal on the emulator at toy sizes: no figure below says anything about a GPU.")
        about = gpu.get("facts", {})
        shown = [f"{name} {about[name]}" for name in SHOWN_FACTS if name in about]
        lines += [", ".join(shown)] if shown else []
        lines += [f"note: {note}" for note in facts.get("notes", [])]
        return "\n".join(lines)

    def summary(self):
        rows = [["item", "stage", "result", "s", "SM MHz", "W", "slowed by"]]
        for name, record in self.items.items():
            telemetry = record.get("telemetry", {})
            shown = {"passed": "passed", "failed": "FAILED", "interrupted": "INTERRUPTED"}.get(record["state"], record["state"])
            rows.append([name, str(record["stage"]), shown, f"{record['seconds']:.0f}" if "seconds" in record else "",
                         f"{telemetry['sm_mhz_median']:.0f}" if "sm_mhz_median" in telemetry else "",
                         f"{telemetry['power_w_max']:.0f}" if "power_w_max" in telemetry else "",
                         ", ".join(telemetry.get("slowed_by", []))])
        return rows

    @staticmethod
    def title(name, record):
        lines = [f"== {name}: {record['asks']}"]
        if "reason" in record:
            lines.append(f"   FAILED: {record['reason']}" if record["state"] == "failed" else f"   {record['reason']}")
        for line in record.get("found", []):
            lines.append(f"   {line}")
        for each in record.get("predictions", []):
            lines.append(f"   {prediction_text(each)}")
        if "wrong_if" in record:
            lines.append(f"   The prediction is wrong if: {record['wrong_if']}")
        return "\n".join(lines)


def prediction_text(prediction):
    low, high = prediction["expected"]
    verdict = "prediction wrong" if prediction["wrong"] else "as predicted"
    return f"{prediction['what']}: {prediction['measured']:.4g}, predicted {low:.4g} to {high:.4g}: {verdict}"


def wrong_predictions(record):
    return [prediction_text(each) for each in record.get("predictions", []) if each["wrong"]]
