"""One process of a measurement with others: MODEL TEXT FOLDER."""

import os
import sys

from decondense.meter.run import measure

model, text, folder = sys.argv[1:]
result = measure(model, text=text, device="cpu", windows=5, tokens=40, seed=3, bootstrap=200)
result.save(f"{folder}/rank{os.environ['RANK']}.json")
