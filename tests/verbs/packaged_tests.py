"""Runs the tests that Debian packages with pyverbs, and prints for each, separated by tabs: outcome, name and reason.

    packaged_tests.py SOURCE SCRATCH [DEVICE GID_INDEX]

SOURCE is the directory of the tests as packaged, SCRATCH an empty one for copies that are not compressed. DEVICE is flue0 if not
given.
"""
import gzip
import os
import shutil
import sys
import unittest

source, scratch = sys.argv[1:3]
device, gid_index = sys.argv[3:] or ["flue0", "0"]
copies = os.path.join(scratch, "tests")
os.mkdir(copies)
for name in os.listdir(source):
    path = os.path.join(source, name)
    packed = gzip.open(path) if name.endswith(".gz") else open(path, "rb")
    with packed, open(os.path.join(copies, name.removesuffix(".gz")), "wb") as copy:
        shutil.copyfileobj(packed, copy)

# An iWARP device has one GID, a MAC address and zeros: the tests use it only if it is given explicitly.
sys.argv = ["run_tests.py", "--dev", device, "--port", "1", "--gid", gid_index]
sys.path[:0] = [scratch, copies]
from args_parser import parser  # noqa: E402

import tests  # noqa: E402

parser.parse_args()


class Outcomes(unittest.TestResult):
    def say(self, outcome, test, reason=""):
        print(outcome, test.id(), " ".join(reason.split()), sep="\t", flush=True)

    def addSuccess(self, test):
        self.say("ok", test)

    def addSkip(self, test, reason):
        self.say("skip", test, reason)

    def addError(self, test, error):
        self.say("error", test, str(error[1]))

    def addFailure(self, test, error):
        self.say("error", test, str(error[1]))


unittest.defaultTestLoader.loadTestsFromModule(tests).run(Outcomes())
