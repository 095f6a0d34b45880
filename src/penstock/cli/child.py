"""The process that `penstock run --compare` measures: `python -m penstock.cli.child JOB [-m] SCRIPT …`.

JOB is a `Job` as JSON. Reports go to the job's descriptor as lines of JSON. Standard output and error are the program's own.
"""

from __future__ import annotations

import json
import os
import sys

from penstock.cli.meter import LoaderMeter
from penstock.cli.program import Program
from penstock.cli.ranks import this_rank
from penstock.cli.script import run


def main(argv: list[str]) -> int:
    job, *words = argv
    options = json.loads(job)
    descriptor, trace = options["descriptor"], options["trace"]
    os.set_inheritable(descriptor, False)
    module = words[0] == "-m"
    script, *args = words[1:] if module else words
    owner = os.getpid()

    def tell(meter: LoaderMeter, diagnosis: str = "", adoption: str = "") -> None:
        if os.getpid() == owner:  # not in processes forked by the program
            line = json.dumps({"facts": meter.facts(), "diagnosis": diagnosis, "adoption": adoption})
            os.write(descriptor, line.encode() + b"\n")

    os.environ.update(this_rank().meet_anew(options["run"]))
    meter = LoaderMeter(steps=options["steps"], on_progress=tell, traced=trace is not None)
    code = run(Program(script=script, args=tuple(args), module=module), meter, engine=options["engine"])
    busiest = meter.busiest()
    tell(meter, *(("", "") if busiest is None else (busiest.diagnosis(), busiest.adoption)))
    if trace is not None and busiest is not None:
        busiest.write_trace(trace)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
