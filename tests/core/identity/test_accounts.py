"""The fold of accounts and keys, and the rules of who may become what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Invalid, NotFound, Refused
from core.events import Event, Opaque, Record, encode, written
from core.identity import accounts
from core.identity.accounts import (
    ACCOUNTS,
    EMPTY,
    AccountAppointed,
    AccountCreated,
    AccountDisabled,
    AccountEnabled,
    AccountRenamed,
    Accounts,
    KeyCreated,
    KeyRevoked,
    PasswordSet,
    SessionEnded,
    SubjectLinked,
    fold,
)
from core.identity.errors import EmailTaken, Initialized

USERS = ["ada", "bob"]
EVENTS: list[Event] = [
    *(AccountCreated(user=user, email=f"{user}@x.example", role="user") for user in USERS),
    AccountCreated(user="root", email="root@x.example", role="admin", verified=True),
    *(PasswordSet(user=user, hash="h") for user in [*USERS, "nobody"]),
    *(AccountDisabled(user=user) for user in USERS),
    *(AccountEnabled(user=user) for user in USERS),
    *(AccountAppointed(user=user, role="admin") for user in USERS),
    AccountRenamed(user="ada", email="lovelace@x.example"),
    AccountRenamed(user="nobody", email="nobody@x.example"),
    KeyCreated(key="k", user="ada", digest="d", scopes=["runs"]),
    KeyRevoked(key="k"),
    KeyRevoked(key="unknown"),
    SubjectLinked(user="ada", issuer="i", subject="s"),
    SessionEnded(user="ada", session="one", expires_at="2000-01-01T00:00:00.000000+00:00"),
    SessionEnded(user="ada", session="two", expires_at="9000-01-01T00:00:00.000000+00:00"),
]


def record(seq: int, event: Event) -> Record:
    envelope = written(
        event, id=f"e{seq}", kind=ACCOUNTS.kind, aggregate_id=ACCOUNTS.id, actor="t", at="2026-11-21T00:00:00+00:00"
    )
    return Record(seq, encode(event, envelope))


def of(*events: Event) -> Accounts:
    return fold([record(seq, event) for seq, event in enumerate(events, 1)])


@given(st.lists(st.sampled_from(EVENTS), max_size=20), st.integers(0, 20))
def test_the_fold_is_total_and_incremental(events: Sequence[Event], cut: int) -> None:
    records = [record(seq, event) for seq, event in enumerate(events, 1)]
    before = fold(records[:cut])
    frozen = repr(before)
    whole = fold(records)
    assert whole == fold(records[cut:], before)
    assert repr(before) == frozen
    assert {a.email: a.id for a in whole.by_id.values()} == whole.by_email, "one account per address"


def test_what_this_build_does_not_know_is_skipped() -> None:
    known = record(1, EVENTS[0])
    assert fold([known, Record(2, known.raw, known.head, Opaque("moon.risen"))]) == fold([known])


def test_what_ends_sessions() -> None:
    """The version is what sessions are made for."""
    made = AccountCreated(user="ada", email="a@x.example")
    versions = [
        of(made, *events).by_id["ada"].version
        for events in (
            (),
            (PasswordSet(user="ada", hash="h"),),
            (PasswordSet(user="ada", hash="h"), PasswordSet(user="ada", hash="i")),
            (AccountDisabled(user="ada"), AccountEnabled(user="ada")),
            (AccountAppointed(user="ada", role="admin"),),
            (AccountRenamed(user="ada", email="b@x.example"),),
        )
    ]
    assert versions == [0, 1, 2, 1, 0, 0]


def test_ended_sessions_are_forgotten_when_they_expire() -> None:
    short, long = (
        SessionEnded(user="ada", session=y, expires_at=f"{y}-01-01T00:00:00.000000+00:00") for y in ("2000", "9000")
    )
    assert set(of(short, long).ended) == {"9000"}
    assert set(of(long, short).ended) == {"2000", "9000"}, "looked at when another one ends"


def test_hashes_do_not_print_themselves() -> None:
    event = PasswordSet(user="ada", hash="$argon2id$secret", temporary=True)
    assert "argon2" not in repr(event) + repr([event]) + repr(of(EVENTS[0], event))


ADMIN = AccountCreated(user="root", email="root@x.example", role="admin", verified=True)
OTHER = AccountCreated(user="other", email="other@x.example", role="admin", verified=True)
ADA = AccountCreated(user="ada", email="ada@x.example")
LINKED = SubjectLinked(user="root", issuer="i", subject="s")


def _create(state: Accounts) -> Sequence[Event]:
    return accounts.create(state, "new", "ada@x.example", "user", verified=False, digest="h", temporary=False)


def _link(state: Accounts) -> Sequence[Event]:
    return accounts.link(state, "new", "i", "s", "ada@x.example", may_create=False)


@pytest.mark.parametrize(
    ("events", "decision", "outcome"),
    [
        ((), _create, 2),
        ((ADA,), _create, EmailTaken),
        ((ADA, AccountRenamed(user="ada", email="b@x.example")), _create, 2),
        ((AccountCreated(user="new", email="b@x.example"),), _create, Refused),
        ((), lambda s: accounts.initialize(s, "new", "a@x.example", "h"), 2),
        ((ADA,), lambda s: accounts.initialize(s, "new", "a@x.example", "h"), 2),
        ((ADMIN,), lambda s: accounts.initialize(s, "new", "a@x.example", "h"), Initialized),
        ((ADMIN,), lambda s: accounts.disable(s, "root"), Refused),
        ((ADMIN, OTHER), lambda s: accounts.disable(s, "root"), 1),
        ((ADMIN, OTHER, AccountDisabled(user="other")), lambda s: accounts.disable(s, "root"), Refused),
        ((ADMIN,), lambda s: accounts.appoint(s, "root", "user"), Refused),
        ((ADMIN,), lambda s: accounts.appoint(s, "root", "admin"), 0),
        ((ADMIN, ADA), lambda s: accounts.appoint(s, "ADA@x.example", "admin"), 1),
        ((), lambda s: accounts.disable(s, "ada"), NotFound),
        ((ADA, AccountDisabled(user="ada")), lambda s: accounts.disable(s, "ada"), 0),
        ((ADA,), lambda s: accounts.enable(s, "ada"), 0),
        ((), lambda s: accounts.revoke(s, "k"), NotFound),
        ((ADA, KeyCreated(key="k", user="ada", digest="d")), lambda s: accounts.revoke(s, "k"), 1),
        ((ADA, KeyCreated(key="k", user="ada", digest="d"), KeyRevoked(key="k")), lambda s: accounts.revoke(s, "k"), 0),
        ((), _link, NotFound),
        ((ADA,), _link, EmailTaken),
        ((AccountCreated(user="ada", email="ada@x.example", verified=True),), _link, 1),
        (
            (
                AccountCreated(user="ada", email="b@x.example", verified=True),
                AccountRenamed(user="ada", email="ada@x.example"),
            ),
            _link,
            EmailTaken,
        ),
        ((ADMIN, LINKED), _link, 0),
        ((), lambda s: accounts.link(s, "new", "i", "s", "ada@x.example", may_create=True), 2),
    ],
)
def test_rules(
    events: Sequence[Event], decision: Callable[[Accounts], Sequence[Event]], outcome: int | type[Exception]
) -> None:
    state = of(*events)
    if isinstance(outcome, int):
        assert len(decision(state)) == outcome
    else:
        with pytest.raises(outcome):
            decision(state)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["runs", "threads:read", "runs"], ["runs", "threads:read"]),
        ([], None),
        (["moon"], None),
        (["runs:"], None),
        (["runs:create:x"], None),
        (["Runs"], None),
        (["*"], None),
        (["runs threads"], None),
    ],
)
def test_scopes(names: list[str], found: list[str] | None) -> None:
    if found is not None:
        assert accounts.scopes(names) == found
        return
    with pytest.raises(Invalid, match=r"^scopes: "):
        accounts.scopes(names)


def test_nothing_is_there_at_first() -> None:
    assert fold([]) == EMPTY
    assert not EMPTY.has_admin
