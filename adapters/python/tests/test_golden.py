"""The numpy reference against the worked values."""

import pytest
from checkers import CHECKERS
from golden import COMMITTED, DIRECTORY, Golden, reference_run

PATHS = sorted(DIRECTORY.glob("*.json"))


def number(path):
    return path.stem.split("_")[0]


@pytest.mark.parametrize("path", [p for p in PATHS if number(p) in CHECKERS], ids=lambda p: p.stem)
def test_every_vector_holds(path):
    golden = Golden.load(path)
    CHECKERS[number(path)](golden, reference_run)
    unseen = set(golden.expected) - golden.seen
    assert not unseen or DIRECTORY != COMMITTED, f"nothing was compared with {unseen}"


def test_every_number_is_there():
    assert {number(p) for p in PATHS} >= set(CHECKERS) or DIRECTORY != COMMITTED
    assert len(CHECKERS) == 52


def test_a_wrong_value_is_seen():
    golden = Golden.load(DIRECTORY / "38_dlc_a_full.json")
    wrong = [w * (1 + 1e-9) for w in golden.expected["token_weight"]]
    assert golden.differs(wrong, golden.expected["token_weight"])
