"""How well each estimator's gradient agrees with the exact one: on the states of a real model, and where it fails.

    python benchmarks/bench_agreement.py         minutes on two cores; writes results/agreement_*.csv

agreement_model   SmolLM2-135M (dequantised Q4_1), WikiText-2 test, every block, N tokens, several τ: gradient cosine
                  and norm ratio against the exact loss on all tokens
agreement_cloud   constructed clouds: cones of every width, two clusters at every angle (antipodal is the worst case)
"""

from __future__ import annotations

from pathlib import Path

import harness
import torch

from decondense import losses
from decondense.models import load
from decondense.text import open_text

ESTIMATORS: dict[str, dict[str, object]] = {
    "first_order": {"estimator": "first_order"},
    "second_order": {"estimator": "second_order"},
    "sampled (256)": {"estimator": "sampled", "max_tokens": 256},
}


def gradient(z: torch.Tensor, **options: object) -> torch.Tensor:
    z = z.detach().float().requires_grad_()
    return torch.autograd.grad(losses.dispersion(z, **options), z)[0].double()


def compare(z: torch.Tensor, tau: float) -> dict[str, dict[str, float]]:
    """Gradient cosine and norm ratio of each estimator against exact, the mean over the sequences of the batch."""
    exact = gradient(z, tau=tau)
    found = {}
    for name, options in ESTIMATORS.items():
        g = gradient(z, tau=tau, **options)
        flat, reference = g.flatten(1), exact.flatten(1)
        found[name] = {
            "cosine": torch.cosine_similarity(flat, reference, dim=1).mean().item(),
            "norm ratio": (flat.norm(dim=1) / reference.norm(dim=1)).mean().item(),
        }
    return found


def real_model(name: str, lengths: list[int], taus: list[float], sequences: int) -> list[harness.Row]:
    model, tokenizer = load(name)
    model.eval()
    ids = tokenizer(open_text("wikitext-2").joined[:200_000], return_tensors="pt").input_ids[0]
    rows = []
    for tokens in lengths:
        batch = ids[: sequences * tokens].reshape(sequences, tokens)
        with torch.no_grad():
            states = model(input_ids=batch, output_hidden_states=True).hidden_states
        for tau in taus:
            for block, z in enumerate(states[1:], 1):
                cosine = losses.mean_cosine(z).mean().item()
                for estimator, result in compare(z, tau).items():
                    where = {"tokens": tokens, "tau": tau, "block": block, "mean cosine": cosine}
                    rows.append({"model": name, **where, "estimator": estimator, **result})
            print(f"N = {tokens}, τ = {tau}: done", flush=True)
    return rows


def cone(tokens: int, width: int, strength: float, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(4, tokens, width, generator=generator)
    return noise + strength * torch.randn(4, 1, width, generator=generator)


def clusters(tokens: int, width: int, cosine: float, generator: torch.Generator) -> torch.Tensor:
    """Two tight clusters whose centres have the given cosine."""
    basis = torch.linalg.qr(torch.randn(4, width, 2, generator=generator)).Q
    first = basis[..., 0]
    second = cosine * first + (1 - cosine**2) ** 0.5 * basis[..., 1]
    half = tokens // 2
    centres = torch.cat([first[:, None].expand(-1, half, -1), second[:, None].expand(-1, tokens - half, -1)], 1)
    return centres * width**0.5 + 0.3 * torch.randn(4, tokens, width, generator=generator)


def constructed() -> list[harness.Row]:
    g = torch.Generator().manual_seed(0)
    clouds = {f"cone, strength {s}": cone(512, 128, s, g) for s in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)}
    clouds |= {f"two clusters, cosine {c}": clusters(512, 128, c, g) for c in (0.9, 0.5, 0.0, -0.5, -0.9, -1.0)}
    rows = []
    for name, z in clouds.items():
        for tau in (1.0, 0.5, 0.1):
            for estimator, result in compare(z, tau).items():
                where = {"cloud": name, "mean cosine": losses.mean_cosine(z).mean().item(), "tau": tau}
                rows.append({**where, "estimator": estimator, **result})
    return rows


def summary(rows: list[harness.Row]) -> list[harness.Row]:
    """Worst, mean and best block of each setting."""
    groups: dict[tuple[object, ...], list[harness.Row]] = {}
    for row in rows:
        groups.setdefault((row["tokens"], row["tau"], row["estimator"]), []).append(row)
    return [
        {
            "tokens": tokens,
            "tau": tau,
            "estimator": estimator,
            "cosine, worst block": min(r["cosine"] for r in group),
            "cosine, mean": sum(r["cosine"] for r in group) / len(group),
            "norm ratio, lowest": min(r["norm ratio"] for r in group),
            "norm ratio, highest": max(r["norm ratio"] for r in group),
        }
        for (tokens, tau, estimator), group in groups.items()
    ]


def plot(rows: list[harness.Row], path: Path) -> None:
    """Gradient cosine over depth: a panel per τ at the longest N, a line per estimator."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tokens = max(row["tokens"] for row in rows)
    taus = list(dict.fromkeys(row["tau"] for row in rows))
    figure, axes = pyplot.subplots(1, len(taus), figsize=(4 * len(taus), 3.2), sharey=True, squeeze=False)
    for axis, tau in zip(axes[0], taus):
        for estimator, marker in zip(ESTIMATORS, "osv"):
            line = [r for r in rows if (r["tokens"], r["tau"], r["estimator"]) == (tokens, tau, estimator)]
            axis.plot([r["block"] for r in line], [r["cosine"] for r in line], marker, label=estimator, markersize=3)
        axis.set_title(f"τ = {tau}, {tokens} tokens")
        axis.set_xlabel("block")
    axes[0][0].set_ylabel("gradient cosine with exact")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main() -> None:
    parser = harness.arguments(__doc__ or "")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--taus", type=float, nargs="+", default=[1.0, 0.5, 0.1])
    parser.add_argument("--sequences", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = constructed()
    print(harness.table(rows, list(rows[0])))
    print(f"wrote {harness.write('agreement_cloud', rows, options.out)}")
    rows = real_model(options.model, options.lengths, options.taus, options.sequences)
    short = summary(rows)
    print(harness.table(short, list(short[0])))
    path = harness.write("agreement_model", rows, options.out)
    if options.plot:
        plot(rows, path.with_suffix(".png"))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
