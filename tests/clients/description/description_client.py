"""Whether the server answers as `/openapi.json` says, and never with a 5xx: requests that schemathesis makes of that description.

One behaviour is one operation. Arguments and report: `kit`.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import kit

served = kit.server()
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"
# The bound, and the seed that makes a run repeatable.
EXAMPLES, SEED = "30", "15"


def main():
    with tempfile.TemporaryDirectory(prefix="camshaft-description-") as folder:
        report = pathlib.Path(folder, "junit.xml")
        command = [
            str(pathlib.Path(sys.executable).with_name("st")), "run", f"{served.url}/openapi.json", "--no-color",
            "--header", f"authorization: Bearer {served.key}", "--phases", "examples,coverage,fuzzing", "--checks", CHECKS,
            "--max-examples", EXAMPLES, "--seed", SEED, "--request-timeout", str(kit.PATIENCE_S), "--continue-on-failure",
            "--generation-database", "none", "--report", "junit", "--report-junit-path", str(report),
        ]
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "EMBEDDER": kit.embedding_model(served) or ""}
        environment["PYTHONPATH"] = os.pathsep.join([str(pathlib.Path(__file__).parent), environment.get("PYTHONPATH", "")])
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        # Beside 0 and 1 it found nothing because it did not run.
        assert done.returncode in (0, 1), done
        cases = xml.etree.ElementTree.parse(report).getroot().iter("testcase")
        operations = {case.get("name"): case.find("failure") is None and case.find("error") is None for case in cases}
    if not all(operations.values()):
        print(done.stdout)
    for name, passed in operations.items():
        print(f"{'passed' if passed else 'failed'}: {name}")
    failed = sum(not passed for passed in operations.values())
    assert operations
    print(f"{len(operations) - failed} passed" + (f", {failed} failed" if failed else ""))
    sys.exit(1 if failed else 0)


main()
