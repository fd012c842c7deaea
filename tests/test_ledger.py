import pytest

from lib import paths
from lib.errors import WorkbookError
from lib.ledger import Prices, estimate_tokens
from lib.replies import Request

# Tokens, prices, ledger and budget


@pytest.mark.parametrize(("characters", "tokens"), [(0, 5), (2, 5), (3, 6), (6, 6), (7, 7), (382, 100)])
def test_prompt_tokens_are_estimated_as_a_quarter_of_the_characters_rounded_up(characters, tokens):
    """The schema `{"type": "string"}` has 18 characters."""
    half = characters // 2
    messages = ({"role": "system", "content": "a" * half}, {"role": "user", "content": "b" * (characters - half)})
    assert estimate_tokens(Request("r|q", messages, {"type": "string"})) == tokens


PRICES = """
cheap: {input: 0.15, output: 0.60, batch_factor: 0.5}
cheap-large: {input: 2, output: 8}
free: {input: 0, output: 0}
"""


@pytest.mark.parametrize(
    ("model", "batch", "dollars"),
    [
        ("cheap", False, 0.15 + 1.20),
        ("cheap", True, 0.675),
        ("cheap-2024-07-18", False, 1.35),
        ("cheap-2024-07-18", True, 0.675),
        ("cheap-large", False, 18.0),
        ("cheap-large-2026-03-17", False, 18.0),
        ("cheap-large", True, 18.0),
        ("free", False, 0.0),
        ("free", True, 0.0),
        ("che", False, None),
        ("cheap-audio", False, None),
        ("cheaper", False, None),
        ("other", True, None),
        ("", False, None),
    ],
)
def test_a_million_prompt_and_two_million_completion_tokens_cost_what_the_table_says(tmp_path, model, batch, dollars):
    prices = Prices(paths.write_text(tmp_path / "prices.yaml", PRICES))
    cost = prices.cost(model, 1_000_000, 2_000_000, batch)
    assert cost is None if dollars is None else cost == pytest.approx(dollars, rel=1e-12)


@pytest.mark.parametrize("price", ["3", "{input: 1}", "{input: cheap, output: 1}", "{input: -1, output: 1}"])
def test_a_price_that_is_none_is_reported_with_its_file_and_model(tmp_path, price):
    path = paths.write_text(tmp_path / "prices.yaml", f"cheap: {price}\n")
    with pytest.raises(WorkbookError) as caught:
        Prices(path).cost("cheap", 1, 1)
    assert str(path) in str(caught.value)
    assert "cheap" in str(caught.value)


def test_the_shipped_price_table_can_be_read():
    assert Prices().cost("gpt-4o-mini-2024-07-18", 1_000_000, 0) == pytest.approx(0.15)
