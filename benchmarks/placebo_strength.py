"""How strong the placebo must be to push the *weights* of a model as hard as dispersion does, at the start.

The loss `placebo` has the norm of dispersion's gradient at the states. What reaches the weights is another matter:

    strength = ‖∂ dispersion / ∂ weights‖ / ‖∂ placebo / ∂ weights‖

of the mean over all blocks and windows of each, first order, float32. The study `placebo` takes the number for its
model. It depends on the number of windows: pushes of dispersion agree from text to text and add up, those of the
placebo do not, so it is to be measured with as many as a step has (the default), which wants a GPU.

    python benchmarks/placebo_strength.py [MODEL] [--data FOLDER] [--out DIR] [--windows 4 --tokens 512]   # on a CPU
"""

from __future__ import annotations

import harness
import torch

from decondense import losses
from decondense.models import load
from decondense.text import open_text
from decondense.windows import draw_windows


def norm(model: torch.nn.Module, ids: torch.Tensor, loss: losses.Loss) -> float:
    model.zero_grad()
    for row in ids.split(2):
        states = model(input_ids=row, output_hidden_states=True, use_cache=False).hidden_states[1:]
        (torch.stack([loss(z) for z in states]).mean() * len(row) / len(ids)).backward()
    return float(sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None)) ** 0.5


def main() -> None:
    parser = harness.arguments(__doc__ or "")
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--data")
    parser.add_argument("--texts", nargs="+", default=["novels", "wikitext-2"])
    parser.add_argument("--windows", type=int, default=32, help="a step of the study; fewer make the placebo stronger")
    parser.add_argument("--tokens", type=int, default=1024)
    o = parser.parse_args()
    model, tokenizer = load(o.model, dtype="float32")
    model.train()
    rows = []
    for text in o.texts:
        drawn = draw_windows(open_text(text, data=o.data), tokenizer, windows=o.windows, tokens=o.tokens)
        ids = torch.from_numpy(drawn.ids).to(model.device)
        real = norm(model, ids, losses.get("dispersion", estimator="first_order"))
        blind = norm(model, ids, losses.get("placebo"))
        row = {"model": o.model, "text": text, "windows": o.windows, "tokens": o.tokens}
        rows.append(row | {"dispersion": real, "placebo": blind, "strength": real / blind})
        print(rows[-1])
    harness.write("placebo_strength", rows, o.out)


if __name__ == "__main__":
    main()
