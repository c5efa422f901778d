"""The directory cache: never an older epoch for a newer one, bounded, and cheap to ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.cache import SECOND_CHANCES_MAX, DirectoryCache

ONE = SiloAddress("10.0.0.1:7000", 1)
TWO = SiloAddress("10.0.0.2:7000", 2)


def entry(key: str, epoch: int, silo: SiloAddress = ONE) -> Entry:
    return Entry(GrainId("k", key), silo, f"a{epoch}", epoch)


def test_what_was_learnt_is_found_and_the_rest_is_not() -> None:
    cache = DirectoryCache()
    assert cache.learn(entry("a", 3))
    assert cache.get(GrainId("k", "a")) == entry("a", 3)
    assert cache.get(GrainId("k", "b")) is None


@pytest.mark.parametrize(("epoch", "news"), [(2, False), (3, False), (4, True)])
def test_only_a_higher_epoch_replaces(epoch: int, news: bool) -> None:
    cache = DirectoryCache()
    cache.learn(entry("a", 3))
    assert cache.learn(entry("a", epoch, TWO)) is news
    assert cache.get(GrainId("k", "a")) == (entry("a", epoch, TWO) if news else entry("a", 3))


def test_a_late_answer_does_not_bring_back_what_is_older_than_the_forgotten() -> None:
    cache = DirectoryCache()
    cache.learn(entry("a", 3))
    cache.forget(entry("a", 3))
    assert cache.get(GrainId("k", "a")) is None
    assert not cache.learn(entry("a", 2))
    assert cache.floor(GrainId("k", "a")) == 3
    assert cache.learn(entry("a", 3))
    assert cache.get(GrainId("k", "a")) == entry("a", 3)


def test_forgetting_an_old_entry_leaves_the_newer_one() -> None:
    cache = DirectoryCache()
    cache.learn(entry("a", 3))
    cache.forget(entry("a", 2))
    assert cache.get(GrainId("k", "a")) == entry("a", 3)


def test_forgetting_a_newer_entry_than_the_known_one_forgets_that_too() -> None:
    cache = DirectoryCache()
    cache.learn(entry("a", 3))
    cache.forget(entry("a", 5))
    assert cache.get(GrainId("k", "a")) is None
    assert not cache.learn(entry("a", 4))


def test_forgetting_a_silo_forgets_the_entries_that_name_it_and_no_other() -> None:
    cache = DirectoryCache()
    for key in "abc":
        cache.learn(entry(key, 1))
    cache.learn(entry("b", 2, TWO))
    cache.forget_silo(ONE)
    assert [cache.get(GrainId("k", key)) for key in "abc"] == [None, entry("b", 2, TWO), None]
    assert cache.learn(entry("a", 2))
    cache.forget_silo(ONE)
    assert cache.get(GrainId("k", "a")) is None
    cache.forget_silo(SiloAddress("unknown:1", 1))


def test_forgetting_a_grain_forgets_whatever_is_known() -> None:
    cache = DirectoryCache()
    cache.learn(entry("a", 3))
    cache.forget_grain(GrainId("k", "a"))
    cache.forget_grain(GrainId("k", "never seen"))
    assert cache.get(GrainId("k", "a")) is None
    assert not cache.learn(entry("a", 2))


def test_clearing_forgets_the_floors_too() -> None:
    cache = DirectoryCache()
    cache.learn(entry("a", 3))
    cache.clear()
    assert cache.learn(entry("a", 1))


def test_it_holds_no_more_than_it_may_and_lets_go_of_what_is_not_used() -> None:
    cache = DirectoryCache(entries_max=10)
    cache.learn(entry("used", 1))
    for n in range(100):
        cache.learn(entry(str(n), 1))
        assert cache.get(GrainId("k", "used")) == entry("used", 1)
        assert len(cache) <= 10
    assert cache.get(GrainId("k", "99")) is not None
    assert cache.get(GrainId("k", "50")) is None


def test_where_all_are_used_the_oldest_goes_after_a_bounded_search() -> None:
    cache = DirectoryCache(entries_max=3 * SECOND_CHANCES_MAX)
    for n in range(3 * SECOND_CHANCES_MAX):
        cache.learn(entry(str(n), 1))
        cache.get(GrainId("k", str(n)))
    cache.learn(entry("new", 1))
    assert len(cache) == 3 * SECOND_CHANCES_MAX
    assert cache.get(GrainId("k", "new")) is not None


def test_a_cache_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="0 entries"):
        DirectoryCache(entries_max=0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["learn", "forget", "forget_silo", "forget_grain", "get"]),
            st.sampled_from("abcde"),
            st.integers(1, 6),
            st.sampled_from([ONE, TWO]),
        ),
        max_size=60,
    )
)
def test_the_epoch_seen_of_a_grain_never_falls(steps: list[tuple[str, str, int, SiloAddress]]) -> None:
    cache = DirectoryCache(entries_max=10)  # nothing is displaced
    highest: dict[str, int] = {}
    for what, key, epoch, silo in steps:
        match what:
            case "learn":
                cache.learn(entry(key, epoch, silo))
            case "forget":
                cache.forget(entry(key, epoch, silo))
            case "forget_silo":
                cache.forget_silo(silo)
            case "forget_grain":
                cache.forget_grain(GrainId("k", key))
            case _:
                pass
        for seen in "abcde":
            found = cache.get(GrainId("k", seen))
            if found is not None:
                assert found.epoch >= highest.get(seen, 0)
                highest[seen] = found.epoch
            if what == "forget_silo":
                assert found is None or found.silo != silo
