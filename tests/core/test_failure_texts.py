"""What people read of an error that ended a run: a sentence, and no name of a class."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

import pytest

from core.errors import SikaError, sentence_of
from core.events import ModelFailed, RunFailed
from core.runs.run import failure_text
from core.wording import text_of_event


def _classes(base: type[Exception]) -> Iterator[type[Exception]]:
    yield base
    for sub in base.__subclasses__():
        yield from _classes(sub)


def _errors() -> Iterator[Exception]:
    """Yields an error of each class of ours, and of Python's, with a text and without."""
    of_python = [cls for cls in vars(builtins).values() if isinstance(cls, type) and issubclass(cls, Exception)]
    for cls in dict.fromkeys([*_classes(SikaError), *of_python]):
        for args in ((), ("",), ("the disk is full",)):
            error = cls.__new__(
                cls, *(("the disk is full", [LookupError()]) if issubclass(cls, BaseExceptionGroup) else ())
            )
            error.args = args
            yield error


@pytest.mark.parametrize("error", list(_errors()), ids=lambda error: f"{type(error).__name__}{error.args}")
def test_it_is_a_sentence_without_the_name_of_a_class(error: Exception) -> None:
    text, name = failure_text(error), type(error).__name__
    assert len(text.split()) >= 3
    assert name not in text
    for event in (RunFailed(error=name, text=text), ModelFailed(error=name, text=text, attempt=1, max_attempts=1)):
        assert name not in text_of_event(event)
        assert text in text_of_event(event)


@pytest.mark.parametrize("error", list(_errors()), ids=lambda error: f"{type(error).__name__}{error.args}")
def test_what_an_error_says_is_in_words(error: Exception) -> None:
    text = sentence_of(error)
    assert len(text.split()) >= 3
    assert type(error).__name__ not in text


def test_the_key_that_an_error_names_is_in_its_sentence() -> None:
    assert sentence_of(KeyError("port")) == "it needs 'port', which is not there"
