"""How the bench prints: a row is a name, a value, its bar and whether the bar holds."""

import re

BAR = re.compile(r"at (?P<side>least|most) (?P<limit>[\d.]+)|from (?P<low>[\d.]+) to (?P<high>[\d.]+)")

fallen_short: list[str] = []  # names of the rows of this process whose bar did not hold


def show(name: str, value: float, bar: str = "", note: str = "") -> None:
    """Print one row. A bar is "at least X", "at most X" or "from X to Y"; without one the row is for orientation."""
    verdict = "" if not bar else "holds" if holds(value, bar) else "FALLS SHORT"
    if verdict == "FALLS SHORT":
        fallen_short.append(name)
    print(f"{name:<58}{_number(value):>12}   {bar:<18}{verdict:<12}{note}".rstrip(), flush=True)


def holds(value: float, bar: str) -> bool:
    """Whether the value is on the right side of the bar; a value that is no number never is."""
    match = BAR.fullmatch(bar)
    if not match:
        raise ValueError(f'"{bar}" is no bar: write "at least X", "at most X" or "from X to Y"')
    if match["side"] == "least":
        return value >= float(match["limit"])
    if match["side"] == "most":
        return value <= float(match["limit"])
    return float(match["low"]) <= value <= float(match["high"])


def heading(text: str) -> None:
    """Print what the rows below are about."""
    print(f"\n{text}", flush=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.3f}"
