"""Words for retrieval: what a text and a question are compared by. Needs no service and no downloaded data."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import snowballstemmer

MOST_CHARACTERS = 20_000
"""Characters of a text that are looked at."""
CHARACTERS_PER_TOKEN = 4

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_IS_CJK = re.compile(f"[{_CJK}]")
_STOP_WORDS = """
    a about after all also am an and any are as at be been but by can could did do does for from get had has have he
    her here him his how i if in into is it its just like me more my no not of off on one or our out please she so some
    tell than that the their them then there these they this to too up us use user want was we were what when where
    which who why will with would you your
    aber alle als also am an auch auf aus bei bin bist bitte da das dass dein dem den der des die dir du ein eine einem
    einen einer er es für haben hast hat ich ihr im in ist ja kann kein keine man mein meine meinem meinen meiner mich
    mir mit nach nicht noch nur nutzer oder ob sein sich sie sind so soll und uns von vor war was wann warum wie wir
    wird wo zu zum zur über
    的 了 是 我 你 他 她 在 有 和 吗 呢 么 什么 怎么 一个 请 我的 你的 用户
"""
_STOPPED = frozenset(_STOP_WORDS.split())
_LANGUAGES = ("english", "german")


def words(text: str) -> list[str]:
    """Returns the search words of a text: stems of words in the Latin script, pairs of characters in Chinese, Japanese
    and Korean. A word's language is unknown, so it has the stems of both languages.
    """
    normal = unicodedata.normalize("NFKC", text[:MOST_CHARACTERS]).casefold()
    return [part for word in _WORD.findall(normal) if word not in _STOPPED for part in _parts(word)]


@lru_cache(65_536)
def _parts(word: str) -> tuple[str, ...]:
    if _IS_CJK.match(word):
        pairs = [word[place : place + 2] for place in range(max(len(word) - 1, 1))]
        return tuple(pair for pair in pairs if pair not in _STOPPED)
    # A stemmer holds the word that it is at work on: threads do not share one. Making one costs a microsecond.
    return tuple(dict.fromkeys(snowballstemmer.stemmer(language).stemWord(word) for language in _LANGUAGES))


def normal(text: str) -> str:
    """Returns the form in which texts are compared for equality: without case, punctuation and blanks."""
    return "".join(char for char in unicodedata.normalize("NFKC", text).casefold() if char.isalnum())


def tokens(text: str) -> int:
    """Estimates the tokens of a text: a character of Chinese, Japanese or Korean counts as one."""
    wide = len(_IS_CJK.findall(text))
    return wide - (wide - len(text)) // CHARACTERS_PER_TOKEN
