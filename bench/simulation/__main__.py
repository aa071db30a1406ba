"""`python -m bench.simulation [--curves DIRECTORY]`: compare the simulation with measured points; draw its curves.

The exit code is 1 if a figure is more than 20 % from what was measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.simulation.comparison import compare, report
from bench.simulation.curves import CHARTS, few_workers
from bench.simulation.pictures import draw


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.simulation", description=__doc__)
    parser.add_argument("--curves", type=Path, metavar="DIRECTORY", help="write the curves as SVG files here")
    options = parser.parse_args()
    comparisons = compare()
    print(report(comparisons))
    for name, chart in CHARTS.items() if options.curves else ():
        drawn = chart()
        (options.curves / f"{name}.svg").write_text(draw(drawn))
        for curve in drawn.curves:
            print(f"{name}, {curve.name}: " + ", ".join(f"{x:,.0f}: {y:,.2f}" for x, y in curve.points))
    if options.curves:
        print(f"10,000 runs in 100 workers: {few_workers().cores:.1f} processors")
    sys.exit(0 if all(one.is_close for one in comparisons) else 1)


if __name__ == "__main__":
    main()
