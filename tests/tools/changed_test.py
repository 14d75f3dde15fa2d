"""tools/changed on a build of two programs and a module: which tests a change reaches."""
import unittest

import scripts

changed = scripts.load("changed")

LOG = f"""\
a.cc.o: #deps 2, deps mtime 1 (VALID)
    {changed.ROOT}/layer/a.cc
    {changed.ROOT}/layer/a.h
    /usr/include/string

b.cc.o: #deps 2, deps mtime 1 (VALID)
    {changed.ROOT}/layer/b.cc
    {changed.ROOT}/layer/a.h
"""
OUTPUTS = {"a.cc.o": ["liba.a"], "b.cc.o": ["libb.a"], "liba.a": ["bin/holdfast", "all"], "libb.a": ["bin/test_b", "phony_b"]}
TESTS = [
    {"name": "b.Suite.Test", "command": [f"{changed.ROOT}/build/release/bin/test_b", "--gtest_filter=Suite.Test"]},
    {"name": "b_more", "command": [f"{changed.ROOT}/build/release/bin/test_b_more"]},
    {"name": "system.runs", "command": ["python3", f"{changed.ROOT}/tests/system/runs_test.py"],
     "properties": [{"name": "ENVIRONMENT", "value": [f"HOLDFAST={changed.ROOT}/build/release/bin/holdfast"]}]},
    {"name": "system.docs", "command": ["python3", f"{changed.ROOT}/tests/system/docs_test.py"]},
    {"name": "tools", "command": ["python3", "-m", "unittest", "discover", "-s", f"{changed.ROOT}/tests/tools"]},
    {"name": "mutants", "command": [f"{changed.ROOT}/tools/mutants", "--check"]},
]
SOURCES = {
    "tests/system/harness.py": "MPIRUN = ROOT / 'tools/mpirun'\n",
    "tests/system/runs_test.py": "import harness\n",
    "tests/system/docs_test.py": "import json\n",
    "tools/mpirun": "source \"$(dirname \"$0\")/lib.sh\"\n",
    "tools/lib.sh": "",
    "tools/alone": "",
    "tools/tested": "",
    "tests/tools/tested_test.py": '"""Of tools/tested."""\nimport scripts\n',
    "tests/tools/scripts.py": "",
}


def answer(names):
    lines = []
    for name in names:
        lines += [f"{name}:", "  input: LINKER", "    bin/never_an_output", "  outputs:"]
        lines += [f"    {each}" for each in OUTPUTS.get(name, [])]
    return "\n".join(lines)


def programs_of(name):
    return changed.programs_of(changed.objects_by_file(LOG).get(name, set()), answer)


def chosen(name):
    return changed.choose(name, TESTS, programs_of(name), SOURCES)[1]


class ChangedTest(unittest.TestCase):
    def test_a_source_reaches_what_is_linked_with_it(self):
        self.assertEqual(programs_of("layer/b.cc"), {"bin/test_b"})
        self.assertEqual(chosen("layer/b.cc"), {"b.Suite.Test"})

    def test_a_header_reaches_all_that_include_it(self):
        self.assertEqual(programs_of("layer/a.h"), {"bin/test_b", "bin/holdfast"})
        self.assertEqual(chosen("layer/a.h"), {"b.Suite.Test", "system.runs"})

    def test_a_file_that_is_in_no_program_may_reach_everything(self):
        for name in ("layer/new.cc", "CMakeLists.txt", "tests/golden/llama.golden"):
            self.assertEqual(chosen(name), changed.EVERYTHING, name)

    def test_a_test_file_reaches_itself_and_what_it_imports_reaches_it(self):
        self.assertEqual(chosen("tests/system/docs_test.py"), {"system.docs"})
        self.assertEqual(chosen("tests/system/harness.py"), {"system.runs"})

    def test_a_tool_reaches_the_tests_that_run_it(self):
        self.assertEqual(chosen("tools/mpirun"), {"system.runs"})
        self.assertEqual(chosen("tools/lib.sh"), {"system.runs"})
        self.assertEqual(chosen("tools/mutants"), {"mutants"})
        self.assertEqual(chosen("tools/tested"), {"tools"})
        self.assertEqual(chosen("tests/tools/scripts.py"), {"tools"})
        self.assertEqual(chosen("tools/alone"), set())

    def test_a_document_reaches_those_of_the_documents(self):
        self.assertEqual(chosen("docs/launch.md"), {"system.docs"})
        self.assertEqual(chosen("tests/mutants/bits.toml"), {"mutants"})

    def test_ctest_reads_whole_numbers(self):
        self.assertEqual(changed.list_for_ctest([7, 1875]), "0,0,0,7,1875\n")
        self.assertEqual(changed.list_for_ctest([]), "")


if __name__ == "__main__":
    unittest.main()
