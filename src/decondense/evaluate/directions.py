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
TURNING = (
    r"no | not | non | without | free | less | minus | reduction | reduced | drop | gain | diff | difference | delta"
)
WORDS = re.compile(
    rf"(?<![^_])(?: (?P<lower>{LOWER}) | (?P<higher>{HIGHER}) | (?P<turning>{TURNING} | ^1 | ^one) )(?![^_])", re.X
)
"""Whole words, and runs of them, of a name whose words are joined by underscores. The words of TURNING may say the
opposite of what stands beside them, as in error_free."""


def direction(metric: str) -> tuple[bool, bool]:
    """(whether a metric of this name is taken as better when lower, whether its name says so without a doubt).

    Words that contradict each other leave a doubt, in which the last of them counts; a name without any known word is
    taken as better when higher. A neg in front, as scikit-learn writes neg_log_loss, has turned the sign already.
    """
    name = "_".join(re.findall(r"[^\W_]+", metric.lower()))
    name = re.sub(r"(?<=.)_scores?$|^scores?_(?=.)", "", name)  # a risk score is not better when higher
    kinds = [match.lastgroup for match in WORDS.finditer(name)]
    turned = re.match(r"neg(ative)?_", name) is not None and WORDS.match(name) is None
    if turned:  # but the negative in negative_recall is a class
        return False, set(kinds) == {"lower"}
    return kinds[-1:] == ["lower"], len(set(kinds)) == 1 and kinds != ["turning"]
