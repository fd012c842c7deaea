"""The organisers' measures (METHOD, section 7)."""

from typing import Any


def cited_documents(response: dict[str, Any]) -> list[str]:
    """The distinct documents that a TREC RAG record's answer cites, as text, in order of first citation."""
    indices = dict.fromkeys(index for sentence in response["answer"] for index in sentence["citations"])
    return list(dict.fromkeys(str(response["references"][index]) for index in indices))


def cited_precision(cited: list[str], relevant: set[str]) -> float:
    """Distinct cited documents that are relevant / distinct cited documents; 0 for an answer that cites nothing."""
    distinct = set(cited)
    return len(distinct & relevant) / len(distinct) if distinct else 0.0
