"""Whether more or less of a metric is better, by its usual name, for logs that do not say so."""

from __future__ import annotations

import re

LOWER = r"""(log_?)?loss(es)? | nll | ((word|byte|token)_)?perplexity | ppl | bits_per_(byte|character) | bp[bc] | kl
    | ce | (cross_)?entropy | brier(_score)? | ece | wer | cer | ter | err(or)?(_rate)? | mse | mae | rmse"""
HIGHER = r"""acc(_norm|uracy)? | correct | ((quasi_)?exact|extractive)(_match)? | match | em | qem | pem | includes
    | score | choice | pattern | answer | model_graded_(qa|fact) | ((macro|micro)_)?f1(_score)? | precision | recall
    | auc | mcc | mc1 | mc2 | (sacre)?bleu(_\d)? | chrf | rouge(1|2|l|lsum)? | meteor
    | (pass|maj|hits)(_\d+)? | win_rate"""
PART = r"(val|valid|validation|eval|test|dev)_"  # of the text: val_loss


def direction(metric: str) -> bool | None:
    """Whether more of a metric of this name is better; None where it is none of the usual names: error_free has an
    error in it, and is none."""
    name = "_".join(re.findall(r"[^\W_]+", metric.lower()))
    lower, higher = (re.fullmatch(f"({PART})?({names})", name, re.X) for names in (LOWER, HIGHER))
    return None if lower is higher else higher is not None
