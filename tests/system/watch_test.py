"""A run that is watched: on a terminal, by a command that is told of it, and by a scraper."""
import json
import os
import pty
import re
import select
import signal
import socket
import stat
import subprocess
import time
import unittest
import urllib.error
import urllib.request

import harness

STEPS = 60
READERS = harness.ROOT / ".deps/metrics/bin/python"
SLOW = ["--training.steps=60", "--checkpoint.every_steps=10"]


def on_a_terminal(*words, environment=None, columns=100, rows=30):
    """Starts the program on a terminal of its own, and returns it with the other end."""
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen([harness.PROGRAM, *map(str, words)], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True)
    os.close(slave)
    return process, master


def read_all(process, master, timeout_s=60):
    text, until = b"", time.monotonic() + timeout_s
    while time.monotonic() < until:
        if select.select([master], [], [], 0.1)[0]:
            try:
                piece = os.read(master, 65536)
            except OSError:
                break
            if not piece:
                break
            text += piece
        elif process.poll() is not None:
            break
    os.close(master)
    return text.decode()


class WatchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(STEPS)
        cls.addClassCleanup(cls.scene.close)

    def test_a_terminal_shows_the_run_until_it_is_over(self):
        run = self.scene.run("terminal", SLOW)
        start = run.start(4, faults="step.before_reduce@30:2=kill,step.begin@40=sleep:3000")
        self.assertTrue(start.wait_for_step(2), start.output())
        process, master = on_a_terminal("status", run.directory, "--watch", "--every", "0.2", environment=dict(os.environ, TERM="xterm"))
        text = read_all(process, master)
        self.assertEqual(process.wait(), 0, text)
        start.expect_exit(0)
        screens = text.split("\x1b[H")
        self.assertGreater(len(screens), 4, "it is drawn anew")
        self.assertTrue(text.startswith("\x1b[2J\x1b[H"))
        plain = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", screen) for screen in screens]
        for line in "\n".join(plain).splitlines():
            self.assertLessEqual(len(line.rstrip("\r")), 100, line)
        self.assertIn(f"{STEPS} of {STEPS}", plain[-1])
        self.assertRegex(plain[-1], r"lost rank 2 \(host \S+\)")
        self.assertRegex(plain[-1], r"in place with 3 of 4 ranks")
        self.assertTrue(any(re.search(r"\n +0  \S+ .*(step|save|evaluation) \d+", screen) for screen in plain), plain[1])
        self.assertIn("\x1b[31m", text, "what failed is red")

    def test_without_a_terminal_it_is_printed_and_ctrl_c_ends_it(self):
        run = self.scene.run("printed", SLOW)
        start = run.start(1, faults="step.begin@20=sleep:4000")
        self.assertTrue(start.wait_for_step(5), start.output())
        process = subprocess.Popen([harness.PROGRAM, "status", run.directory, "--watch", "--every=0.2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True)
        text = ""
        for line in process.stdout:
            text += line
            if text.count("\ntime ") == 3:
                break
        process.send_signal(signal.SIGINT)
        text += process.communicate(timeout=20)[0]
        self.assertEqual(process.returncode, 0, text)
        self.assertNotIn("\x1b", text)
        self.assertGreater(text.count("\ntime      goodput"), 2, text)
        start.expect_exit(0)
        again = harness.call_program("status", run.directory, "--watch")
        self.assertEqual(again.returncode, 0, again.stdout)
        self.assertIn("finished", again.stdout)
        for words, sentence in ((["--every=1"], "add --watch"), (["--json", "--watch"], "--follow --json"), (["--watch", "--every=0"], "every")):
            refused = harness.call_program("status", run.directory, *words)
            self.assertEqual((refused.returncode, sentence in refused.stdout), (2, True), refused)

    def test_a_log_that_cannot_be_read_is_said(self):
        run = self.scene.run("unreadable", ["--training.steps=6"])
        run.start(1).expect_exit(0)
        log = run.directory / "events.jsonl"
        log.rename(run.directory / "kept")
        log.mkdir()
        for words in ([], ["--watch"]):
            told = harness.call_program("status", run.directory, *words)
            self.assertEqual(told.returncode, 0, told.stdout)
            self.assertRegex(told.stdout, r"\nlog       .*events\.jsonl")
            self.assertIn("finished", told.stdout)
        self.assertIn("events.jsonl", json.loads(harness.program_output("status", run.directory, "--json"))["log_unreadable"])

    def test_a_line_as_wide_as_the_terminal_keeps_its_last_column(self):
        run = self.scene.run("wide", ["--training.steps=6"])
        run.start(1).expect_exit(0)
        for rows in (30, 1):
            process, master = on_a_terminal("status", run.directory, "--watch", environment=dict(os.environ, NO_COLOR="1"), columns=40, rows=rows)
            text = read_all(process, master)
            self.assertEqual(process.wait(), 0)
            lines = text.removeprefix("\x1b[2J\x1b[H").removesuffix("\x1b[J").split("\r\n")[:-1]
            self.assertTrue(all(re.fullmatch(r"\x1b\[K[^\x1b]*", line) for line in lines), text)
            self.assertEqual(len(lines) == 1, rows == 1, text)

    def test_no_colors(self):
        run = self.scene.run("colors", ["--training.steps=6"])
        run.start(1).expect_exit(0)
        process, master = on_a_terminal("status", run.directory, "--watch", environment=dict(os.environ, NO_COLOR="1"), columns=40)
        text = read_all(process, master)
        self.assertEqual(process.wait(), 0)
        self.assertNotRegex(text, r"\x1b\[[0-9;]*m")
        self.assertTrue(all(len(line) <= 40 for line in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).splitlines()), text)

    def test_classes_of_time_add_up_to_the_wall_time(self):
        """Of a run with a death, a stop that was asked for and a pause: status, metrics and report have the same numbers."""
        run = self.scene.run("classes", [*SLOW, "--evaluation.every_steps=10"])
        first = run.start(2, faults="step.before_reduce@30:1=kill,step.begin@20=sleep:1500")
        self.assertTrue(first.wait_for_step(12), first.output())
        first.signal(signal.SIGUSR2)
        if first.wait() == 75:
            time.sleep(2)
            run.start(2).expect_exit(0)
        events = run.events()
        told = json.loads(harness.program_output("status", run.directory, "--json"))
        seconds = told["seconds"]
        start_up = sum(events[0].get(name, 0) for name in ("join_ms", "worker_ms", "state_ms", "gemm_peak_ms")) / 1e3
        wall = (events[-1]["time_us"] - events[0]["time_us"]) / 1e6 + start_up
        self.assertAlmostEqual(sum(seconds.values()), wall, delta=0.001 * wall)
        self.assertAlmostEqual(told["goodput"], seconds["training"] / (sum(seconds.values()) - seconds["paused"]), places=6)
        self.assertGreater(seconds["evaluation"], 0)
        self.assertGreater(seconds["saving"], 0)
        if any(event["event"] == "finish" and event["exit_code"] == 75 for event in events):
            self.assertGreater(seconds["paused"], 1.9)
            self.assertAlmostEqual(told["goodput"], seconds["training"] / (wall - seconds["paused"]), delta=0.01)
        in_metrics = dict(re.findall(r'holdfast_time_seconds\{run="\w+",use="([^"]+)"\} (\S+)', harness.program_output("metrics", run.directory)))
        self.assertEqual({name: float(value) for name, value in in_metrics.items()}, seconds)


class NotifyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(STEPS)
        cls.addClassCleanup(cls.scene.close)

    def told(self, name):
        file = self.scene.directory / f"{name}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def noting(self, name):
        """A command that notes what it is told as JSON, as a webhook would be."""
        script = self.scene.directory / "note.py"
        script.write_text("import json, os, sys\nwith open(sys.argv[1], 'a') as out:\n"
                          "    out.write(json.dumps({key[9:].lower(): value for key, value in os.environ.items() if key.startswith('HOLDFAST_')}) + '\\n')\n")
        return f"--notify.command=exec python3 {script} {self.scene.directory / name}.jsonl"

    def test_the_rank_that_leads_tells_where_there_is_no_launcher(self):
        run = self.scene.run("alone", [*SLOW, self.noting("alone"), "--notify.heartbeat=200ms"])
        run.start(2, faults="step.before_reduce@50:1=kill,step.begin@40=sleep:1500").expect_exit(0)
        told = self.told("alone")
        # What a busy machine brings besides is not of this test.
        kinds = [each["event"] for each in told if each["event"] not in ("heartbeat", "straggler", "health")]
        self.assertEqual(kinds, ["start", "fault", "recovery", "finish"], told)
        self.assertIn("heartbeat", [each["event"] for each in told])
        fault = next(each for each in told if each["event"] == "fault")
        self.assertRegex(fault["sentence"], r"^lost rank 1 \(host \S+\): ")
        self.assertEqual(fault["directory"], str(run.directory))
        self.assertEqual(fault["run"], run.events("start")[0]["run"])
        self.assertEqual((told[-1]["state"], told[-1]["exit_code"], told[-1]["step"]), ("finished", "0", str(STEPS)))
        self.assertNotIn("note.py", (run.directory / "config.toml").read_text(), "the command is a secret")

    def test_the_launcher_tells_of_ranks_that_are_all_dead(self):
        run = self.scene.run("launched", [*SLOW, self.noting("launched")])
        words = [str(harness.PROGRAM), "launch", "-np", "2", str(self.scene.config), f"--run.directory={run.directory}", *run.overrides]
        start = run.start_command(words, faults="step.begin@30=kill")
        start.expect_exit(0)
        told = self.told("launched")
        kinds = [each["event"] for each in told]
        self.assertEqual(kinds[0], "start", told)
        self.assertEqual((kinds[-1], told[-1]["state"]), ("finish", "finished"), told)
        self.assertEqual(kinds.count("finish"), 1, told)
        self.assertIn("fault", kinds, told)
        self.assertGreaterEqual(kinds.count("start"), 2, told)

    def test_a_command_that_hangs_does_not_outlast_the_notice(self):
        run = self.scene.run("noticed", [*SLOW, "--notify.command=sleep 1000"])
        words = [str(harness.PROGRAM), "launch", "-np", "2", "--notice", "6", str(self.scene.config), f"--run.directory={run.directory}", *run.overrides]
        start = run.start_command(words, faults="step.begin@20=sleep:2000")
        self.assertTrue(start.wait_for_step(8), start.output())
        begin = time.monotonic()
        start.signal(signal.SIGTERM)
        start.expect_exit(75)
        self.assertLess(time.monotonic() - begin, 7)

    def test_a_command_that_hangs_or_fails_costs_no_step(self):
        plain = self.scene.run("plain", ["--training.steps=12"])
        plain.start(1).expect_exit(0)
        for name, command, sentence in (("hangs", "sleep 1000", "took longer than notify.timeout = 300ms"), ("fails", "echo no route; exit 3", "no route")):
            run = self.scene.run(name, ["--training.steps=12", f"--notify.command={command}", "--notify.timeout=300ms"])
            start = run.start(1)
            start.expect_exit(0)
            self.assertEqual(start.output().count("notify.command"), 1, start.output())
            self.assertIn(sentence, start.output())
            self.assertEqual(run.digest(), plain.digest())


class ListenTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(STEPS)
        cls.addClassCleanup(cls.scene.close)

    def get(self, url, headers=()):
        with urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers)), timeout=10) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    def test_a_scraper_reads_the_run(self):
        run = self.scene.run("scraped", [*SLOW, "--metrics.listen=127.0.0.1:0"])
        start = run.start(2, faults="step.begin@40=sleep:6000")
        self.assertTrue(start.wait_for_step(12), start.output())
        url = (run.directory / "metrics_address").read_text().strip()
        self.assertIn(f"metrics: {url}", start.output())
        time.sleep(1.5)
        kind, text = self.get(url)
        self.assertIn("version=0.0.4", kind)
        self.assertRegex(text, r'\nholdfast_step\{run="\w+"\} \d+\n')
        kind, scraped_text = self.get(url, {"Accept": "application/openmetrics-text;version=1.0.0"}.items())
        self.assertIn("application/openmetrics-text; version=1.0.0", kind)
        self.assertTrue(scraped_text.endswith("# EOF\n"))
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.get(url.replace("/metrics", "/"))
        self.assertEqual(refused.exception.code, 404)
        # Garbage, and clients that say nothing.
        port = int(url.split(":")[2].split("/")[0])
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        held[0].sendall(os.urandom(4000))
        self.assertRegex(self.get(url)[1], r"holdfast_step\{")
        for each in held:
            each.close()
        start.expect_exit(0)
        self.assertFalse((run.directory / "metrics_token").exists(), "on loopback there is none")
        self.assertFalse((run.directory / "metrics_address").exists(), "nobody answers there any more")
        if READERS.exists():  # tools/bootstrap --tests
            scraped = self.scene.directory / "text"
            scraped.mkdir()
            (scraped / "metrics.prom").write_text(scraped_text)
            read = json.loads(subprocess.run([READERS, harness.ROOT / "tests/system/read_metrics.py", scraped], capture_output=True, check=True, timeout=60).stdout)
            for parser in ("openmetrics", "prometheus"):
                self.assertIn("holdfast_goodput_ratio", {name for name, _, _ in read[parser]}, parser)

    def test_elsewhere_a_scraper_needs_the_token(self):
        run = self.scene.run("locked", [*SLOW, "--metrics.listen=:0"])
        start = run.start(1, faults="step.begin@40=sleep:5000")
        self.assertTrue(start.wait_for_step(12), start.output())
        url = re.sub("//[^:]+:", "//127.0.0.1:", (run.directory / "metrics_address").read_text().strip())
        token = harness.program_output("metrics", run.directory, "--token").strip()
        self.assertEqual(stat.S_IMODE((run.directory / "metrics_token").stat().st_mode), 0o600)
        for headers in ({}, {"Authorization": "Bearer " + "0" * 64}):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.get(url, headers.items())
            self.assertEqual(refused.exception.code, 401)
        self.assertIn("holdfast_", self.get(url, {"Authorization": f"Bearer {token}"}.items())[1])
        start.expect_exit(0)
        self.assertNotIn(token, start.output())

    def test_a_port_that_is_taken_ends_nothing(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            run = self.scene.run("taken", ["--training.steps=6", f"--metrics.listen=127.0.0.1:{taken.getsockname()[1]}"])
            start = run.start(1)
            start.expect_exit(0)
            self.assertRegex(start.output(), r"metrics.listen: .*Address already in use. The run goes on")
        refused = self.scene.run("refused", ["--metrics.listen=n0:9400"]).start(1)
        refused.expect_exit(2)
        self.assertIn("expected a numeric address and a port", refused.output())


if __name__ == "__main__":
    harness.main()
