"""Write the tables of docs/kernels.md from the kernels' CSV files.

python benchmarks/kernel_tables.py            fill every block between <!-- kernels: NAME --> and <!-- end -->
python benchmarks/kernel_tables.py --check    only say whether they are up to date (exit code 1 if not)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from tables import ROOT, Row, markdown, read

DOCUMENT = ROOT / "docs" / "kernels.md"
FLOOR = "floor: two bmm"
BLOCK = re.compile(r"(<!-- kernels: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def number(row: Row, key: str, digits: int = 3) -> str:
    return f"{float(row[key]):.{digits}g}" if row.get(key) else ""


def exact() -> str:
    rows = read("exact")
    header = ["shape", "z", "what", "GPU ms", "× floor", "call ms", "extra memory / z", "gradient error"]
    lines = [
        [
            r["shape"], r["dtype"], r["variant"], number(r, "ms") if r["variant"] in ("kernel", FLOOR) else "",
            f"{float(r['ratio']):.2f}", number(r, "call_ms"), number(r, "memory_of_z"), number(r, "gradient_error", 2),
        ]
        for r in rows
    ]  # fmt: skip
    return markdown(header, lines, "exact", rows)


def first_order() -> str:
    rows = read("first_order")
    header = ["shape", "z", "what", "GPU ms", "× floor", "TB/s"]
    lines = [
        [
            r["shape"],
            r["dtype"],
            r["variant"],
            number(r, "ms"),
            f"{float(r['ratio']):.2f}" if r["ratio"] else "",
            number(r, "TB/s"),
        ]
        for r in rows
        if "public" not in r["variant"]
    ]
    return markdown(header, lines, "first_order", rows)


def cosine_histogram() -> str:
    rows = read("cosine_histogram")
    lines = [[r["shape"], r["dtype"], r["variant"], number(r, "ms"), number(r, "memory_MiB")] for r in rows]
    return markdown(["shape", "u", "what", "ms", "extra MiB"], lines, "cosine_histogram", rows)


def train_step() -> str:
    rows = read("train_step")
    lines = [
        [r["model"], f"{r['batch']}×{r['tokens']}", r["variant"], f"{float(r['ms']):.1f}", f"{float(r['ratio']):.4f}"]
        for r in rows
    ]
    return markdown(["model", "tokens", "what", "ms per step", "ratio"], lines, "train_step", rows)


TABLES: dict[str, Callable[[], str]] = {
    "exact": exact,
    "first_order": first_order,
    "cosine_histogram": cosine_histogram,
    "train_step": train_step,
}


def main() -> int:
    text = DOCUMENT.read_text()
    filled = BLOCK.sub(lambda m: m[1] + TABLES[m[2]]() + m[4], text)
    if filled == text:
        return 0
    if "--check" in sys.argv:
        print(f"out of date: {DOCUMENT.relative_to(ROOT)}: run python benchmarks/kernel_tables.py")
        return 1
    DOCUMENT.write_text(filled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
