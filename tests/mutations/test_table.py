"""Each mutation still fits the source. ``make mutations`` applies them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutations.mutation import ENGINES, ROOT, Mutation
from tests.mutations.results import PAGE, Kill, parse, render
from tests.mutations.table import GROUPS, MUTATIONS, of_group


def test_the_text_of_each_mutation_occurs_once_in_its_file() -> None:
    counts = {(mutation.path, mutation.name): mutation.occurrences() for mutation in MUTATIONS}
    assert {name: count for name, count in counts.items() if count != 1} == {}
    assert [mutation.name for mutation in MUTATIONS if mutation.old == mutation.new] == []


def test_the_tests_of_each_mutation_exist() -> None:
    for mutation in MUTATIONS:
        for test in mutation.tests.split():
            path, _, name = test.partition("::")
            found = ROOT / "tests" / path
            assert found.exists(), (mutation.name, path)
            assert not name or f"def {name}(" in found.read_text("utf-8"), (mutation.name, test)


@pytest.mark.parametrize("group", GROUPS)
def test_each_engine_has_twenty_mutations_with_names_of_their_own(group: str) -> None:
    names = Counter(mutation.name for mutation in of_group(group))
    assert len(names) >= 20
    assert names.most_common(1)[0][1] == 1


def test_a_mutation_whose_text_is_gone_stops_the_run(tmp_path: object) -> None:
    gone = Mutation("gone", ENGINES, "errors.py", "no such text", "", "unit")
    with pytest.raises(SystemExit, match=r"gone: errors.py has its text 0 times, not once: 'no such text'"):
        gone.apply(ROOT)


def test_the_page_is_read_as_it_was_written() -> None:
    first, second = of_group("sqlite")[:2]
    kills = {
        ("sqlite", first.name): Kill("sqlite", first.name, "conformance/test_x.py::test_y[a b|c]", 3.0),
        ("sqlite", second.name): Kill("sqlite", second.name, None, 60.0),
    }
    page = render(kills | {("sqlite", "gone"): Kill("sqlite", "gone", None, 1.0)})
    assert parse(page) == kills
    assert f"2 of {len(of_group('sqlite'))} mutations were tried, 1 survived." in page
    assert render(parse(PAGE.read_text("utf-8"))) == PAGE.read_text("utf-8")
