"""Answers -> TREC RAG records, the provenance sidecar, validation, and the submission bundle."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import WorkbookError
from lib.evidence import Evidence, EvidenceSet
from lib.generation import Sentence
from lib.slices import Document, Query
from lib.text import words
from lib.variants import Profile, Variant, read_yaml

ANSWER_WORDS = 400  # TREC RAG's limit on an answer
MAX_REFERENCES = 100  # and on the references of a record


def record(query: Query, references: list[str], answer: Sequence[Sentence], team_id: str, run_id: str) -> dict[str, Any]:
    """The TREC RAG record of one query: references as document ids, citations as indices into them."""
    about = {
        "team_id": team_id,
        "run_id": run_id,
        "type": "automatic",
        "narrative_id": query.query_id,
        "narrative": query.text,
    }
    sentences = [{"text": s.text, "citations": [references.index(d) for d in s.doc_ids]} for s in answer]
    return limit_words(normalise({"metadata": about, "references": list(references), "answer": sentences}))


def normalise(response: dict[str, Any]) -> dict[str, Any]:
    """The record with each reference once and each citation of a sentence once, indices remapped.

    Raises ValueError for a citation that is no whole number or lies outside the references.
    """
    names = [str(doc_id) for doc_id in response["references"]]
    kept = list(dict.fromkeys(names))
    answer = []
    for sentence in response["answer"]:
        for index in sentence["citations"]:
            if fault := _index_fault(index, len(response["references"])):
                raise ValueError(fault)
        cited = dict.fromkeys(kept.index(names[i]) for i in sentence["citations"])
        answer.append({"text": sentence["text"], "citations": list(cited)})
    return {**response, "references": kept, "answer": answer}


def limit_words(response: dict[str, Any], limit: int = ANSWER_WORDS) -> dict[str, Any]:
    """The record without the last sentences beyond `limit` words; what only they cited leaves the references."""
    answer, dropped = list(response["answer"]), []
    while sum(words(sentence["text"]) for sentence in answer) > limit:
        dropped.append(answer.pop())
    gone = {i for s in dropped for i in s["citations"]} - {i for s in answer for i in s["citations"]}
    stay = [i for i in range(len(response["references"])) if i not in gone]
    renumbered = [{**s, "citations": [stay.index(i) for i in s["citations"]]} for s in answer]
    return {**response, "references": [response["references"][i] for i in stay], "answer": renumbered}


def provenance(
    collected: EvidenceSet, answer: Sequence[Sentence], status: str, models: dict[str, str], fallback: str = ""
) -> dict[str, Any]:
    """The line of `provenance.jsonl`: each answer sentence led to evidence, passage and character span.

    A sentence that rests on a title instead names the document and `field: title`. `fallback` names
    the generator that filled in where the model's reply could not be used.
    """
    by_id = {item.evidence_id: item for item in collected.evidence}
    rows = [
        {"sentence": number, "text": s.text, "sources": [_source(by_id[i]) for i in s.evidence_ids] or _titles(s)}
        for number, s in enumerate(answer)
    ]
    marked = {"fallback": fallback} if fallback else {}
    return {"query_id": collected.query_id, "status": status, **marked, "models": models, "sentences": rows}


def _source(item: Evidence) -> dict[str, Any]:
    fields = ("evidence_id", "passage_id", "doc_id", "start", "end")
    return {"field": "text", **{name: getattr(item, name) for name in fields}}


def _titles(sentence: Sentence) -> list[dict[str, Any]]:
    return [{"field": "title", "doc_id": doc_id} for doc_id in sentence.doc_ids]


def validate(responses: Path, queries: Sequence[Query], documents: dict[str, Document] | None) -> Iterator[str]:
    """One line a fault, `file:line: what and why`, for a responses file and the sidecars beside it.

    `documents` are the slice's by id, or None for a slice without documents, whose spans cannot be
    checked. Raises WorkbookError if the file cannot be read at all.
    """
    by_id = {query.query_id: query for query in queries}
    cited: dict[str, list[set[str]]] = {}
    seen: dict[str, int] = {}
    for number, row, fault in lines(responses):
        faults = [fault] if fault else list(_record_faults(row, by_id, seen, number))
        yield from (f"{responses}:{number}: {fault}" for fault in faults)
        if not faults:
            names = [str(doc_id) for doc_id in row["references"]]
            cited[str(row["metadata"]["narrative_id"])] = [{names[i] for i in s["citations"]} for s in row["answer"]]
    for query_id in by_id:
        if query_id not in seen:
            yield f"{responses}: query '{query_id}' is missing; every query must be answered exactly once"
    checks = {"evidence.jsonl": _evidence_faults, "provenance.jsonl": _provenance_faults}
    for name, check in checks.items():
        path = responses.with_name(name)
        for number, row, fault in lines(path) if path.exists() else ():
            query = by_id.get(str(row.get("query_id"))) if not fault else None
            if not fault and query is None:
                fault = f"query '{row.get('query_id')}' is not in the slice"
            faults = [fault] if fault else check(row, query, cited, documents)
            yield from (f"{path}:{number}: {fault}" for fault in faults)


def lines(path: Path) -> Iterator[tuple[int, dict[str, Any], str]]:
    """(line number, object, fault) of each line that is not blank; one of the last two is empty."""
    if not path.is_file():
        raise WorkbookError(f"{path}: no such file; give the responses.jsonl of a run")
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
            except (ValueError, RecursionError) as error:
                yield number, {}, f"not JSON ({error})"
                continue
            yield (number, value, "") if isinstance(value, dict) else (number, {}, "not an object")


def _refuse_constant(name: str):
    raise ValueError(f"{name} is not JSON")


def _record_faults(row: dict, by_id: dict[str, Query], seen: dict[str, int], number: int) -> Iterator[str]:
    about, references, answer = (row.get(key) for key in ("metadata", "references", "answer"))
    if not isinstance(about, dict) or not isinstance(references, list) or not isinstance(answer, list):
        yield "expected the fields metadata (an object), references and answer (lists)"
        return
    for key in ("team_id", "run_id", "type", "narrative_id", "narrative"):
        if key not in about:
            yield f"metadata lacks '{key}'"
    query_id = str(about.get("narrative_id"))
    if query_id in seen:
        yield f"query '{query_id}' stands on line {seen[query_id]} already"
    seen.setdefault(query_id, number)
    if query_id not in by_id:
        yield f"query '{query_id}' is not in the slice"
        return
    yield from _reference_faults(references, by_id[query_id])
    if len(references) > MAX_REFERENCES:
        yield f"{len(references)} references; at most {MAX_REFERENCES} are allowed"
    length = sum(words(s["text"]) for s in answer if isinstance(s, dict) and isinstance(s.get("text"), str))
    if length > ANSWER_WORDS:
        yield f"the answer has {length} words; at most {ANSWER_WORDS} are allowed"
    for position, sentence in enumerate(answer):
        yield from (f"sentence {position}: {fault}" for fault in sentence_faults(sentence, len(references)))


def _reference_faults(references: list, query: Query) -> Iterator[str]:
    names = [str(doc_id) for doc_id in references]
    for name in dict.fromkeys(n for n in names if names.count(n) > 1):
        yield f"reference '{name}' is listed more than once"
    for name in dict.fromkeys(n for n in names if n not in query.doc_ids):
        yield f"reference '{name}' is not a candidate of query '{query.query_id}'"


def sentence_faults(sentence: Any, n_references: int) -> Iterator[str]:
    """What is wrong with one sentence of a record whose references are that many."""
    if not isinstance(sentence, dict) or not isinstance(sentence.get("text"), str):
        yield "expected an object with 'text' and 'citations'"
        return
    if not sentence["text"].strip():
        yield "the text is blank"
    citations = sentence.get("citations")
    if not isinstance(citations, list):
        yield "'citations' must be a list of indices into the references"
        return
    yield from filter(None, (_index_fault(index, n_references) for index in citations))
    if len({json.dumps(index) for index in citations}) < len(citations):
        yield f"citations {citations} name a reference twice"


def _index_fault(index: Any, size: int) -> str | None:
    if not isinstance(index, int) or isinstance(index, bool):
        return f"citation {index!r} is not a whole number"
    if not 0 <= index < size:
        return f"citation {index} is out of range for {size} references"
    return None


def _evidence_faults(row: dict, query: Query, _: dict, documents: dict[str, Document] | None) -> Iterator[str]:
    references, items = row.get("references"), row.get("evidence")
    if not isinstance(references, list) or not isinstance(items, list) or not all(isinstance(i, dict) for i in items):
        yield "expected the fields references (a list) and evidence (a list of objects)"
        return
    yield from _reference_faults(references, query)
    for item in items:
        fault = span_fault(item, query, documents)
        if not fault and not isinstance(item.get("text"), str):
            fault = "its text is missing"
        if not fault and documents is not None:
            document = documents[str(item["doc_id"])]
            if document.text[item["start"] : item["end"]] != item["text"]:
                fault = f"text differs from characters {item['start']}-{item['end']} of document '{document.doc_id}'"
        if fault:
            yield f"evidence {item.get('evidence_id')}: {fault}"


def span_fault(span: dict, query: Query, documents: Mapping[str, Document] | None) -> str | None:
    """Why a span cannot be one of a candidate's text, or None; without documents only the candidate is checked."""
    doc_id = str(span.get("doc_id"))
    if documents is not None and doc_id not in documents:
        return f"document '{doc_id}' is not in the slice"
    if doc_id not in query.doc_ids:
        return f"document '{doc_id}' is not a candidate of query '{query.query_id}'"
    if documents is None:
        return None
    start, end, length = span.get("start"), span.get("end"), len(documents[doc_id].text)
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start < end <= length:
        return f"span {start}-{end} does not lie in document '{doc_id}' of {length} characters"
    return None


def _provenance_faults(row: dict, query: Query, cited: dict, documents: dict[str, Document] | None) -> Iterator[str]:
    sentences = row.get("sentences")
    if not isinstance(sentences, list) or not all(has_sources(sentence) for sentence in sentences):
        yield "expected the field sentences, a list of objects with sources"
        return
    answer = cited.get(query.query_id)
    if answer is None:  # the record itself is at fault or missing, and has been reported
        return
    if len(answer) != len(sentences):
        yield f"{len(sentences)} sentences, but the response has {len(answer)}"
    for sentence, doc_ids in zip(sentences, answer, strict=False):
        place = f"sentence {sentence.get('sentence')}"
        if {str(source.get("doc_id")) for source in sentence["sources"]} != doc_ids:
            yield f"{place}: its sources are not the documents that the response cites"
        for source in sentence["sources"]:
            fault = span_fault(source, query, documents) if source.get("field") == "text" else None
            if fault:
                yield f"{place}: {fault}"


def has_sources(sentence: Any) -> bool:
    """Whether a sentence of a provenance line has the shape that `provenance` gives it."""
    sources = sentence.get("sources") if isinstance(sentence, dict) else None
    return isinstance(sources, list) and all(isinstance(source, dict) for source in sources)


def ir_metadata(variant: Variant, profile: Profile, models: dict[str, str], submission: dict[str, Any]) -> dict[str, Any]:
    """The run's `ir-metadata.yml` as TIRA asks for it, filled in from the variant and `params/submission.yaml`."""
    ranked = variant.retrieval != "none"
    stages = [variant.retrieval] + [n for n in ("query_expansion", "prf", "rerank") if getattr(variant, n)]
    libraries = ("rank-bm25", "sentence-transformers", "syntok", "numpy")
    return {
        "tag": variant.name,
        "actor": {"team": submission["team"]},
        "research goal": {"description": submission["research_goal"]},
        "platform": {"software": {"libraries": [f"{name} {metadata.version(name)}" for name in libraries]}},
        "implementation": {"source": {"repository": submission["repository"]}},
        "data": {"training data": {"name": "none"}},
        "method": {
            "automatic": True,
            "retrieval": {
                "name": ", ".join(stages) if ranked else "none",
                "documents": variant.top_k_passages,
                "chunking": variant.reads_text,
                "chunk_ranking": ranked,
                "single_stage_retrieval": not variant.rerank,
            },
            "generation": {
                "description": f"{variant.description} At most {variant.max_answer_sentences} sentences.",
                "prompt": "none" if profile.generator == "extractive" else f"params/prompts/{profile.prompt}.txt",
                "llm": models["generator"],
                "reasoning": bool(profile.service and profile.service.reasoning),
                "agents": False,
            },
        },
        "models": models,
        "profile": profile.name,
    }


def load_submission() -> dict[str, Any]:
    """`params/submission.yaml`: team, research goal and repository, the same for all runs."""
    path = paths.PARAMS / "submission.yaml"
    values = read_yaml(path)
    for key in ("team", "research_goal", "repository"):
        if not isinstance(values.get(key), str) or not values[key].strip():
            raise WorkbookError(f"{path}: '{key}' must be filled in")
    return values


def bundle(run: Path, out: Path) -> Path:
    """Write the submission folder of a run: `responses.jsonl` and `ir-metadata.yml`; returns `out`."""
    for name in ("responses.jsonl", "ir-metadata.yml"):
        if not (run / name).is_file():
            raise WorkbookError(f"{run}: no {name}; give a run's folder, such as outputs/sample/runs/rule-minilm")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WorkbookError(f"{out}: the folder is not empty; give a new one")
    staging = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for name in ("responses.jsonl", "ir-metadata.yml"):
        shutil.copyfile(run / name, staging / name)
    if out.exists():
        out.rmdir()
    return staging.rename(out)
