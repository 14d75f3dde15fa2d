"""tools/corpus.py: an option is no name of a folder, and a corpus that is there is left alone."""
import os
import subprocess
import sys
import tempfile
import unittest

import scripts


class CorpusTest(unittest.TestCase):
    def run_in(self, folder, *words):
        return subprocess.run([sys.executable, scripts.ROOT / "tools/corpus.py", *words], cwd=folder, capture_output=True, text=True,
                              timeout=60, check=False)

    def test_options_make_no_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            told = self.run_in(folder, "--help")
            self.assertEqual((told.returncode, told.stderr), (0, ""))
            self.assertIn("usage: tools/corpus.py [-h] DIRECTORY", told.stdout)
            for words in (["--directory"], [], ["a", "b"]):
                self.assertEqual(self.run_in(folder, *words).returncode, 2)
            self.assertEqual(os.listdir(folder), [])

    def test_a_corpus_that_is_there_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("train.txt", "valid.txt"):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(name)
            self.assertIn("train.txt is there", self.run_in(folder, folder).stdout)


if __name__ == "__main__":
    unittest.main()
