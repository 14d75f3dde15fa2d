"""The ops of a step, from the program itself: holdfast plan --ops --json."""
import json
import subprocess
import tempfile
from pathlib import Path

# A run of which only the shapes matter: its data is never opened, its directory never made.
RUN = """\
[run]
directory = "unused"
[data]
sources = [{ path = "unused.bin" }]
[training]
steps = 1
precision = "bf16"
sequence_length = 1024
[parallel]
lanes = 1
"""


class ProgramError(Exception):
    pass


def planned_step(program, settings):
    """The object that `holdfast plan --ops --json` prints for one rank on a GPU. `settings`: ["--section.key=value", ...]."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run.toml"
        run.write_text(RUN)
        command = [str(program), "plan", str(run), "--ranks", "1", "--ops", "--json", "--device=cuda", *settings]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise ProgramError(f"{program} plan --ops {' '.join(settings)}: {answer.stderr.strip() or answer.returncode}")
    return json.loads(answer.stdout)
