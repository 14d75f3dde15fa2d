"""tools/mutants: a bug that cannot say anything is an error that names it."""
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import scripts

mutants = scripts.load("mutants")


def mutant(**changes):
    values = {"name": "planted", "bug": "", "file": "layer/a.cc", "old": "return x;", "new": "return y;",
              "tests": ["test_a: Suite.Test"], "kind": "list"}
    return mutants.Mutant(**{**values, **changes})


class MutantsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name, text in {"layer/a.cc": "if (x) return x;\n", "tests/a/a_test.cc": "TEST(Suite, Test) {\n",
                           "kernels/op.h": "  X(matmul, Matmul, matmul)\n"}.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        for name, value in {"ROOT": self.root, "FOLDER": self.root / "tests/mutants", "WORK": self.root / "build/mutants"}.items():
            patch = mock.patch.object(mutants, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def check(self, one):
        with mock.patch("builtins.print") as said:
            applies = mutants.check([one])
        return applies, said.call_args.args[0]

    def test_applies_where_its_text_is_once(self):
        self.assertEqual(mutant().changed(), "if (x) return y;\n")
        self.assertTrue(self.check(mutant())[0])
        self.assertTrue(self.check(mutant(tests=["test_kernels: matmul.*"]))[0])

    def test_text_that_is_gone_or_twice_names_the_mutant(self):
        for old, count in (("return z;", 0), ("x", 2)):
            applies, said = self.check(mutant(old=old))
            self.assertFalse(applies)
            self.assertIn(f"mutant planted does not apply: its old text occurs {count} times in layer/a.cc", said)

    def test_files_and_tests_that_are_gone_name_the_mutant(self):
        for changes, sentence in (({"file": "layer/b.cc"}, "there is no file layer/b.cc"),
                                  ({"tests": ["test_a: Suite.Other"]}, "names tests that are not there"),
                                  ({"tests": ["tests/system/x_test.py: X.test_x"]}, "names tests that are not there"),
                                  ({"new": "return x;"}, "changes nothing")):
            applies, said = self.check(mutant(**changes))
            self.assertFalse(applies, changes)
            self.assertIn(sentence, said)
            self.assertIn("mutant planted", said)

    def outcome(self, script):
        program = self.root / "test_a"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return mutants.run_test("test_a", program, "Suite.Test")

    def test_a_test_that_fails_or_dies_or_hangs_notices(self):
        self.assertEqual(self.outcome("exit 0"), (True, ""))
        self.assertEqual(self.outcome("echo '[  FAILED  ] Suite.Test (0 ms)'; exit 1"), (False, "Suite.Test"))
        self.assertEqual(self.outcome("kill -SEGV $$"), (False, "died by SIGSEGV"))
        self.assertEqual(self.outcome("echo '[ RUN      ] Suite.Test'; kill -ABRT $$"), (False, "Suite.Test, which died by SIGABRT"))
        with mock.patch.object(mutants, "TEST_TIMEOUT_S", 0.2):
            self.assertEqual(self.outcome("sleep 10"), (False, "Suite.Test, which did not end within 0.2 s"))

    def test_a_filter_without_tests_does_not_pass(self):
        self.assertEqual(self.outcome("echo '[==========] 0 tests from 0 test suites ran.'"), (False, "no test"))

    def run_one(self, passes):
        """Plants one mutant whose test passes with the bug, or not; says whether all were noticed, and what was printed."""
        build, runner = mock.Mock(), mock.Mock()
        runner.return_value.notice.return_value = "" if passes else "test_a: Suite.Test"
        with mock.patch.multiple(mutants, Build=build, Runner=runner), mock.patch("builtins.print") as said:
            noticed = mutants.plant_all(mock.Mock(table=None), [mutant()])
        return noticed, "\n".join(call.args[0] for call in said.call_args_list)

    def test_two_at_once_would_run_each_others_programs(self):
        with mutants.hold_folder(), self.assertRaisesRegex(mutants.Trouble, "another tools/mutants plants bugs in build/mutants"):
            mutants.hold_folder()
        mutants.hold_folder().close()

    def test_what_nobody_notices_is_a_failure(self):
        self.assertTrue(self.run_one(passes=False)[0])
        noticed, said = self.run_one(passes=True)
        self.assertFalse(noticed)
        self.assertIn("planted: NOT NOTICED by test_a: Suite.Test", said)
        self.assertIn("1 of 1 mutants were not noticed", said)


if __name__ == "__main__":
    unittest.main()
