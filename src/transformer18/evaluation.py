from collections.abc import Sequence

import sacrebleu

from transformer18.decoder import exact_match


# ---
def scores(
    hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, float | str]:
    """Exact match (0 to 1), BLEU and chrF (0 to 100) of translations.

    BLEU and chrF are sacreBLEU's, each with the signature that others
    need to compare with (Post 2018). Raises ValueError if the two lists
    differ in length or are empty.
    """
    exact = exact_match(hypotheses, references)
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    bleu_score = bleu.corpus_score(hypotheses, [references])
    chrf_score = chrf.corpus_score(hypotheses, [references])
    return {
        "exact_match": exact,
        "bleu": bleu_score.score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf": chrf_score.score,
        "chrf_signature": str(chrf.get_signature()),
    }
