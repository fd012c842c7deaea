"""What each retrieval stage changes: the staged comparison, as tables (paper, section 4)."""

from collections.abc import Sequence

import pandas as pd

from lib.evidence import Models, sentence_evidence
from lib.retrieval import Pool, Ranked, rank, select
from lib.slices import Document
from lib.variants import Variant, stages


def stage_rankings(pool: Pool, variant: Variant, degrees: dict[str, int], models: Models) -> dict[str, list[Ranked]]:
    """Stage label -> ranked passages of one query after that stage."""
    return {label: rank(pool, stage, degrees, models.encoder) for label, stage in stages(variant).items()}


def stage_documents(
    pool: Pool, variant: Variant, degrees: dict[str, int], models: Models, relevant: set[str]
) -> pd.DataFrame:
    """One row a stage for one query.

    Columns: `query_id`, `stage`, `documents` (ids with evidence), `gained` and `lost` (their number
    against the stage before), `relevant` (how many of them are), `best_rank` (of a relevant
    document's first passage; NaN where none is ranked or the query is not judged).
    """
    rows, before = [], None
    for label, stage in stages(variant).items():
        ranked = rank(pool, stage, degrees, models.encoder)
        documents = _evidence_documents(pool, ranked, stage, models)
        ranks = [item.rank for item in ranked if item.passage.doc_id in relevant]
        rows.append(
            {
                "query_id": pool.query.query_id,
                "stage": label,
                "documents": documents,
                "gained": len(documents - before) if before is not None else 0,
                "lost": len(before - documents) if before is not None else 0,
                "relevant": len(documents & relevant),
                "best_rank": min(ranks, default=float("nan")),
            }
        )
        before = documents
    return pd.DataFrame(rows)


def _evidence_documents(pool: Pool, ranked: list[Ranked], stage: Variant, models: Models) -> set[str]:
    selected = select(pool, ranked, stage)
    references = list(dict.fromkeys(item.passage.doc_id for item in selected))
    late = models.reranker if stage.sentence_rerank else None
    return {item.doc_id for item in sentence_evidence(pool, selected, references, stage, late, models.encoder)}


def rank_movement(rankings: dict[str, list[Ranked]], top: int = 24) -> pd.DataFrame:
    """Ranks of the passages that are among the first `top` at some stage: one row a passage, one column a stage.

    NaN where a passage is not ranked; indexed by passage_id, with a column `doc_id` first.
    """
    ranks = {label: {i.passage.passage_id: i.rank for i in ranked} for label, ranked in rankings.items()}
    doc_ids = {item.passage.passage_id: item.passage.doc_id for ranked in rankings.values() for item in ranked}
    shown = dict.fromkeys(i.passage.passage_id for ranked in rankings.values() for i in ranked if i.rank <= top)
    frame = pd.DataFrame({label: pd.Series(column, dtype=float) for label, column in ranks.items()}).reindex(list(shown))
    frame.insert(0, "doc_id", [doc_ids[passage_id] for passage_id in frame.index])
    return frame


def score_terms(ranked: Sequence[Ranked]) -> pd.DataFrame:
    """The three terms of the reranking score of each passage: columns `rrf`, `citation_prior`, `temporal`."""
    terms = ("rrf", "citation_prior", "temporal")
    rows = [{term: item.scores.get(term, 0.0) for term in terms} for item in ranked]
    return pd.DataFrame(rows, index=[item.passage.passage_id for item in ranked], columns=list(terms), dtype=float)


def candidates_table(documents: Sequence[Document], degrees: dict[str, int], relevant: set[str]) -> pd.DataFrame:
    """The candidates of one query as a reader wants to see them, in candidate order."""
    rows = [
        {
            "doc_id": d.doc_id,
            "title": d.title[:60] + ("…" if len(d.title) > 60 else ""),
            "text": d.text_source,
            "words": len(d.text.split()),
            "date": d.date or "unknown",
            "degree": degrees.get(d.doc_id, 0),
            "relevant": "yes" if d.doc_id in relevant else "",
        }
        for d in documents
    ]
    columns = ["doc_id", "title", "text", "words", "date", "degree", "relevant"]
    return pd.DataFrame(rows, columns=columns).set_index("doc_id")
