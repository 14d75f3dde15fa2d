#!/usr/bin/env python3
"""S11: holdfast chaos puts the names of hosts into lines for a shell as they are in the hostfile."""
import attack


def run_attack(scene):
    made = scene.folder / "made"
    (scene.folder / "hosts").write_text(f"localhost slots=2\nx;touch${{IFS}}{made};true slots=1\n")
    done = scene.holdfast("chaos", "run.toml", "--hostfile", "hosts", "--ranks", "2", "--runs", "1", "--faults", "lost_host",
                          "--lose-host", "true", "--return-host", "true", "--training.steps=60", "--elastic.min_data_parallel=1",
                          patience_s=120, PRTE_MCA_plm_ssh_agent="/bin/false")
    scene.expect(made.exists(), "the name of a host was run by a shell", f"no shell ran it; {attack.last_line(done)}")


if __name__ == "__main__":
    attack.main(run_attack, __doc__)
