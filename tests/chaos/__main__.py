"""Run the chaos bench: `python -m tests.chaos [--minutes M] [--seed S] [--silos N] [--lane WAY] [--wipe] [--json]`.

It prints each act as it begins, and counts at the end. Exit code 0: every promise was kept; 1: one was not, and what
was seen is kept in a folder, with the command that plays the same schedule again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import tempfile
from collections import Counter as Tally
from pathlib import Path
from typing import Final, cast

from silo.application import run_on
from tests.chaos.bench import Bench, Plan
from tests.chaos.cluster import Lane
from tests.chaos.verdict import Verdict

VIOLATIONS_SHOWN: Final = 20
VIOLATIONS_FILE: Final = "violations.txt"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long the storm lasts (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the schedule; a new one where none is given")
    parser.add_argument("--silos", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument(
        "--lane",
        type=Lane,
        choices=[*Lane],
        default=Lane.TCP,
        help="by which way silos talk once they have met; what goes by sockets nobody can trouble (default: tcp)",
    )
    parser.add_argument("--lease", type=float, default=2.0, help="of the silos, in seconds (default: %(default)s)")
    parser.add_argument("--wipe", action="store_true", help="also wipe Redis, and set it back to an earlier state")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--evidence", type=Path, help="keep what was seen in this folder, whatever the verdict")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 0 if every promise was kept."""
    options = _parse(arguments)
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    plan = Plan(
        options.minutes * 60, seed, silos=options.silos, lease_s=options.lease, wipe=options.wipe, lane=options.lane
    )
    folder: Path = options.evidence or Path(tempfile.mkdtemp(prefix=f"silo-chaos-{seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    again = f"python -m tests.chaos --minutes {options.minutes:g} --seed {seed} --silos {options.silos}"
    again += f" --lease {options.lease:g} --lane {options.lane}" + (" --wipe" if options.wipe else "")
    print(f"{again}  (evidence in {folder})", file=sys.stderr, flush=True)
    verdict = play(plan, folder)
    if options.json:
        print(json.dumps({"seed": seed, "minutes": options.minutes, "silos": options.silos, **verdict.counts}))
    else:
        print("\n".join(f"{name:<22} {_shown(value)}" for name, value in verdict.counts.items()))
    if verdict.is_good:
        if options.evidence is None:
            shutil.rmtree(folder)
        return 0
    print(f"FAILED, what was seen is in {folder}", file=sys.stderr)
    for violation in verdict.violations[:VIOLATIONS_SHOWN]:
        print(f"  {violation}", file=sys.stderr)
    if len(verdict.violations) > VIOLATIONS_SHOWN:
        rules = Tally(violation.rule for violation in verdict.violations)
        print(f"  and more, all in {folder / VIOLATIONS_FILE}: {dict(rules)}", file=sys.stderr)
    print(f"  to repeat its schedule: {again}", file=sys.stderr, flush=True)
    return 1


def play(plan: Plan, folder: Path) -> Verdict:
    """One run, told on standard error; its violations are written beside its witness."""
    found: list[Verdict] = []

    async def run() -> int:
        began = asyncio.get_running_loop().time()

        def tell(what: str) -> None:
            print(f"[{asyncio.get_running_loop().time() - began:7.1f}] {what}", file=sys.stderr, flush=True)

        found.append(await Bench(plan, folder, tell).run())
        return 0

    run_on(None, run())
    (verdict,) = found
    lines = "".join(f"{violation}\n" for violation in verdict.violations)
    (folder / VIOLATIONS_FILE).write_text(lines, encoding="utf-8")
    return verdict


def _shown(value: object) -> str:
    if isinstance(value, dict):
        counts = cast("dict[str, int]", value)
        return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
