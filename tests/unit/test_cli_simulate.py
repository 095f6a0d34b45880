"""`penstock simulate cache`: what it prints, and what it refuses."""

from __future__ import annotations

import pytest

from penstock.cli.main import main

SMALL = (
    "simulate cache --nodes 4 --gpus 2 --data 2K --mean 100KB --memory 20MB --batch 10 --epochs 3 --ring 1"
)


def test_it_says_where_bytes_come_from_and_how_much_cache_is_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL.split(), "--policy", "auto", "--policy", "lobster"]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["auto"][3:] == ["64.0%", "64.0%", "100.0%"]  # (20 - 2) MB on each of 4 nodes, of 200 MB
    assert float(rows["lobster"][3].rstrip("%")) > 64
    assert "49.6 MiB per node: after the first epoch, nothing comes from the source" in text
    assert "<- yours" in text


def test_the_source_may_be_fast_enough_without_a_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL.split(), "--gpu-rate", "10", "--order", "even", "--deal", "owner"]) == 0
    assert "none to keep up: training takes 7.63 MiB/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    "bad",
    ["--nodes 0", "--memory much", "--data -3", "--gpu-rate -1", "--order odd"],
)
def test_a_bad_number_is_refused_with_its_option(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*SMALL.split(), *bad.split()])
    assert stopped.value.code == 2
    assert bad.split(maxsplit=1)[0] in capsys.readouterr().err


def test_an_unknown_policy_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL.split(), "--policy", "mru"]) == 2
    assert "lobster-guarded" in capsys.readouterr().err
