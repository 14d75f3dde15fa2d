"""tools/coverage on what gcov says: which ways count, and how numbers of lines are told."""
import unittest

import scripts

coverage = scripts.load("coverage")


def branch(count, throw=False):
    return {"count": count, "throw": throw, "fallthrough": not throw}


def line(number, count, *branches):
    return {"line_number": number, "count": count, "branches": list(branches)}


class CoverageTest(unittest.TestCase):
    def test_a_call_that_may_throw_is_no_decision(self):
        self.assertEqual(coverage.decisions([branch(3), branch(0, throw=True)]), [])
        self.assertEqual(coverage.decisions([branch(3), branch(1), branch(4), branch(0, throw=True)]), [3, 1])

    def test_instances_of_a_template_are_one(self):
        counts = coverage.Counts()
        counts.add(line(7, 2, branch(2), branch(0)), "if (left)")
        counts.add(line(7, 1, branch(0), branch(1)), "if (left)")
        counts.add(line(8, 0), "return;")
        self.assertEqual(counts.figures(), [1, 2, 2, 2])
        self.assertEqual(counts.uncovered_lines(), [8])

    def test_a_way_that_only_a_bug_takes_does_not_count(self):
        counts = coverage.Counts()
        counts.add(line(7, 2, branch(2), branch(0)), "HF_CHECK(left);")
        self.assertEqual(counts.figures(), [1, 1, 0, 0])

    def test_a_condition_of_a_line_that_does_not_run_is_no_second_complaint(self):
        counts = coverage.Counts()
        counts.add(line(7, 0, branch(0), branch(0)), "if (left)")
        counts.add(line(9, 4, branch(4), branch(0)), "if (right)")
        self.assertEqual((counts.uncovered_lines(), counts.uncovered_branches()), ([7], [9]))

    def test_ranges(self):
        self.assertEqual(coverage.ranges([3, 4, 5, 9, 11, 12]), "3-5 9 11-12")
        self.assertEqual(coverage.ranges([]), "")


if __name__ == "__main__":
    unittest.main()
