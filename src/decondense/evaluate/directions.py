"""Whether more or less of a metric is better, by the words of its name, for logs that do not say so."""

from __future__ import annotations

import re

LOWER = r"""
    neg(?:ative)?_(?:log_?)?(?:likelihood|prob|probability) | false_positives? | false_negatives? | bits_per | bp[bctw]
    | perplexity | ppl | loss | losses | logloss | nll | nlls | mse | mae | rmse | mape | brier | ece | ter | wer | cer
    | mer | fpr | fnr | entropy | crossentropy | xent | ce | kl | kld | divergence | distance | surprisal | errors?
    | err | mistakes? | wrong | incorrect | misclass[^_]* | failures? | hallucinat[^_]* | toxicity | latency
"""
HIGHER = r"""
    acc | accuracy | exact | match | em | qem | pem | correct | correctness | score | scores | f1 | f2 | fbeta | recall
    | precision | ap | auc | auroc | auprc | mcc | kappa | bleu[^_]* | sacrebleu | rouge[^_]* | chrf[^_]* | meteor
    | cider | bertscore | comet | iou | psnr | ssim | ndcg | mrr | hits? | pass | maj | wins? | winrate | success
    | reward | solved | r2 | pearson | spearman | kendall | correlation | mc[12] | likelihood | loglikelihood | ll
    | logprobs? | log_probs? | includes | choice | pattern | answer | model_graded
"""
DOUBT = r"""
    no | not | non | anti | without | free | less | minus | change | diff | difference | delta | drop | gains? | inverse
    | inv | reciprocal | reduc[^_]* | improv[^_]* | increas[^_]* | decreas[^_]* | sav(?:ed|ings?) | detect[^_]*
    | correct(?:ed|ion) | recover[^_]* | avoid[^_]* | prevent[^_]* | reject[^_]* | resist[^_]* | robust[^_]*
    | toleran[^_]* | rank | threshold | weights? | ^1(?:00)? | ^one
    | n | num | number | counts? | len | lengths? | (?<!per_)tokens | times? | seconds | steps? | epochs? | seeds?
    | ids? | index | idx | std | stddev | sd | sem | se | stderr | ci | var | variance
"""
WORDS = re.compile(rf"(?<![^_])(?: (?P<lower>{LOWER}) | (?P<higher>{HIGHER}) | (?P<doubt>{DOUBT}) )(?![^_])", re.X)
"""Whole words, and runs of them, of a name whose words are joined by underscores. Beside a word of DOUBT another may
say the opposite, as in error_free, or nothing: n_correct counts items, and loss_std is a spread."""


def direction(metric: str) -> bool | None:
    """Whether more of a metric of this name is better; None where the name leaves a doubt, as it does without any known
    word and with words of different kinds. A neg in front, as scikit-learn writes neg_log_loss, has turned the sign
    already."""
    name = "_".join(re.findall(r"[^\W_]+", metric.lower()))
    name = re.sub(r"(?<=.)_scores?$|^scores?_(?=.)", "", name)  # a risk score is not better when higher
    kinds = {match.lastgroup for match in WORDS.finditer(name)}
    if re.match(r"neg(ative)?_", name) and not WORDS.match(name):  # but the negative in negative_recall is a class
        return True if kinds == {"lower"} else None
    return {"lower": False, "higher": True}.get(str(kinds.pop())) if len(kinds) == 1 else None
