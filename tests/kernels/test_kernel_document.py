"""docs/kernels.md: its tables are those of the committed CSV files."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tables_come_from_the_csv_files():
    script = ROOT / "benchmarks" / "kernel_tables.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
