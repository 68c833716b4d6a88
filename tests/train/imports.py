"""What a run needs, imported once by the server of the test processes."""

from __future__ import annotations

import matplotlib.figure  # noqa: F401
import transformers
from transformers.models import gpt2, llama

import decondense.figures.training
import decondense.meter
import decondense.meter.compare
import decondense.train.trainer
import decondense.train.watch  # noqa: F401

_ = (
    transformers.Trainer,
    transformers.AutoModelForCausalLM,
    transformers.ByT5Tokenizer,
    transformers.TrainingArguments,
)
_ = (llama.LlamaForCausalLM, gpt2.GPT2LMHeadModel)
