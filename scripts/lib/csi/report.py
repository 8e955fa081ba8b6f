"""Reads a JUnit report of csi-sanity: prints failed and skipped specs, each with its reason, or with --counts the numbers."""

import collections
import sys
import xml.etree.ElementTree as tree


def main():
    cases = list(tree.parse(sys.argv[-1]).getroot().iter("testcase"))
    failed = [case for case in cases if case.get("status") not in ("passed", "skipped", "pending")]
    passed = [case for case in cases if case.get("status") == "passed"]
    # Reports have set-up and tear-down of the suite as cases.
    passed = [case for case in passed if case.get("name", "").startswith("[It]")]
    if sys.argv[1] == "--counts":
        print(len(passed), len(failed))
        return
    for case in failed:
        print(f"  failed: {case.get('name')}")
    skipped = collections.defaultdict(list)
    for case in cases:
        if case.get("status") in ("skipped", "pending"):
            reason = case.find("skipped")
            reason = (reason.get("message") if reason is not None else None) or case.get("status")
            skipped[reason.splitlines()[0]].append(case.get("name"))
    for reason, names in sorted(skipped.items()):
        print(f"  {len(names)} not run: {reason}")
        for name in names:
            print(f"    {name}")


main()
