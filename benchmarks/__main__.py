"""Compare outboxq with its peers and with hand-written SQL in one run: `python -m benchmarks`, or `nox -s bench`.

The page docs/explanation/benchmarks.md contains the rules of the measurement. The run starts its own PostgreSQL server,
creates a virtual environment for each peer, and prints tables. Only the first creation of an environment needs the
network. `--json` and `--charts` write the results to files.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from benchmarks import alone, caller, charts, claims, producers, together
from benchmarks.bench import FULL, QUICK, TINY, Bench, Sizes, about, server, wanted
from benchmarks.published import publish
from benchmarks.queues import POSTGRESQL, QUEUES, Environments, default_cache
from benchmarks.report import compare, report
from benchmarks.results import Results

KINDS = ("postgresql", "sqlite")
MEASURES: dict[str, Callable[[Bench, str], None]] = {
    "enqueue": together.enqueue,
    "drain": together.drain,
    "pickup": together.pickup,
    "caller": caller.caller,
    "claims": claims.claims,
    "producers": producers.producers,
    "handlers": alone.handlers,
    "memory": alone.memory,
    "backlog": together.backlog,
    "history": alone.history,
}
"""The measures that run on each database, in this order. The long ones come last."""


def main() -> int:
    given = arguments()
    if given.compare:
        print(compare(*(Results.read(path) for path in given.compare)))
        return 0
    if given.publish:
        publish(given.publish)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # lets the context managers end the processes
    results = Results.read(given.read) if given.read else run(given)
    print(report(results))
    if given.charts:
        charts.write(results, given.charts)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", action="store_true", help="measure small sizes; takes less than five minutes on two cores"
    )
    size.add_argument("--tiny", action="store_true", help="only check that everything works; the figures mean nothing")
    parser.add_argument("--only", action="append", choices=MEASURES, help="take only this measurement; may be repeated")
    parser.add_argument("--on", choices=KINDS, help="measure only this database")
    parser.add_argument(
        "--peer",
        action="append",
        choices=[queue.name for queue in POSTGRESQL if queue.requirements] + ["none"],
        help="measure only this peer; may be repeated; none: only outboxq and raw",
    )
    parser.add_argument("--rounds", type=int, help="number of times that everything is measured")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--charts", type=Path, help="write charts into this directory")
    parser.add_argument(
        "--cache", type=Path, default=default_cache(), help="directory of the peers' virtual environments"
    )
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar="FILE", help="compare two files that --json wrote, without measuring"
    )
    parser.add_argument(
        "--read", type=Path, metavar="FILE", help="report on a file that --json wrote, without measuring"
    )
    parser.add_argument(
        "--publish",
        type=Path,
        metavar="FILE",
        help="show this file, which --json wrote, in README.md and docs/explanation, without measuring",
    )
    return parser.parse_args()


def run(given: argparse.Namespace) -> Results:
    results, environments, sizes = Results(), Environments(given.cache), sizes_of(given)
    environments.note_ours()
    peers = frozenset(given.peer) if given.peer else None
    kinds = [kind for kind in KINDS if given.on in {None, kind}]
    began = time.monotonic()
    environments.make(queue for kind in kinds for queue in QUEUES[kind] if wanted(queue, sizes, peers))
    print(f"{time.monotonic() - began:6.0f} s  for the peers' environments", file=sys.stderr, flush=True)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    postgresql = server() if "postgresql" in kinds else nullcontext()
    with (
        postgresql as cluster,
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir=memory) as light,
    ):
        results.about = {"command": command(given), **about(cluster, Path(folder))}
        results.about["sizes"] = repr(sizes)
        bench = Bench(
            sizes=sizes,
            results=results,
            environments=environments,
            folder=Path(folder),
            memory=Path(light),
            cluster=cluster,
            peers=peers,
        )
        began = time.monotonic()
        try:
            for name, measure in MEASURES.items():
                for kind in kinds if not given.only or name in given.only else ():
                    print(f"{time.monotonic() - began:6.0f} s  {kind}, {name}", file=sys.stderr, flush=True)
                    try:
                        measure(bench, kind)
                    except Exception as error:  # noqa: BLE001 - the report contains it, and the other measures continue
                        bench.failed(f"{kind}, {name}", error)
                    results.about["took"] = f"{time.monotonic() - began:.0f} s"
                    results.about["versions"] = environments.versions
                    if given.json:
                        results.write(given.json)  # a run that is stopped keeps its results so far
        finally:
            bench.close()
    return results


def sizes_of(given: argparse.Namespace) -> Sizes:
    sizes = TINY if given.tiny else QUICK if given.quick else FULL
    if given.rounds:
        return replace(sizes, rounds=given.rounds, slow_rounds=min(given.rounds, sizes.slow_rounds))
    return sizes


def command(given: argparse.Namespace) -> str:
    """Return the command of this run, without the options that name files."""
    words = [f"--{size}" for size in ("quick", "tiny") if getattr(given, size)]
    for option in ("only", "on", "peer", "rounds"):
        said = getattr(given, option) or []
        words += [f"--{option} {value}" for value in (said if isinstance(said, list) else [said])]
    return " ".join(["nox -s bench", *(["--", *words] if words else [])])


if __name__ == "__main__":
    raise SystemExit(main())
