"""The organisers' measures (METHOD, section 7): overlap with the gold answer, cited documents, query terms.

Every function takes all runs at once and gives one `Score` a run and query. A query that a run does
not answer scores the lowest value; one without gold data has no value.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any

import regex

from lib.bertscore import BertScorer
from lib.runs import Response, Runs, pool_label, responses
from lib.score_tables import MISSING, OK, Score
from lib.slices import Query

CLOSE = 0.1  # relative difference within which two term frequencies, or two lengths, count as equal


def cited_documents(response: dict[str, Any]) -> list[str]:
    """The distinct documents that a TREC RAG record's answer cites, as text, in order of first citation."""
    indices = dict.fromkeys(index for sentence in response["answer"] for index in sentence["citations"])
    return list(dict.fromkeys(str(response["references"][index]) for index in indices))


def cited_precision(cited: Sequence[str] | frozenset[str], relevant: set[str]) -> float:
    """Distinct cited documents that are relevant / distinct cited documents; 0 for an answer that cites nothing."""
    distinct = set(cited)
    return len(distinct & relevant) / len(distinct) if distinct else 0.0


def cited_recall(cited: Sequence[str] | frozenset[str], relevant: set[str]) -> float | None:
    """Relevant documents that are cited / relevant documents; None where no document is relevant."""
    return len(set(cited) & relevant) / len(relevant) if relevant else None


def cited_f1(cited: Sequence[str] | frozenset[str], relevant: set[str]) -> float | None:
    """Harmonic mean of cited precision and recall, 2 |C∩R| / (|C| + |R|); None where no document is relevant."""
    return 2 * len(set(cited) & relevant) / (len(set(cited)) + len(relevant)) if relevant else None


def citation_scores(runs: Runs, qrels: dict[str, set[str]]) -> Iterator[Score]:
    """Cited precision, recall and F1, and the number of documents cited."""
    formulas = {"cited_precision": cited_precision, "cited_recall": cited_recall, "cited_f1": cited_f1}
    for response in responses(runs):
        relevant = qrels.get(response.query_id)
        for name, formula in formulas.items():
            value = None if relevant is None else formula(response.cited, relevant)
            status = "not-judged" if relevant is None else "no-relevant" if value is None else _status(response)
            yield Score(response.query_id, response.run, name, value, status)
        yield Score(response.query_id, response.run, "cited_documents", float(len(response.cited)), _status(response))


def _status(response: Response) -> str:
    return OK if response.present else MISSING


class UnicodeWords:
    """A tokenizer for rouge-score that keeps words of every script, and decimals whole; stemmed as the stock one is."""

    def tokenize(self, text: str) -> list[str]:
        words = regex.findall(r"\d+(?:[.,]\d+)+|\w+", unicodedata.normalize("NFC", text.lower()))
        return [_stem(word) if len(word) > 3 else word for word in words]


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    return _stemmer().stem(word)


@lru_cache(maxsize=1)
def _stemmer():
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()


def rouge_l(target: str, prediction: str, tokenizer: Any = None) -> float:
    """ROUGE-L F-measure (rougeL, not Lsum) of rouge-score with stemming, in [0, 1].

    Without a tokenizer its stock one is used, which knows a-z and 0-9 only: the organisers' figure.
    """
    return _rouge(tokenizer).score(target, prediction)["rougeL"].fmeasure


@lru_cache(maxsize=4)
def _rouge(tokenizer: Any):
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=True, tokenizer=tokenizer)


def rouge_scores(runs: Runs, gold: dict[str, str]) -> Iterator[Score]:
    """ROUGE-L F1 as the organisers compute it, and the same over words of every script."""
    version = f"rouge-score {metadata.version('rouge-score')}, stemmed"
    kinds = {"rougeL_f1": (None, version), "rougeL_f1[unicode words]": (UnicodeWords(), version)}
    for name, (tokenizer, model) in kinds.items():
        yield from _with_gold(runs, gold, name, lambda g, text, t=tokenizer: rouge_l(g, text, t), model)


def _with_gold(
    runs: Runs, gold: dict[str, str], measure: str, score: Callable[[str, str], float | None], model: str
) -> Iterator[Score]:
    for response in responses(runs):
        answer = gold.get(response.query_id)
        value = None if answer is None else score(answer, response.text)
        status = "no-gold" if answer is None else "undefined" if value is None else _status(response)
        yield Score(response.query_id, response.run, measure, value, status, model=model)


def bert_scores(runs: Runs, gold: dict[str, str], scorer: BertScorer) -> Iterator[Score]:
    """BERTScore F1 of answer and gold answer: no idf weights, negatives kept, NaN without a value.

    The texts of the whole pool are encoded once. An empty answer scores raw 0, as in bert-score.
    """
    pairs = [(r.text, gold[r.query_id]) for r in responses(runs) if r.query_id in gold]
    found = scorer.f1(pairs)
    yield from _with_gold(
        runs, gold, f"bertscore_f1[{scorer.label}]", lambda g, text: found[text, g], f"bert-score, layer {scorer.layer}"
    )


class Lemmatizer:
    """Text -> lower-cased lemmas without stopwords, punctuation and white space.

    spaCy's en_core_web_sm where it is installed, as the organisers used; else the blank English pipeline
    with the lookup table of spacy-lookups-data. `label` says which.
    """

    def __init__(self):
        import spacy

        self._tagged = spacy.util.is_package("en_core_web_sm")
        if self._tagged:
            self._nlp = spacy.load("en_core_web_sm", exclude=["parser", "ner"])
            self.label = f"en_core_web_sm {self._nlp.meta['version']}"
        else:
            self._nlp = spacy.blank("en")
            self._nlp.add_pipe("lemmatizer", config={"mode": "lookup"})
            self._nlp.initialize()
            self.label = f"spacy blank en, lookup lemmatizer {metadata.version('spacy-lookups-data')}"

    def terms(self, texts: Sequence[str]) -> list[list[str]]:
        """The terms of each text, repeats kept."""
        # The lookup table has lower-cased words only.
        documents = self._nlp.pipe(texts if self._tagged else [text.lower() for text in texts])
        return [[t.lemma_.lower() for t in d if not (t.is_stop or t.is_punct or t.is_space)] for d in documents]


def term_frequency(query_terms: Sequence[str], answer_terms: Sequence[str]) -> float:
    """Sum over the query's terms, repeats counted, of their count in the answer / its length in terms; 0 if empty."""
    counts = Counter(answer_terms)
    return sum(counts[term] for term in query_terms) / len(answer_terms) if answer_terms else 0.0


def preference(first: float, second: float) -> int:
    """1 if `first` is the larger, -1 if the smaller, 0 where they are within 10 % of each other."""
    if math.isclose(first, second, rel_tol=CLOSE):
        return 0
    return 1 if first > second else -1


def tfc1(frequencies: Sequence[float], lengths: Sequence[int] | None = None) -> list[float]:
    """TFC1 of each answer of one query's pool: the sum of its preferences over all N answers / N.

    With `lengths` (in terms), answers whose lengths differ by more than 10 % are not compared, as the
    axiom declares; the official figures leave that out.
    """

    def preferred(i: int, j: int) -> int:
        if lengths and not math.isclose(lengths[i], lengths[j], rel_tol=CLOSE):
            return 0
        return preference(frequencies[i], frequencies[j])

    n = len(frequencies)
    return [sum(preferred(i, j) for j in range(n)) / n for i in range(n)]


def tfc1_scores(runs: Runs, queries: Sequence[Query], lemmatizer: Lemmatizer) -> Iterator[Score]:
    """TFC1 in the official form (`tfc1`) and with its length precondition (`tfc1_len`), over the pool of all runs."""
    pool = pool_label(runs)
    lowest = -(len(runs) - 1) / len(runs)
    texts = dict.fromkeys([query.text for query in queries] + [response.text for response in responses(runs)])
    terms = dict(zip(texts, lemmatizer.terms(list(texts)), strict=True))
    for query in queries:
        answers = [run[query.query_id] for run in runs.values()]
        frequencies = [term_frequency(terms[query.text], terms[answer.text]) for answer in answers]
        lengths = [len(terms[answer.text]) for answer in answers]
        for name, values in {"tfc1": tfc1(frequencies), "tfc1_len": tfc1(frequencies, lengths)}.items():
            for answer, value in zip(answers, values, strict=True):
                value = value if answer.present else lowest
                yield Score(query.query_id, answer.run, name, value, _status(answer), pool, lemmatizer.label)
