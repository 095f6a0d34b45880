"""The process in which `penstock run --compare` measures: `python -m penstock.cli.child FD ENGINE STEPS [-m] SCRIPT …`.

Reports on the descriptor FD, a line of JSON at a time. Its standard output and error are the program's own.
"""

from __future__ import annotations

import json
import os
import sys

from penstock.cli.meter import Meter
from penstock.cli.program import Program
from penstock.cli.script import run


def main(argv: list[str]) -> int:
    descriptor, engine, steps, *words = argv
    os.set_inheritable(int(descriptor), False)
    module = words[0] == "-m"
    script, *args = words[1:] if module else words
    owner = os.getpid()

    def tell(meter: Meter, diagnosis: str = "", adoption: str = "") -> None:
        if os.getpid() == owner:  # not in processes that the program has forked
            line = json.dumps({"facts": meter.facts(), "diagnosis": diagnosis, "adoption": adoption})
            os.write(int(descriptor), line.encode() + b"\n")

    meter = Meter(steps=int(steps) or None, on_progress=tell)
    code = run(Program(script=script, args=tuple(args), module=module), meter, engine=engine)
    busiest = max(meter.records, key=lambda record: record.batches, default=None)
    tell(meter, *(("", "") if busiest is None else (busiest.diagnosis(), busiest.adoption)))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
