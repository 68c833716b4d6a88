"""What `dc.monitor` costs: training with a reading and without one, in turns, and the share of the time at every=100.

A GPT2 (124M on a GPU, six layers of width 384 on a CPU), AdamW, all metrics; the readings are of the training batch, or
of fixed inputs in a pass of their own. On a GPU a thread finishes a reading while the training goes on: timed is half
the steps between two readings, the first of them with a reading, plus what the thread would still have to do at the
next reading. On a CPU it is one step, in processor time, which other programs do not change.
"""

from __future__ import annotations

import statistics
import time

import harness
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import decondense as dc

EVERY = 100


def rows(rounds: int = 2) -> list[harness.Row]:
    cuda = torch.cuda.is_available()
    shape = {} if cuda else {"n_layer": 6, "n_embd": 384, "n_head": 6, "vocab_size": 8192}
    batch, tokens = (32, 1024) if cuda else (4, 256)
    torch.manual_seed(0)
    config = GPT2Config(**shape, use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = GPT2LMHeadModel(config).to("cuda" if cuda else "cpu").train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
    ids = torch.randint(0, model.config.vocab_size, (batch, tokens), device=model.device)

    clock = time.perf_counter if cuda else time.process_time
    steps = EVERY // 2 if cuda else 1

    def trained() -> float:
        if cuda:
            torch.cuda.synchronize()
        begun = clock()
        for _ in range(steps):
            with torch.autocast(model.device.type, torch.bfloat16, enabled=cuda):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        if cuda:
            torch.cuda.synchronize()
        return 1000 * (clock() - begun)

    found = []
    for source, inputs in (("training batch", None), ("fixed inputs", ids[:4])):
        plain, watched = [], []
        for turn in range(rounds + 1):
            one = trained()
            begun = clock()
            with dc.monitor(model, every=EVERY, inputs=inputs) as watch:
                before = 1000 * (clock() - begun)  # fixed inputs are read on entry
                other = before + trained()
                begun = clock()
                watch.settle()
                left = 1000 * (clock() - begun)
            if turn:  # the first turn warms up
                plain.append(one)
                watched.append(other + max(0.0, left - one))
        whole, reading = statistics.median(plain), statistics.median(watched) - statistics.median(plain)
        without = whole / steps
        found.append(
            {
                "readings": source,
                "model": f"GPT2, {config.n_layer} × {config.n_embd}",
                "batch": batch,
                "tokens": tokens,
                "step_ms": round(without, 2),
                "reading_ms": round(reading, 2),
                "every": EVERY,
                "share_percent": round(100 * reading / (EVERY * without), 3),
            }
        )
    return found


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    measured = rows()
    harness.write("monitor", measured, options.out)
    print(harness.table(measured, list(measured[0])))
